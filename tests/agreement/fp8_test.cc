// Training whose layers multiply in eight bits, through the engine: gradients against a reference
// that rounds the same numbers, and the same bits wherever states are and however work is cut.
#include "core/base/fp8.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/lowering/lower.h"
#include "core/settings/setup_facts.h"
#include "executor/engine/engine.h"
#include "tests/agreement/engine_gradients.h"
#include "tests/agreement/packed_training.h"
#include "tests/core/lowering/matrix.h"
#include "tests/core/model/with_lora.h"
#include "tests/fp8_models.h"

namespace zeroplan {
namespace {

using testing::MemoryState;
using testing::Offload;
using testing::Tensors;
using testing::Values;

EngineOptions Fp8Options(uint64_t order_seed = 0, int threads = 1) {
  EngineOptions options;
  options.threads_per_rank = threads;
  options.swap_dir = "/tmp";
  options.random_order_seed = order_seed;
  return options;
}

// ---- gradients ----

// The numbers that eight bits have of a matrix, by scales of one tensor or of blocks; or a `share`
// of the way to them.
testing::Round RoundAs(const Fp8Config& fp8, double share = 1) {
  return [fp8, share](const Values& x, size_t cols, testing::Rounded what, bool down) {
    const bool e5m2 = what == testing::Rounded::kGradient && fp8.gradients == Dtype::kE5M2;
    const float largest = e5m2 ? kLargestE5M2 : kLargestE4M3;
    const size_t rows = x.size() / cols;
    size_t tall = rows, wide = cols;  // a block
    if (fp8.recipe == Fp8Recipe::kBlocks) {
      const bool weight = what == testing::Rounded::kWeight;
      tall = weight || down ? kFp8Block : 1;
      wide = weight || !down ? kFp8Block : 1;
    }
    Values rounded(x.size());
    for (size_t top = 0; top < rows; top += tall) {
      for (size_t left = 0; left < cols; left += wide) {
        const auto each = [&](auto&& fn) {
          for (size_t r = top; r < top + tall; ++r) {
            for (size_t c = left; c < left + wide; ++c) fn(r * cols + c);
          }
        };
        double amax = 0;
        each([&](size_t i) { amax = std::max(amax, std::abs(x[i])); });
        const double inverse = Fp8InverseScale(static_cast<float>(amax), largest);
        const double scale = Fp8Scale(static_cast<float>(amax), largest);
        each([&](size_t i) {
          const auto scaled = static_cast<float>(x[i] * inverse);
          const double nearest =
              scale * (e5m2 ? FromE5M2(ToE5M2(scaled)) : FromE4M3(ToE4M3(scaled)));
          rounded[i] = x[i] + share * (nearest - x[i]);
        });
      }
    }
    return rounded;
  };
}

double Distance(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}
double Length(const Values& a) { return Distance(a, Values(a.size(), 0.0)); }

void CheckFp8Gradients(const Fp8Config& fp8, RecomputeConfig recompute, int64_t accumulation) {
  CAPTURE(Fp8RecipeName(fp8.recipe));
  CAPTURE(DtypeName(fp8.gradients));
  CAPTURE(RecomputeName(recompute));
  // A micro-batch is a sequence, as the reference has them: scales are of the same tensors.
  ModelSpec spec = testing::Fp8Gpt2(fp8.recipe, fp8.recipe == Fp8Recipe::kBlocks ? 1 : 2);
  spec.positions = Fp8Multiple(fp8.recipe);
  TrainSetup setup = testing::BaseSetup(0, 1, Dtype::kF32, accumulation, recompute);
  setup.batch.micro_batch = 1;
  setup.batch.seq_len = spec.positions;
  setup.precision.fp8 = fp8;
  const Program program = Lower(spec, setup);
  const auto& table = *program.layout.tensors;
  testing::RandomState start(table, 5);
  // Wide matrices make sums as large by smaller weights.
  for (size_t t = 0; t < table.size(); ++t) {
    if (table[t].shape.size() < 2 || spec.hidden < 100) continue;
    for (double& weight : start.weights[t]) weight /= 4;
  }
  MemoryState state(program.layout);
  start.WriteTo(state);
  Engine engine(program, Fp8Options());
  engine.Init();
  engine.Load(state, true, nullptr);
  const double loss = engine.Step(testing::RandomBatch(program, 3)).loss_sum;
  const Tensors grads = testing::EngineGradients(program, engine, 0);

  Tensors rounded, exact, less;
  const auto batch = testing::GlobalBatch(program, 3);
  const double rounded_loss =
      testing::ReferenceModel(spec, RoundAs(fp8)).Loss(start.weights, batch, &rounded);
  const double exact_loss = testing::ReferenceModel(spec).Loss(start.weights, batch, &exact);
  constexpr double kShare = 1.0 / 64;
  testing::ReferenceModel(spec, RoundAs(fp8, kShare)).Loss(start.weights, batch, &less);
  // A number that lies between two of eight bits to within fp32's rounding may go the other way,
  // and all behind it with it: far less than what eight bits change of all numbers.
  CHECK(std::abs(loss - rounded_loss) <= 0.02 * std::abs(rounded_loss - exact_loss));
  for (size_t t = 0; t < table.size(); ++t) {
    CAPTURE(table[t].name);
    const double eight_bits = Distance(rounded[t], exact[t]), length = Length(exact[t]);
    CHECK(Distance(grads[t], rounded[t]) <= 0.02 * eight_bits);
    // What they change comes from rounding alone, in proportion to it but for higher orders: these
    // gradients are those of no rounding, to as many bits as eight.
    CHECK(eight_bits > 1e-3 * length);
    CHECK(Distance(less[t], exact[t]) <= 2 * kShare * eight_bits);
    CHECK(Distance(less[t], exact[t]) >= kShare / 2 * eight_bits);
  }
}

TEST_CASE("fp8: gradients are those of a reference that rounds what it multiplies") {
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensor, Fp8Recipe::kBlocks}) {
    for (const Dtype gradients : {Dtype::kE4M3, Dtype::kE5M2}) {
      const Fp8Config fp8{.enabled = true, .recipe = recipe, .gradients = gradients};
      CheckFp8Gradients(fp8, kNoRecompute, 1);
      if (recipe == Fp8Recipe::kBlocks) continue;
      CheckFp8Gradients(fp8, kSelectiveRecompute, 3);
      CheckFp8Gradients(fp8, FullRecompute(), 3);
    }
  }
}

