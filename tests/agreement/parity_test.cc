// Every stage, offload choice and rank count trains like stage 0 on one rank: same seed, data and
// global batch. In fp32 what differs is the order of sums alone: gradients over ranks and
// micro-steps, and norms.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/lowering/lower.h"
#include "core/program/step_order.h"
#include "executor/engine/engine.h"
#include "tests/agreement/memory_state.h"
#include "tests/core/families/llama/tiny_llama.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

constexpr int kSteps = 50;
// Enough where bits are compared: what differs once differs from there on.
constexpr int kBitSteps = 20;
constexpr int64_t kGlobalBatch = 8;

TrainSetup SetupFor(int stage, testing::Offload offload, int ranks, int64_t grad_accum,
                    RecomputeConfig recompute) {
  TrainSetup setup = testing::BaseSetup(stage, ranks, Dtype::kF32, grad_accum, recompute);
  setup.batch.micro_batch = kGlobalBatch / (ranks * grad_accum);
  testing::SetOffload(setup, offload);
  setup.optimizer.lr = 3e-3;
  setup.optimizer.weight_decay = 0.1;
  if (stage == 3) {
    setup.zero.param_persistence_threshold = 60;
    setup.zero.max_reuse_distance = 3000;
  }
  return setup;
}

std::vector<double> Losses(const Program& program, uint64_t order_seed, uint64_t steps) {
  EngineOptions options;
  options.threads_per_rank = 1;
  options.swap_dir = "/tmp";
  options.random_order_seed = order_seed;
  Engine engine(program, options);
  engine.Init();
  std::vector<double> losses;
  for (uint64_t step = 0; step < steps; ++step) {
    losses.push_back(engine.Step(testing::RandomBatch(program, step)).loss_sum);
  }
  return losses;
}

std::vector<double> Losses(const TrainSetup& setup, uint64_t order_seed = 0,
                           bool flash_attention = true, uint64_t steps = kSteps) {
  LowerOptions lower;
  lower.flash_attention = flash_attention;
  return Losses(Lower(testing::TinyModel(), setup, lower), order_seed, steps);
}

// Reordering sums of a few thousand fp32 terms changes them by about 1e-6; over 50 steps of Adam,
// whose step is the sign of the gradient where that is small, differences grow by an order of
// magnitude or two.
constexpr double kTolerance = 2e-4;

void CheckFollows(const std::vector<double>& control, const std::vector<double>& losses) {
  REQUIRE(losses.size() == control.size());
  for (size_t i = 0; i < control.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(losses[i] - control[i]) <= kTolerance * control[i]);
  }
}

TEST_CASE("stages, offloads and ranks follow stage 0 on one rank") {
  const std::vector<double> control =
      Losses(SetupFor(0, testing::Offload::kNone, 1, 1, kNoRecompute));
  CHECK(control.back() < 0.9 * control.front());
  for (int stage = 0; stage <= 3; ++stage) {
    for (testing::Offload offload : testing::OffloadsOf(stage)) {
      for (int ranks : {1, 2, 4, 8}) {
        CAPTURE(stage);
        CAPTURE(testing::OffloadLabel(offload));
        CAPTURE(ranks);
        CheckFollows(control, Losses(SetupFor(stage, offload, ranks, 1, kNoRecompute)));
      }
      CheckFollows(control, Losses(SetupFor(stage, offload, 2, 4, FullRecompute())));
    }
  }
}

TEST_CASE("rows shorter than the model's positions: the others' gradients are zero everywhere") {
  const auto norms = [](int stage, testing::Offload offload, int ranks) {
    const TrainSetup setup = SetupFor(stage, offload, ranks, 2, kNoRecompute);
    const Program program = Lower(testing::TinyModel({.positions = 16}), setup);
    EngineOptions options;
    options.threads_per_rank = 1;
    options.swap_dir = "/tmp";
    Engine engine(program, options);
    engine.Init();
    std::vector<double> norms;
    for (uint64_t step = 0; step < 4; ++step) {
      norms.push_back(
          static_cast<double>(engine.Step(testing::RandomBatch(program, step)).grad_norm));
    }
    return norms;
  };
  const std::vector<double> control = norms(0, testing::Offload::kNone, 1);
  for (int stage = 0; stage <= 3; ++stage) {
    for (testing::Offload offload : testing::OffloadsOf(stage)) {
      for (int ranks : {1, 2}) {
        CAPTURE(stage);
        CAPTURE(testing::OffloadLabel(offload));
        CAPTURE(ranks);
        CheckFollows(control, norms(stage, offload, ranks));
      }
    }
  }
}

TEST_CASE("shard groups of any size follow stage 0 on one rank") {
  const std::vector<double> control =
      Losses(SetupFor(0, testing::Offload::kNone, 1, 1, kNoRecompute));
  for (const testing::Groups& of : testing::kGroups) {
    for (auto cell : testing::HybridCells({of}, Dtype::kF32, {1, 2})) {
      CAPTURE(cell.name);
      if (cell.setup.batch.grad_accum * of.ranks > kGlobalBatch) continue;
      TrainSetup setup = SetupFor(cell.setup.zero.stage, testing::Offload::kNone, of.ranks,
                                  cell.setup.batch.grad_accum, kNoRecompute);
      setup.zero = cell.setup.zero;
      CheckFollows(control, Losses(setup));
    }
  }
}

