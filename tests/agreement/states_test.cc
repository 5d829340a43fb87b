// Optimizer states of every kind: what they must not change, and what they may.
#include <doctest/doctest.h>

#include "core/lowering/lower.h"
#include "core/program/verify.h"
#include "cost_models/memory_walk.h"
#include "cost_models/traffic.h"
#include "executor/engine/engine.h"
#include "tests/agreement/memory_state.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

using testing::kStatesKinds;
using testing::MemoryState;
using testing::Offload;
using testing::StatesKind;

constexpr int64_t kStatesBatch = 8;
constexpr uint64_t kStatesSteps = 12;

TrainSetup SetupOf(int stage, Offload offload, int ranks, const StatesKind& kind) {
  TrainSetup setup = testing::BaseSetup(stage, ranks, Dtype::kBF16, 1, kNoRecompute);
  testing::SetOffload(setup, offload);
  setup.batch.micro_batch = kStatesBatch / ranks;
  setup.precision.master_weights = kind.masters;
  setup.precision.moment_dtype = kind.moments;
  setup.optimizer.lr = 3e-3;
  setup.optimizer.weight_decay = 0.1;
  return setup;
}

Program LowerTiny(const TrainSetup& setup) {
  LowerOptions lower;
  lower.checkpoint_chunk_elements = 700;
  return Lower(testing::TinyModel(), setup, lower);
}

EngineOptions Options(uint64_t order_seed = 0) {
  EngineOptions options;
  options.threads_per_rank = 1;
  options.swap_dir = "/tmp";
  options.random_order_seed = order_seed;
  return options;
}

// What a run leaves: its losses and all that a checkpoint has of it.
struct Left {
  std::vector<double> losses;
  MemoryState states;

  bool operator==(const Left& other) const {
    return losses == other.losses && states == other.states;
  }
};

Left Run(const TrainSetup& setup, uint64_t order_seed = 0) {
  const Program program = LowerTiny(setup);
  Engine engine(program, Options(order_seed));
  engine.Init();
  Left left{{}, MemoryState(program.layout)};
  for (uint64_t step = 0; step < kStatesSteps; ++step) {
    left.losses.push_back(engine.Step(testing::RandomBatch(program, step)).loss_sum);
  }
  std::vector<StateSink*> sinks(static_cast<size_t>(setup.batch.world_size), &left.states);
  engine.Save(sinks);
  return left;
}

template <typename Fn>
void ForEachPlace(Fn&& fn) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const Offload offload : testing::OffloadsOf(stage)) {
      CAPTURE(stage);
      CAPTURE(testing::OffloadLabel(offload));
      fn(stage, offload);
    }
  }
}

TEST_CASE("masters in halves train with the bits of whole ones, wherever they are") {
  for (const Dtype moments : {Dtype::kF32, Dtype::kBF16, Dtype::kDynamic8}) {
    CAPTURE(DtypeName(moments));
    ForEachPlace([&](int stage, Offload offload) {
      for (const int ranks : {1, 2}) {
        CAPTURE(ranks);
        const Left whole = Run(SetupOf(stage, offload, ranks, {MasterWeights::kFp32, moments}));
        const Left halves = Run(SetupOf(stage, offload, ranks, {MasterWeights::kSplit, moments}));
        CHECK(halves == whole);
        CHECK(whole.losses.back() < whole.losses.front());
      }
    });
  }
}

TEST_CASE("states of every kind train with the same bits at every stage, on GPU, host and disk") {
  for (const StatesKind& kind : kStatesKinds) {
    CAPTURE(testing::StatesLabel(kind));
    const Left control = Run(SetupOf(0, Offload::kNone, 1, kind));
    CHECK(control.losses.back() < control.losses.front());
    ForEachPlace([&](int stage, Offload offload) {
      CHECK(Run(SetupOf(stage, offload, 1, kind)) == control);
    });
  }
}

TEST_CASE("states of every kind train with the same bits in any legal order of the streams") {
  for (const StatesKind& kind : kStatesKinds) {
    CAPTURE(testing::StatesLabel(kind));
    ForEachPlace([&](int stage, Offload offload) {
      const TrainSetup setup = SetupOf(stage, offload, 2, kind);
      const Left left = Run(setup);
      for (const uint64_t seed : {21u, 22u}) CHECK(Run(setup, seed) == left);
    });
  }
}