// ---- bits ----

constexpr uint64_t kFp8Steps = 6;

struct Fp8Cell {
  int stage = 0;
  Offload offload = Offload::kNone;
  int ranks = 1;
  RecomputeConfig recompute = kNoRecompute;
  testing::StatesKind states = {MasterWeights::kFp32, Dtype::kF32};
  Fp8Recipe recipe = Fp8Recipe::kTensor;
  int64_t accumulation = 1;
};

TrainSetup SetupOf(const Fp8Cell& cell) {
  TrainSetup setup =
      testing::BaseSetup(cell.stage, cell.ranks, Dtype::kBF16, cell.accumulation, cell.recompute);
  testing::SetOffload(setup, cell.offload);
  setup = testing::WithFp8(setup, cell.recipe, Dtype::kE5M2);
  setup.precision.master_weights = cell.states.masters;
  setup.precision.moment_dtype = cell.states.moments;
  setup.optimizer.lr = 3e-3;
  setup.optimizer.weight_decay = 0.1;
  setup.optimizer.gradient_clipping = 0;  // ranks sum the norm in another order
  // Vectors are persistent: what else there is in a layer is gathered in eight bits.
  if (cell.ranks > 1) setup.zero.param_persistence_threshold = 100;
  return setup;
}

ModelSpec ModelOf(const Fp8Cell& cell) { return testing::Fp8Gpt2(cell.recipe); }

