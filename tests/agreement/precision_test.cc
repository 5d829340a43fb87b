// What gradients are summed and reduced in decides how exact they are, and nothing else: sums in
// fp32 over micro-steps and over ranks against double precision, at every stage and offload.
#include <doctest/doctest.h>

#include <cmath>

#include "core/lowering/lower.h"
#include "executor/engine/engine.h"
#include "tests/agreement/reference_step.h"
#include "tests/core/families/llama/tiny_llama.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

using testing::Tensors;

constexpr Dtype kBF16 = Dtype::kBF16, kF32 = Dtype::kF32;

// Of a power of two of micro-steps: a gradient is then scaled exactly by their number.
constexpr int64_t kMicroSteps = 8;

TrainSetup Setup(int stage, testing::Offload offload, int ranks, int64_t grad_accum) {
  TrainSetup setup = testing::BaseSetup(stage, ranks, kBF16, grad_accum, kNoRecompute);
  testing::SetOffload(setup, offload);
  // The first moments after a step from zero are its gradients.
  setup.optimizer.betas[0] = 0;
  setup.optimizer.gradient_clipping = 0;
  return setup;
}

TrainSetup With(TrainSetup setup, Dtype grad_accum_dtype, bool fp32_reduction) {
  setup.precision.grad_accum_dtype = grad_accum_dtype;
  setup.precision.fp32_reduction = fp32_reduction;
  return setup;
}

// The gradients that a step's update reads, by tensor. `only`: of that micro-step of the batch
// alone, which the setup then takes for all.
Tensors Gradients(const ModelSpec& model, const TrainSetup& setup, int64_t only = -1,
                  uint64_t order_seed = 0) {
  LowerOptions lower;
  lower.logits_chunk_bytes = 600;
  const Program program = Lower(model, setup, lower);
  const auto& table = *program.layout.tensors;
  testing::RandomState start(table, 5);
  for (Tensors* states : {&start.m, &start.v}) {
    for (auto& tensor : *states) std::fill(tensor.begin(), tensor.end(), 0.0);
  }
  testing::MemoryState state(program.layout), saved(program.layout);
  start.WriteTo(state);
  EngineOptions options;
  options.threads_per_rank = 1;
  options.swap_dir = "/tmp";
  options.random_order_seed = order_seed;
  Engine engine(program, options);
  engine.Init();
  engine.Load(state, true, nullptr);
  engine.Step([&](int rank, int64_t m, auto inputs, auto targets) {
    testing::FillRandom(program, 3, rank, only < 0 ? m : only, inputs, targets);
  });
  std::vector<StateSink*> sinks(static_cast<size_t>(setup.batch.world_size), &saved);
  engine.Save(sinks);
  Tensors grads;
  for (size_t t = 0; t < table.size(); ++t) {
    std::vector<float> values(table[t].elements());
    saved.Read({static_cast<int>(t), StateKind::kFirst, 0, values.size()}, values);
    grads.emplace_back(values.begin(), values.end());
  }
  return grads;
}

// The largest difference, in units of the tensor's largest expected magnitude.
double Distance(const Tensors& grads, const Tensors& expected) {
  double worst = 0;
  for (size_t t = 0; t < grads.size(); ++t) {
    const double largest = testing::LargestMagnitude(expected[t]);
    for (size_t i = 0; i < grads[t].size(); ++i) {
      worst = std::max(worst, std::abs(grads[t][i] - expected[t][i]) / largest);
    }
  }
  return worst;
}

// Sums of some tens of fp32 terms, of which the largest may be a few times the sum.
constexpr double kFp32Sum = 0x1p-19;
// The most that rounding to bf16's 8 bits changes a number by, of its magnitude. In units of a
// tensor's largest element some element is off by a quarter of it.
constexpr double kBF16Rounding = 0x1p-8;

std::vector<ModelSpec> Models() {
  ModelSpec tied = testing::TinyLlama(Llama());
  tied.tied_head = true;
  return {testing::TinyModel(2), tied, testing::TinyLlama(Qwen3())};
}