TEST_CASE("recompute of any kind trains with the same bits: the same kernels on the same inputs") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int64_t grad_accum : {1, 2}) {
        CAPTURE(DtypeName(dtype));
        CAPTURE(stage);
        CAPTURE(grad_accum);
        const auto losses = [&](RecomputeConfig recompute, uint64_t order_seed = 0) {
          TrainSetup setup = SetupFor(stage, testing::Offload::kNone, 2, grad_accum, recompute);
          setup.precision.dtype = setup.precision.grad_accum_dtype = dtype;
          return Losses(setup, order_seed, true, kBitSteps);
        };
        const std::vector<double> kept = losses(kNoRecompute);
        CHECK(losses(kSelectiveRecompute) == kept);
        CHECK(losses(kSelectiveRecompute, 7) == kept);
        CHECK(losses(FullRecompute()) == kept);
      }
    }
  }
}

TEST_CASE("activations train with the same bits wherever they are meanwhile, in any legal order") {
  ModelSpec llama = testing::TinyLlama(Qwen3());
  llama.layers = 5;
  for (const ModelSpec& model : {testing::TinyModel(5), llama}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const testing::Offload offload : testing::OffloadsOf(stage)) {
        const int64_t grad_accum = offload == testing::Offload::kNone ? 1 : 2;
        const auto losses = [&](RecomputeConfig recompute, uint64_t order_seed) {
          TrainSetup setup = SetupFor(stage, offload, 2, grad_accum, recompute);
          setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kBF16;
          return Losses(Lower(model, setup, {}), order_seed, 4);
        };
        CAPTURE(model.name);
        CAPTURE(stage);
        CAPTURE(testing::OffloadLabel(offload));
        const std::vector<double> kept = losses(kNoRecompute, 0);
        for (const RecomputeConfig& homes : testing::Homes()) {
          CAPTURE(testing::HomesName(homes));
          CHECK(losses(homes, 0) == kept);
          CHECK(losses(homes, 19) == kept);
        }
      }
    }
  }
}

TEST_CASE("rows by tiles train like whole ones, with the same bits in any legal order") {
  ModelSpec llama = testing::TinyLlama(Llama());
  llama.layers = 5;
  LowerOptions tiles;
  tiles.tile_rows = 12;
  for (const ModelSpec& model : {testing::TinyModel(5), llama}) {
    for (const int stage : {0, 2, 3}) {
      for (const RecomputeConfig& homes : testing::Homes()) {
        CAPTURE(model.name);
        CAPTURE(stage);
        CAPTURE(testing::HomesName(homes));
        const TrainSetup setup =
            SetupFor(stage, stage == 2 ? testing::Offload::kOptimizer : testing::Offload::kNone, 2,
                     stage == 3 ? 2 : 1, homes);
        const Program program = Lower(model, setup, tiles);
        const std::vector<double> losses = Losses(program, 0, kBitSteps);
        CheckFollows(Losses(Lower(model, setup, {}), 0, kBitSteps), losses);
        CHECK(Losses(program, 23, kBitSteps) == losses);
      }
    }
  }
}

TEST_CASE("attention that is not fused trains like attention that is") {
  const std::vector<double> control =
      Losses(SetupFor(0, testing::Offload::kNone, 1, 1, kNoRecompute), 0, true, kBitSteps);
  for (int stage : {0, 2, 3}) {
    for (int ranks : {1, 2}) {
      for (int64_t grad_accum : {1, 2}) {
        CAPTURE(stage);
        CAPTURE(ranks);
        CAPTURE(grad_accum);
        const auto unfused = [&](RecomputeConfig recompute, uint64_t order_seed) {
          return Losses(SetupFor(stage, testing::Offload::kNone, ranks, grad_accum, recompute),
                        order_seed, false, kBitSteps);
        };
        const std::vector<double> losses = unfused(kNoRecompute, 0);
        CheckFollows(control, losses);
        CHECK(unfused(FullRecompute(), 0) == losses);
        CHECK(unfused(kSelectiveRecompute, 0) == losses);
        CHECK(unfused(FullRecompute(), 11) == losses);
      }
    }
  }
}

TEST_CASE("attention that is not fused generates from the same logits") {
  TrainSetup setup;
  setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kF32;
  setup.batch = {1, 1, 1, 8};
  std::vector<std::vector<float>> logits;
  for (bool flash_attention : {true, false}) {
    LowerOptions lower;
    lower.purpose = Purpose::kGenerate;
    lower.flash_attention = flash_attention;
    const Program program = Lower(testing::TinyModel(), setup, lower);
    EngineOptions options;
    options.threads_per_rank = 1;
    Engine engine(program, options);
    engine.Init();
    const std::vector<int32_t> tokens = {3, 1, 4, 1, 5, 9};
    logits.push_back(engine.Logits(tokens, 5));
  }
  REQUIRE(logits[0].size() == logits[1].size());
  for (size_t i = 0; i < logits[0].size(); ++i) {
    // Logits of fresh weights are below 1; some 40 fp32 kernels lead to them.
    CHECK(std::abs(logits[0][i] - logits[1][i]) < 1e-6f);
  }
}