// All ranks have the same micro-batches: with any power of two of them sums are the same.
FillBatch SameOnAllRanks(const Program& program, uint64_t step) {
  return [&program, step](int, int64_t m, std::span<int32_t> inputs, std::span<int32_t> targets) {
    testing::FillRandom(program, step, 0, m * program.setup.batch.world_size, inputs, targets);
  };
}

struct Fp8Left {
  std::vector<double> losses;
  MemoryState states;

  bool operator==(const Fp8Left& other) const {
    return losses == other.losses && states == other.states;
  }
};

Fp8Left RunFp8(const ModelSpec& model, const TrainSetup& setup, const EngineOptions& options,
               uint64_t steps = kFp8Steps) {
  LowerOptions lower;
  lower.checkpoint_chunk_elements = 700;
  const Program program = Lower(model, setup, lower);
  Engine engine(program, options);
  engine.Init();
  Fp8Left left{{}, MemoryState(program.layout)};
  for (uint64_t step = 0; step < steps; ++step) {
    left.losses.push_back(engine.Step(SameOnAllRanks(program, step)).loss_sum);
  }
  const std::vector<StateSink*> sinks(static_cast<size_t>(setup.batch.world_size), &left.states);
  engine.Save(sinks);
  left.losses.push_back(engine.Evaluate(SameOnAllRanks(program, steps)));
  return left;
}
Fp8Left RunFp8(const Fp8Cell& cell, uint64_t order_seed = 0, int threads = 1) {
  return RunFp8(ModelOf(cell), SetupOf(cell), Fp8Options(order_seed, threads));
}

template <typename Fn>
void ForEachFp8Place(Fn&& fn) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const Offload offload : testing::OffloadsOf(stage)) {
      CAPTURE(stage);
      CAPTURE(testing::OffloadLabel(offload));
      fn(stage, offload);
    }
  }
}

TEST_CASE("fp8: the same bits at every stage, offload and number of ranks, in any legal order") {
  const Fp8Left control = RunFp8(Fp8Cell{});
  CHECK(control.losses[kFp8Steps - 1] < control.losses.front());
  ForEachFp8Place([&](int stage, Offload offload) {
    for (const int ranks : {1, 2, 4}) {
      CAPTURE(ranks);
      const Fp8Cell cell{.stage = stage, .offload = offload, .ranks = ranks};
      CHECK(RunFp8(cell) == control);
      if (ranks == 2) CHECK(RunFp8(cell, 41) == control);
      if (ranks < 4 || stage == 0) continue;
      for (const int across : {0, 1, 2}) {
        CAPTURE(across);
        TrainSetup groups = SetupOf(cell);
        groups.zero.shard_group = 2;
        groups.zero.across_stage = across;
        if (FindSetupProblem(groups)) continue;
        CHECK(RunFp8(ModelOf(cell), groups, Fp8Options(44)) == control);
      }
    }
  });
}

TEST_CASE("fp8: the same bits with recompute of any kind, and settings of stage 3") {
  for (const int64_t accumulation : {1, 2}) {
    for (const int stage : {0, 2, 3}) {
      CAPTURE(accumulation);
      CAPTURE(stage);
      const Fp8Cell cell{.stage = stage, .ranks = 2, .accumulation = accumulation};
      const Fp8Left control = RunFp8(cell);
      for (const RecomputeConfig& recompute :
           {kSelectiveRecompute, FullRecompute(), FullRecompute(2)}) {
        CAPTURE(RecomputeName(recompute));
        Fp8Cell other = cell;
        other.recompute = recompute;
        CHECK(RunFp8(other) == control);
        CHECK(RunFp8(other, 42) == control);
      }
      for (const uint64_t reuse : {uint64_t{9000}, uint64_t{1'000'000}}) {
        TrainSetup setup = SetupOf(cell);
        setup.zero.max_reuse_distance = reuse;
        setup.zero.param_persistence_threshold = reuse > 9000 ? 1200 : 0;
        CHECK(RunFp8(ModelOf(cell), setup, Fp8Options(43)) == control);
      }
      TrainSetup setup = SetupOf(cell);
      setup.zero.overlap_comm = false;
      CHECK(RunFp8(ModelOf(cell), setup, Fp8Options()) == control);
    }
  }
}

