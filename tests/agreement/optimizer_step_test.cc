// One whole optimizer step of the engine, clipping and weight decay included, against the reference
// model in double precision: weights, Adam states, loss and norm.
#include <doctest/doctest.h>

#include "core/lowering/lower.h"
#include "executor/engine/engine.h"
#include "tests/agreement/reference_step.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

using testing::AdamElement;
using testing::Tensors;

constexpr int64_t kStepsTaken = 3;  // bias corrections far from both 0 and 1
constexpr double kFp32 = 1.0 / (1 << 24);

TrainSetup Setup(int stage, int ranks, Dtype dtype, RecomputeConfig recompute) {
  TrainSetup setup = testing::BaseSetup(stage, ranks, dtype, 2, recompute);
  setup.batch.micro_batch = 4 / ranks;  // the same 8 sequences for every cut
  setup.zero.param_persistence_threshold = 30;
  OptimizerConfig& optimizer = setup.optimizer;
  optimizer.lr = 1e-2;
  optimizer.betas = {0.8, 0.95};
  optimizer.eps = 1e-3;
  optimizer.weight_decay = 0.1;
  optimizer.gradient_clipping = 0.75;  // of a norm of some 2.5
  return setup;
}

struct StepOutcome {
  double loss, norm;
  Tensors weights, m, v;
};

StepOutcome RunEngine(const Program& program, const testing::RandomState& start) {
  EngineOptions options;
  options.threads_per_rank = 1;
  testing::MemoryState state(program.layout), saved(program.layout);
  start.WriteTo(state);
  Engine engine(program, options);
  engine.Init();
  StepState taken = engine.state();
  taken.step = kStepsTaken;
  engine.Load(state, true, &taken);
  const StepState after = engine.Step(testing::RandomBatch(program, 3));
  std::vector<StateSink*> sinks(static_cast<size_t>(program.setup.batch.world_size), &saved);
  engine.Save(sinks);
  StepOutcome outcome{after.loss_sum, static_cast<double>(after.grad_norm), {}, {}, {}};
  for (size_t t = 0; t < start.weights.size(); ++t) {
    Tensors* lists[] = {&outcome.weights, &outcome.m, &outcome.v};
    for (int kind = 0; kind < 3; ++kind) {
      std::vector<float> values(start.weights[t].size());
      saved.Read({static_cast<int>(t), static_cast<StateKind>(kind), 0, values.size()}, values);
      lists[kind]->emplace_back(values.begin(), values.end());
    }
  }
  CHECK(after.step == kStepsTaken + 1);
  return outcome;
}

struct Reference {
  double loss, norm;
  Tensors grads;  // before clipping
};
Reference RunReference(const Program& program, const testing::RandomState& start) {
  Tensors weights = start.weights;
  // The kernels compute with the parameters in their dtype; the update is that of the fp32 master.
  if (program.setup.precision.dtype == Dtype::kBF16) {
    for (testing::Values& tensor : weights) {
      for (double& w : tensor) w = testing::RoundToBf16(w);
    }
  }
  Reference reference;
  reference.loss = testing::ReferenceModel(program.model)
                       .Loss(weights, testing::GlobalBatch(program, 3), &reference.grads);
  reference.norm = testing::GlobalNorm(reference.grads);
  return reference;
}

// By how much the engine exceeds what the rounding of its gradients explains, at worst, as a
// multiple of that: every gradient may be off by `tolerance` of its tensor's largest, and the norm
// in proportion. That goes through the update, which is exact up to fp32 arithmetic (a dozen
// operations on numbers of the size of weight and state).
double WorstExcess(const OptimizerConfig& optimizer, const Program& program,
                   const testing::RandomState& start, const Reference& reference,
                   const StepOutcome& outcome, double tolerance) {
  const auto& table = *program.layout.tensors;
  const double factor = testing::ClipFactor(reference.norm, optimizer.gradient_clipping);
  double worst = 0;
  for (size_t t = 0; t < table.size(); ++t) {
    const double off = tolerance * testing::LargestMagnitude(reference.grads[t]);
    for (size_t i = 0; i < start.weights[t].size(); ++i) {
      const AdamElement before{start.weights[t][i], start.m[t][i], start.v[t][i]};
      const auto update = [&](double g) {
        return testing::AdamWUpdate(optimizer, table[t].decay, kStepsTaken + 1, g * factor, before);
      };
      const double g = reference.grads[t][i];
      const AdamElement exact = update(g), up = update(g + off), down = update(g - off);
      const auto excess = [&](double value, double at, double high, double low, double arithmetic) {
        const double allowed = std::max(std::abs(high - at), std::abs(low - at)) + arithmetic;
        worst = std::max(worst, std::abs(value - at) / allowed);
      };
      excess(outcome.weights[t][i], exact.weight, up.weight, down.weight,
             kFp32 * (std::abs(exact.weight) + 12 * optimizer.lr * 2));
      excess(outcome.m[t][i], exact.m, up.m, down.m, 4 * kFp32 * 0.02);
      excess(outcome.v[t][i], exact.v, up.v, down.v, 4 * kFp32 * 1e-3);
    }
  }
  return worst;
}