TEST_CASE("states of every kind are what was saved, on any number of ranks and at any stage") {
  for (const StatesKind& kind : kStatesKinds) {
    CAPTURE(testing::StatesLabel(kind));
    const Left saved = Run(SetupOf(1, Offload::kNone, 1, kind));
    ForEachPlace([&](int stage, Offload offload) {
      for (const int ranks : {1, 2, 4}) {
        CAPTURE(ranks);
        const Program program = LowerTiny(SetupOf(stage, offload, ranks, kind));
        Engine engine(program, Options());
        engine.Init();
        engine.Load(saved.states, true, nullptr);
        MemoryState again(program.layout);
        const std::vector<StateSink*> sinks(static_cast<size_t>(ranks), &again);
        engine.Save(sinks);
        CHECK(again == saved.states);
      }
    });
  }
}

TEST_CASE("a run that is loaded goes on with the bits of one that was not stopped") {
  for (const StatesKind& kind : kStatesKinds) {
    CAPTURE(testing::StatesLabel(kind));
    ForEachPlace([&](int stage, Offload offload) {
      const TrainSetup setup = SetupOf(stage, offload, 2, kind);
      const Program program = LowerTiny(setup);
      const auto step = [&](Engine& engine, uint64_t at) {
        return engine.Step(testing::RandomBatch(program, at));
      };
      Engine first(program, Options());
      first.Init();
      StepState state;
      for (uint64_t at = 0; at < 4; ++at) state = step(first, at);
      MemoryState saved(program.layout);
      const std::vector<StateSink*> sinks(2, &saved);
      first.Save(sinks);
      Engine second(program, Options());
      second.Init();
      second.Load(saved, true, &state);
      for (uint64_t at = 4; at < 8; ++at) {
        CHECK(step(second, at).loss_sum == step(first, at).loss_sum);
      }
    });
  }
}