TEST_CASE(
    "fp8: the same bits where weights lie as forward products take them, and some are frozen") {
  const ModelSpec llama = testing::Fp8Llama(Fp8Recipe::kTensor, 3);
  ModelSpec frozen = testing::Fp8Gpt2(Fp8Recipe::kTensor, 3);
  frozen.frozen = "transformer.wte.*,transformer.wpe.*,transformer.h.0.*,transformer.h.1.attn.*";
  for (const ModelSpec& model : {llama, frozen, testing::WithQlora(llama, "q_proj,o_proj")}) {
    CAPTURE(model.frozen);
    CAPTURE(model.lora_targets);
    const Fp8Left control = RunFp8(model, SetupOf({}), Fp8Options());
    for (const int stage : {1, 2, 3}) {
      for (const Offload offload : {Offload::kNone, Offload::kRatio, Offload::kParam}) {
        for (const RecomputeConfig& recompute :
             {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
          if (offload == Offload::kParam && stage < 3) continue;
          CAPTURE(stage);
          CAPTURE(testing::OffloadLabel(offload));
          CAPTURE(RecomputeName(recompute));
          const Fp8Cell cell{
              .stage = stage, .offload = offload, .ranks = 2, .recompute = recompute};
          CHECK(RunFp8(model, SetupOf(cell), Fp8Options(45)) == control);
        }
      }
    }
  }
}

TEST_CASE("fp8: the same bits at every stage with states of every kind") {
  for (const testing::StatesKind& kind : testing::kStatesKinds) {
    CAPTURE(testing::StatesLabel(kind));
    const Fp8Left control = RunFp8(Fp8Cell{.states = kind});
    for (const int stage : {1, 2, 3}) {
      for (const Offload offload : {Offload::kNone, Offload::kOptimizer}) {
        CAPTURE(stage);
        CHECK(RunFp8(Fp8Cell{.stage = stage, .offload = offload, .states = kind}) == control);
      }
    }
  }
}

TEST_CASE("fp8: the same bits with scales of blocks, at every stage and with recompute") {
  const auto run = [](const Fp8Cell& cell, int threads) {
    return RunFp8(testing::Fp8Gpt2(Fp8Recipe::kBlocks, 1), SetupOf(cell), Fp8Options(0, threads),
                  2);
  };
  const Fp8Left control = run({.recipe = Fp8Recipe::kBlocks}, 2);
  for (const int stage : {1, 2, 3}) {
    for (const RecomputeConfig& recompute : {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
      CAPTURE(stage);
      CAPTURE(RecomputeName(recompute));
      if (stage == 1 && recompute == FullRecompute()) continue;
      CHECK(run({.stage = stage,
                 .ranks = stage == 1 ? 1 : 2,
                 .recompute = recompute,
                 .recipe = Fp8Recipe::kBlocks},
                1) == control);
    }
  }
}

TEST_CASE("fp8: the same bits on any number of threads") {
  const Fp8Left control = RunFp8(Fp8Cell{.stage = 3, .ranks = 2});
  for (const int threads : {2, 3}) {
    CHECK(RunFp8(Fp8Cell{.stage = 3, .ranks = 2}, 0, threads) == control);
  }
}

TEST_CASE("fp8: updates in the backward pass train with the bits of updates after it") {
  for (const int stage : {1, 2, 3}) {
    for (const Offload offload : {Offload::kNone, Offload::kOptimizer}) {
      CAPTURE(stage);
      const Fp8Cell cell{.stage = stage, .offload = offload};
      TrainSetup setup = SetupOf(cell);
      setup.zero.optimizer_in_backward = true;
      if (FindSetupProblem(setup)) continue;
      CHECK(RunFp8(ModelOf(cell), setup, Fp8Options()) == RunFp8(cell));
    }
  }
}

TEST_CASE("fp8: a run that is loaded goes on with the bits of one that was not stopped") {
  ForEachFp8Place([&](int stage, Offload offload) {
    const Fp8Cell cell{.stage = stage, .offload = offload, .ranks = 2, .accumulation = 2};
    const Program program = Lower(ModelOf(cell), SetupOf(cell));
    const auto step = [&](Engine& engine, uint64_t at) {
      return engine.Step(testing::RandomBatch(program, at));
    };
    Engine first(program, Fp8Options());
    first.Init();
    StepState state;
    for (uint64_t at = 0; at < 2; ++at) state = step(first, at);
    MemoryState saved(program.layout);
    const std::vector<StateSink*> sinks(2, &saved);
    first.Save(sinks);
    Engine second(program, Fp8Options());
    second.Init();
    second.Load(saved, true, &state);
    for (uint64_t at = 2; at < 4; ++at) {
      CHECK(step(second, at).loss_sum == step(first, at).loss_sum);
    }
    // Evaluation takes the weights as they are now, and leaves a step's as they were.
    const FillBatch batch = testing::RandomBatch(program, 4);
    CHECK(first.Evaluate(batch) == second.Evaluate(batch));
    CHECK(step(second, 5).loss_sum == step(first, 5).loss_sum);
  });
}

TEST_CASE("fp8: losses follow those of 16 bits") {
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensor, Fp8Recipe::kBlocks}) {
    CAPTURE(Fp8RecipeName(recipe));
    const bool blocks = recipe == Fp8Recipe::kBlocks;
    const Fp8Cell cell{.recipe = recipe};
    const ModelSpec model = testing::Fp8Gpt2(recipe, 1);
    TrainSetup setup = SetupOf(cell);
    const uint64_t steps = blocks ? 3 : 40;
    const std::vector<double> eight = RunFp8(model, setup, Fp8Options(0, 2), steps).losses;
    setup.precision.fp8.enabled = false;
    const std::vector<double> sixteen = RunFp8(model, setup, Fp8Options(0, 2), steps).losses;
    CHECK(eight != sixteen);
    // What eight bits change of a row's loss is a hundredth or so; the mean is over many.
    for (size_t i = 0; i < eight.size(); ++i) {
      CHECK(std::abs(eight[i] - sixteen[i]) < 0.02 * sixteen[i]);
    }
  }
}