TEST_CASE("fp32 sums over micro-steps are those of double precision, sums in bf16 are not") {
  struct Case {
    int stage;
    testing::Offload offload;
    int ranks;
  };
  for (const ModelSpec& model : Models()) {
    CAPTURE(model.family->name());
    CAPTURE(model.tied_head);
    for (const Case& c : {Case{0, testing::Offload::kNone, 1},
                          {1, testing::Offload::kNone, 2},
                          {1, testing::Offload::kRatio, 2},
                          {2, testing::Offload::kNone, 2},
                          {2, testing::Offload::kOptimizer, 1},
                          {3, testing::Offload::kNone, 2},
                          {3, testing::Offload::kBoth, 2}}) {
      if (c.offload != testing::Offload::kNone && model.family != &Gpt2()) continue;
      CAPTURE(c.stage);
      CAPTURE(std::string(testing::OffloadLabel(c.offload)));
      const TrainSetup one = With(Setup(c.stage, c.offload, c.ranks, 1), kF32, false);
      Tensors expected;
      for (int64_t m = 0; m < kMicroSteps; ++m) {
        const Tensors part = Gradients(model, one, m);
        if (m == 0) expected = Tensors(part.size());
        for (size_t t = 0; t < part.size(); ++t) {
          expected[t].resize(part[t].size());
          for (size_t i = 0; i < part[t].size(); ++i) expected[t][i] += part[t][i] / kMicroSteps;
        }
      }
      const TrainSetup all = Setup(c.stage, c.offload, c.ranks, kMicroSteps);
      CHECK(Distance(Gradients(model, With(all, kF32, false)), expected) < kFp32Sum);
      CHECK(Distance(Gradients(model, With(all, kBF16, false)), expected) > kBF16Rounding / 4);
    }
  }
}

TEST_CASE("fp32 sums of one micro-step at stages 2 and 3 change no bit") {
  for (const int stage : {2, 3}) {
    const TrainSetup setup = Setup(stage, testing::Offload::kNone, 2, 1);
    const ModelSpec model = testing::TinyModel(2);
    CHECK(Gradients(model, With(setup, kF32, false)) == Gradients(model, setup));
  }
}

TEST_CASE("gradients reduced in fp32 are rounded once, when they reach their shard, or never") {
  for (const ModelSpec& model : Models()) {
    CAPTURE(model.family->name());
    // Whole gradients in fp32, sent as they are.
    const Tensors expected =
        Gradients(model, With(Setup(0, testing::Offload::kNone, 2, 1), kF32, false));
    for (const int stage : {2, 3}) {
      for (const testing::Offload offload : testing::OffloadsOf(stage)) {
        CAPTURE(stage);
        CAPTURE(std::string(testing::OffloadLabel(offload)));
        const TrainSetup setup = Setup(stage, offload, 2, 1);
        CHECK(Distance(Gradients(model, With(setup, kF32, false)), expected) > kBF16Rounding / 4);
        CHECK(Distance(Gradients(model, With(setup, kF32, true)), expected) < kFp32Sum);
        const Tensors rounded = Gradients(model, With(setup, kBF16, true));
        for (size_t t = 0; t < rounded.size(); ++t) {
          const double slack = kFp32Sum * testing::LargestMagnitude(expected[t]);
          double worst = 0;
          for (size_t i = 0; i < rounded[t].size(); ++i) {
            const double allowed = kBF16Rounding * std::abs(expected[t][i]) + slack;
            worst = std::max(worst, std::abs(rounded[t][i] - expected[t][i]) / allowed);
          }
          CHECK(worst <= 1);
        }
      }
    }
  }
}

// The CPU sums what ranks send in fp32 whatever its dtype, and rounds the sum: as a conversion
// before and after does.
TEST_CASE("gradients kept in bf16 and reduced in fp32 are those that the CPU reduces in bf16") {
  const ModelSpec model = testing::TinyModel(2);
  for (const int stage : {0, 1}) {
    for (const testing::Offload offload : testing::OffloadsOf(stage)) {
      for (const int64_t grad_accum : {1, 3}) {
        for (const bool scatter : {true, false}) {
          for (const uint64_t bucket : {900u, 5000u}) {
            CAPTURE(stage);
            CAPTURE(std::string(testing::OffloadLabel(offload)));
            CAPTURE(grad_accum);
            CAPTURE(scatter);
            CAPTURE(bucket);
            TrainSetup setup = Setup(stage, offload, 3, grad_accum);
            setup.zero.reduce_scatter = scatter;
            setup.zero.reduce_bucket_elements = bucket;
            CHECK(Gradients(model, With(setup, kBF16, true)) == Gradients(model, setup));
          }
        }
      }
    }
  }
}

TEST_CASE("reduced in fp32, any legal order of the streams gives the same bits") {
  const ModelSpec model = testing::TinyModel(2);
  for (int stage = 0; stage <= 3; ++stage) {
    for (const testing::Offload offload : testing::OffloadsOf(stage)) {
      for (const Dtype dtype : {kBF16, kF32}) {
        for (const bool overlap : {true, false}) {
          CAPTURE(stage);
          CAPTURE(std::string(testing::OffloadLabel(offload)));
          CAPTURE(std::string(DtypeName(dtype)));
          CAPTURE(overlap);
          TrainSetup setup = With(Setup(stage, offload, 2, 3), dtype, true);
          setup.zero.overlap_comm = overlap;
          CHECK(Gradients(model, setup, -1, 17) == Gradients(model, setup));
        }
      }
    }
  }
}

}  // namespace
}  // namespace zeroplan