// The bytes of a rank's parameters, unit by unit.
std::vector<std::byte> Params(const Engine& engine, const Program& program) {
  std::vector<std::byte> all;
  for (BufferId id = 0; id < program.buffers.size(); ++id) {
    const Buffer& buffer = program.buffers[id];
    if (buffer.role != Role::kParamFull || !buffer.persistent) continue;
    const std::span<const std::byte> bytes = engine.Peek(0, id);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

TEST_CASE("fresh parameters and first losses are the same for all masters") {
  std::vector<std::byte> first;
  std::vector<double> losses;
  for (const MasterWeights masters :
       {MasterWeights::kFp32, MasterWeights::kSplit, MasterWeights::kParam}) {
    CAPTURE(MasterWeightsName(masters));
    const Program program = LowerTiny(SetupOf(0, Offload::kNone, 1, {masters, Dtype::kF32}));
    Engine engine(program, Options());
    engine.Init();
    const std::vector<std::byte> params = Params(engine, program);
    if (first.empty()) first = params;
    REQUIRE(params.size() == first.size());
    CHECK(params == first);
    losses.push_back(engine.Step(testing::RandomBatch(program, 0)).loss_sum);
    CHECK(losses.back() == losses.front());
  }
}

// As `setup`, with no clipping, so that updates may run in the backward pass.
TrainSetup InBackward(TrainSetup setup, bool in_backward = true) {
  setup.optimizer.gradient_clipping = 0;
  setup.zero.optimizer_in_backward = in_backward;
  return setup;
}

// Places, accumulation and ranks that updates in the backward pass may have.
template <typename Fn>
void ForEachInBackward(Fn&& fn) {
  ForEachPlace([&](int stage, Offload offload) {
    for (const int ranks : {1, 2, 4}) {
      for (const int64_t grad_accum : {1, 2}) {
        TrainSetup setup = SetupOf(stage, offload, ranks, {MasterWeights::kFp32, Dtype::kF32});
        setup.batch.grad_accum = grad_accum;
        setup.batch.micro_batch = kStatesBatch / ranks / grad_accum;
        if (FindSetupProblem(InBackward(setup))) continue;
        CAPTURE(ranks);
        CAPTURE(grad_accum);
        fn(setup);
      }
    }
  });
}

TEST_CASE("updates in the backward pass train with the bits of updates after it") {
  int cells = 0;
  ForEachInBackward([&](const TrainSetup& setup) {
    const Left after = Run(InBackward(setup, false));
    CHECK(Run(InBackward(setup)) == after);
    for (const uint64_t seed : {31u, 32u}) CHECK(Run(InBackward(setup), seed) == after);
    ++cells;
  });
  CHECK(cells == 48);
  // Gradients in fp32; small units of their own, which come first in the order of slots on disk.
  for (const int stage : {2, 3}) {
    for (const Offload offload : testing::OffloadsOf(stage)) {
      for (const int slots : {1, 2, 3, 4, 5}) {
        for (const Dtype grads : {Dtype::kBF16, Dtype::kF32}) {
          TrainSetup setup = SetupOf(stage, offload, 1, {MasterWeights::kFp32, Dtype::kF32});
          setup.zero.param_persistence_threshold = 1000;
          setup.zero.offload_optimizer.buffer_count = slots;
          setup.zero.sub_group_elements = 700;
          setup.precision.grad_accum_dtype = grads;
          if (FindSetupProblem(InBackward(setup))) continue;
          if (offload != Offload::kNvme && slots != 4) continue;
          CAPTURE(testing::OffloadLabel(offload));
          CAPTURE(slots);
          CAPTURE(DtypeName(grads));
          CHECK(Run(InBackward(setup)) == Run(InBackward(setup, false)));
        }
      }
    }
  }
  for (const StatesKind& kind : kStatesKinds) {
    CAPTURE(testing::StatesLabel(kind));
    for (const Offload offload : {Offload::kNone, Offload::kOptimizer, Offload::kBoth}) {
      const TrainSetup setup = SetupOf(3, offload, 2, kind);
      CHECK(Run(InBackward(setup)) == Run(InBackward(setup, false)));
    }
  }
}

TEST_CASE("updates in the backward pass: memory, traffic and order are the plan's") {
  ForEachInBackward([&](const TrainSetup& given) {
    const TrainSetup setup = InBackward(given);
    const Program program = LowerTiny(setup);
    for (const Violation& violation : Verify(program, 1)) FAIL(violation.message);
    Engine engine(program, Options());
    engine.Init();
    engine.TakeTraffic();
    engine.Step(testing::RandomBatch(program, 0));
    const Engine::Traffic traffic = engine.TakeTraffic();
    const StepTraffic planned = WalkTraffic(program);
    CHECK(traffic.collective_bytes == planned.collective_bytes);
    CHECK(traffic.device_to_host_bytes == planned.device_to_host_bytes);
    CHECK(traffic.host_to_device_bytes == planned.host_to_device_bytes);
    for (size_t s = 0; s < kSpaces; ++s)
      CHECK(engine.high_water().touched_bytes[s] <= program.arena_bytes[s]);
  });
  // Gradients are never all there at once: two layers' at most, of eight.
  TrainSetup setup = SetupOf(2, Offload::kNone, 1, {MasterWeights::kFp32, Dtype::kF32});
  const auto device = [&](bool in_backward) {
    LowerOptions lower;
    return WalkMemory(Lower(testing::TinyModel(8), InBackward(setup, in_backward), lower))
        .arena_bytes[0];
  };
  const uint64_t grads = 2 * testing::TinyModel(8).ParamCount();
  CHECK(device(true) + grads / 2 < device(false));
}

TEST_CASE("a norm that is not finite is said after updates in the backward pass") {
  TrainSetup setup = InBackward(SetupOf(2, Offload::kNone, 1, {MasterWeights::kFp32, Dtype::kF32}));
  setup.optimizer.lr = 1e30;  // the second step's numbers overflow
  const Program program = LowerTiny(setup);
  Engine engine(program, Options());
  engine.Init();
  CHECK(engine.Step(testing::RandomBatch(program, 0)).skip == kTaken);
  CHECK(engine.Step(testing::RandomBatch(program, 1)).skip != kTaken);
}

TEST_CASE("programs with states of every kind pass Verify") {
  for (const auto& cell : testing::StatesCells(testing::AllCells({1, 2}, {Dtype::kBF16}, {1, 2}))) {
    CAPTURE(cell.name);
    for (const Violation& violation : Verify(LowerTiny(cell.setup), 1)) FAIL(violation.message);
  }
}

}  // namespace
}  // namespace zeroplan