// ---- overflow ----

TEST_CASE("fp8: overflowing steps are skipped whole, then training proceeds") {
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensor, Fp8Recipe::kBlocks}) {
    for (const int stage : {0, 2, 3}) {
      CAPTURE(Fp8RecipeName(recipe));
      CAPTURE(stage);
      if (recipe == Fp8Recipe::kBlocks && stage != 2) continue;
      TrainSetup setup = testing::BaseSetup(stage, 2, Dtype::kF16, 1, kNoRecompute);
      setup = testing::WithFp8(setup, recipe);
      const bool blocks = recipe == Fp8Recipe::kBlocks;
      setup.precision.initial_scale_power = blocks ? 20 : 30;
      setup.precision.hysteresis = 1;
      setup.optimizer.lr = 3e-3;
      const Program program = Lower(testing::Fp8Gpt2(recipe, 1), setup);
      Engine engine(program, Fp8Options());
      engine.Init();
      const auto save = [&] {
        MemoryState to(program.layout);
        const std::vector<StateSink*> sinks(2, &to);
        engine.Save(sinks);
        return to;
      };
      const MemoryState before = save();
      int skipped = 0;
      StepState state = engine.Step(testing::RandomBatch(program, 0));
      while (state.skip != kTaken) {
        REQUIRE(++skipped < 40);
        CHECK(state.step == 0);
        if (skipped == 1) CHECK(save() == before);
        state = engine.Step(testing::RandomBatch(program, 0));
      }
      CHECK(skipped > (blocks ? 0 : 5));
      CHECK(state.step == 1);
      CHECK(std::isfinite(state.grad_norm));
      CHECK(state.grad_norm > 0);
      CHECK(state.grad_norm < 100);
      if (blocks) continue;
      const double first = state.loss_sum;
      for (uint64_t step = 1; step < 30; ++step) {
        state = engine.Step(testing::RandomBatch(program, step));
      }
      CHECK(state.loss_sum < first);
    }
  }
}