void CheckStep(const TrainSetup& setup, double tolerance) {
  LowerOptions options;
  options.logits_chunk_bytes = 7 * 40 * 4;
  options.checkpoint_chunk_elements = 700;
  const Program program = Lower(testing::TinyModel(2), setup, options);
  const testing::RandomState start(*program.layout.tensors, 5);
  const Reference reference = RunReference(program, start);
  const StepOutcome outcome = RunEngine(program, start);
  REQUIRE(reference.norm > 2 * setup.optimizer.gradient_clipping);
  CHECK(std::abs(outcome.loss - reference.loss) < tolerance * reference.loss);
  CHECK(std::abs(outcome.norm - reference.norm) < tolerance * reference.norm);
  const auto excess = [&](const OptimizerConfig& optimizer) {
    return WorstExcess(optimizer, program, start, reference, outcome, tolerance);
  };
  CHECK(excess(setup.optimizer) < 1);

  // The tolerance is narrow enough to tell the step from what is nearly it.
  OptimizerConfig wrong = setup.optimizer;
  wrong.gradient_clipping = 0;
  CHECK(excess(wrong) > 5);
  wrong = setup.optimizer;
  wrong.weight_decay = 0;
  CHECK(excess(wrong) > 5);
  wrong = setup.optimizer;
  wrong.betas[0] = 0.9;
  CHECK(excess(wrong) > 5);
}

struct Cut {
  int stage, ranks;
  RecomputeConfig recompute;
};
const Cut kCuts[] = {{0, 1, kNoRecompute},        {0, 2, kNoRecompute}, {0, 2, FullRecompute()},
                     {0, 2, kSelectiveRecompute}, {3, 2, kNoRecompute}, {3, 2, FullRecompute()},
                     {3, 2, kSelectiveRecompute}};

// As in gradient_test.cc: 60 terms a sum, 40 kernels, five times sqrt(60 * 40) * 2^-24.
TEST_CASE("optimizer step: fp32 is the reference's") {
  for (const auto& [stage, ranks, recompute] : kCuts) {
    CAPTURE(stage);
    CAPTURE(ranks);
    CAPTURE(RecomputeName(recompute));
    CheckStep(Setup(stage, ranks, Dtype::kF32, recompute), 1.5e-5);
  }
}

void CheckGroups(Dtype dtype, double tolerance) {
  for (int stage = 1; stage <= 3; ++stage) {
    for (int across = 0; across <= 2; ++across) {
      CAPTURE(stage);
      CAPTURE(across);
      TrainSetup setup = Setup(stage, 4, dtype, kNoRecompute);
      setup.zero.shard_group = 2;
      setup.zero.across_stage = across;
      if (stage == 1 && across == 2) continue;
      CheckStep(setup, tolerance);
    }
  }
}

TEST_CASE("optimizer step: of shard groups, too, in fp32") { CheckGroups(Dtype::kF32, 1.5e-5); }

// Sums are fp32, but what a kernel writes is rounded to 2^-9 of its size: 40 roundings on an
// element's way through both passes, and one more a micro-step and a rank. sqrt(40) * 2^-9 = 1.2 %
// of the tensor's largest gradient; four times that covers the largest of some 10000 elements.
TEST_CASE("optimizer step: bf16 is the reference's up to its rounding") {
  for (const auto& [stage, ranks, recompute] : kCuts) {
    CAPTURE(stage);
    CAPTURE(ranks);
    CAPTURE(RecomputeName(recompute));
    CheckStep(Setup(stage, ranks, Dtype::kBF16, recompute), 0.05);
  }
}

TEST_CASE("optimizer step: of shard groups, too, in bf16") { CheckGroups(Dtype::kBF16, 0.05); }

}  // namespace
}  // namespace zeroplan