TEST_CASE("any legal order of the streams gives the same bits") {
  for (int stage = 0; stage <= 3; ++stage) {
    for (testing::Offload offload : testing::OffloadsOf(stage)) {
      CAPTURE(stage);
      CAPTURE(testing::OffloadLabel(offload));
      const TrainSetup setup = SetupFor(stage, offload, 2, 2, FullRecompute());
      const std::vector<double> losses = Losses(setup, 0, true, kBitSteps);
      // Every step is in another order.
      for (uint64_t seed : {11u, 12u, 13u}) CHECK(Losses(setup, seed, true, kBitSteps) == losses);
    }
  }
}

TEST_CASE(
    "reductions that run on into the next micro-step train like stage 0, in any legal order") {
  const auto setup_of = [](int stage, testing::Offload offload, int ranks, int64_t grad_accum) {
    TrainSetup setup = SetupFor(stage, offload, ranks, grad_accum, kNoRecompute);
    setup.batch.micro_batch = 24 / (ranks * grad_accum);
    return setup;
  };
  const std::vector<double> control =
      Losses(setup_of(0, testing::Offload::kNone, 1, 1), 0, true, 6);
  for (const int stage : {2, 3}) {
    for (const testing::Offload offload : testing::OffloadsOf(stage)) {
      for (const int64_t grad_accum : {1, 2, 3, 4}) {
        CAPTURE(stage);
        CAPTURE(testing::OffloadLabel(offload));
        CAPTURE(grad_accum);
        for (const int ranks : {1, 2}) {
          const TrainSetup setup = setup_of(stage, offload, ranks, grad_accum);
          const std::vector<double> losses = Losses(setup, 0, true, 6);
          CheckFollows(control, losses);
          for (const uint64_t seed : {21u, 22u}) CHECK(Losses(setup, seed, true, 6) == losses);
        }
      }
    }
  }
}

TEST_CASE("a micro-step that does not wait for what the one before left trains otherwise") {
  TrainSetup setup = SetupFor(2, testing::Offload::kNone, 2, 4, kNoRecompute);
  Program program = Lower(testing::TinyModel(), setup);
  const std::vector<double> losses = Losses(program, 0, 4);
  auto& list = program.section(Section::kMicroStep);
  const auto free = std::find_if(list.begin(), list.end(), [](const Instruction& i) {
    return std::holds_alternative<Free>(i.op) && i.when == kTakesFromMicroStep;
  });
  REQUIRE(free != list.end());
  REQUIRE(std::holds_alternative<WaitEvent>(std::prev(free)->op));
  list.erase(std::prev(free));
  CHECK(Losses(program, 0, 4) == losses);  // list order hides it
  int wrong = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) wrong += Losses(program, seed, 4) != losses;
  CHECK(wrong > 0);
}

TEST_CASE("a resumed run at another stage, offload and rank count follows the first") {
  const TrainSetup first = SetupFor(3, testing::Offload::kNvme, 4, 1, FullRecompute());
  const std::vector<double> control = Losses(first);
  const Program program = Lower(testing::TinyModel(), first);
  EngineOptions options;
  options.threads_per_rank = 1;
  options.swap_dir = "/tmp";
  Engine engine(program, options);
  engine.Init();
  for (uint64_t step = 0; step < 20; ++step) engine.Step(testing::RandomBatch(program, step));
  testing::MemoryState saved(program.layout);
  std::vector<StateSink*> sinks(4, &saved);
  engine.Save(sinks);
  const std::vector<TrainSetup> setups = {first,
                                          SetupFor(0, testing::Offload::kNone, 1, 1, kNoRecompute),
                                          SetupFor(2, testing::Offload::kRatio, 2, 2, kNoRecompute),
                                          SetupFor(3, testing::Offload::kBoth, 8, 1, kNoRecompute)};
  for (size_t s = 0; s < setups.size(); ++s) {
    CAPTURE(s);
    const TrainSetup& setup = setups[s];
    const Program resumed_program = Lower(testing::TinyModel(), setup);
    Engine resumed(resumed_program, options);
    resumed.Init();
    StepState state = engine.state();
    resumed.Load(saved, true, &state);
    std::vector<double> losses(control.begin(), control.begin() + 20);
    for (uint64_t step = 20; step < kSteps; ++step) {
      losses.push_back(resumed.Step(testing::RandomBatch(resumed_program, step)).loss_sum);
    }
    CheckFollows(control, losses);
    if (s == 0) CHECK(losses == control);
  }
}

}  // namespace
}  // namespace zeroplan