TEST_CASE("fp8: a step whose numbers are not finite is skipped in bf16") {
  TrainSetup setup = SetupOf(Fp8Cell{.stage = 2});
  setup.optimizer.lr = 1e30;  // the second step's numbers overflow
  const Program program = Lower(ModelOf({}), setup);
  Engine engine(program, Fp8Options());
  engine.Init();
  CHECK(engine.Step(testing::RandomBatch(program, 0)).skip == kTaken);
  CHECK(engine.Step(testing::RandomBatch(program, 1)).skip != kTaken);
}

// ---- adapters and documents ----

TEST_CASE("fp8: adapters over a base in eight bits train with the same bits at every stage") {
  for (const bool llama : {false, true}) {
    CAPTURE(llama);
    const ModelSpec base =
        llama ? testing::Fp8Llama(Fp8Recipe::kTensor) : testing::Fp8Gpt2(Fp8Recipe::kTensor);
    const ModelSpec model = testing::WithLora(base, "all-linear");
    const auto run = [&](int stage, int ranks, RecomputeConfig recompute, bool enabled = true) {
      TrainSetup setup = SetupOf({.stage = stage, .ranks = ranks, .recompute = recompute});
      setup.precision.fp8.enabled = enabled;
      return RunFp8(model, setup, Fp8Options());
    };
    const Fp8Left control = run(0, 1, kNoRecompute);
    const Fp8Left sixteen = run(0, 1, kNoRecompute, false);
    for (size_t i = 0; i < control.losses.size(); ++i) {
      CHECK(control.losses[i] != sixteen.losses[i]);
      CHECK(std::abs(control.losses[i] - sixteen.losses[i]) < 0.02 * sixteen.losses[i]);
    }
    for (const int stage : {0, 2, 3}) {
      for (const int ranks : {1, 2}) {
        for (const RecomputeConfig& recompute :
             {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
          CAPTURE(stage);
          CAPTURE(ranks);
          CAPTURE(RecomputeName(recompute));
          CHECK(run(stage, ranks, recompute) == control);
        }
      }
    }
  }
}

TEST_CASE("fp8: packed documents train with the same bits at every stage") {
  std::mt19937 random(11);
  const std::vector<packed_training::Rows> batches = {
      packed_training::Packed(packed_training::RandomDocuments(random, 9), 4)};
  for (const bool llama : {false, true}) {
    ModelSpec model =
        llama ? testing::Fp8Llama(Fp8Recipe::kTensor) : testing::Fp8Gpt2(Fp8Recipe::kTensor);
    model.positions = packed_training::kT;
    const auto train = [&](int stage, RecomputeConfig recompute, bool enabled = true) {
      TrainSetup setup = testing::BaseSetup(stage, 1, Dtype::kF32, 1, recompute);
      setup.precision.fp8.enabled = enabled;
      return packed_training::Train(model, setup, true, batches);
    };
    const packed_training::Outcome control = train(0, kNoRecompute);
    const packed_training::Outcome wide = train(0, kNoRecompute, false);
    const double eight = control.steps[0].loss_sum, sixteen = wide.steps[0].loss_sum;
    CHECK(eight != sixteen);
    CHECK(std::abs(eight - sixteen) < 0.02 * sixteen);
    for (const int stage : {2, 3}) {
      for (const RecomputeConfig& recompute :
           {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
        CAPTURE(stage);
        CAPTURE(RecomputeName(recompute));
        const packed_training::Outcome other = train(stage, recompute);
        CHECK(other.weights == control.weights);
        CHECK(other.steps[0].loss_sum == eight);
      }
    }
  }
}

}  // namespace
}  // namespace zeroplan
