// fp16 training with dynamic loss scaling, through the engine: overflowing steps change nothing but
// the scale, at every stage and offload, and training goes on from there.
#include <doctest/doctest.h>

#include "core/lowering/lower.h"
#include "executor/engine/engine.h"
#include "tests/agreement/memory_state.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

void CheckSkips(TrainSetup setup) {
  setup.precision.initial_scale_power = 30;  // far beyond fp16's range: the first steps overflow
  setup.precision.hysteresis = 1;
  setup.optimizer.lr = 3e-3;
  const Program program = Lower(testing::TinyModel(), setup);
  EngineOptions options;
  options.threads_per_rank = 1;
  options.swap_dir = "/tmp";
  Engine engine(program, options);
  engine.Init();
  testing::MemoryState before(program.layout), after(program.layout);
  const auto save = [&](testing::MemoryState& to) {
    const std::vector<StateSink*> sinks(static_cast<size_t>(setup.batch.world_size), &to);
    engine.Save(sinks);
  };
  save(before);
  float scale = engine.state().loss_scale;
  int skipped = 0;
  StepState state = engine.Step(testing::RandomBatch(program, 0));
  while (state.skip != 0) {
    ++skipped;
    REQUIRE(skipped < 40);
    CHECK(state.step == 0);
    CHECK(state.loss_scale == scale / 2);
    scale = state.loss_scale;
    if (skipped == 1) {
      save(after);
      for (size_t t = 0; t < program.layout.tensors->size(); ++t) {
        CHECK(after.master(t) == before.master(t));
      }
    }
    state = engine.Step(testing::RandomBatch(program, 0));
  }
  CHECK(skipped > 5);
  CHECK(state.step == 1);
  CHECK(state.skipped_steps == skipped);
  CHECK(state.grad_norm > 0);
  CHECK(state.grad_norm < 100);
  const double first = state.loss_sum;
  for (uint64_t step = 1; step < 30; ++step) {
    state = engine.Step(testing::RandomBatch(program, step));
  }
  CHECK(state.loss_sum < first);
}

TEST_CASE("overflowing steps are skipped whole, then training proceeds") {
  for (int stage = 0; stage <= 3; ++stage) {
    for (testing::Offload offload : testing::OffloadsOf(stage)) {
      CAPTURE(stage);
      CAPTURE(testing::OffloadLabel(offload));
      TrainSetup setup = testing::BaseSetup(stage, 2, Dtype::kF16, 2, kNoRecompute);
      testing::SetOffload(setup, offload);
      CheckSkips(setup);
    }
  }
}

TEST_CASE("overflowing steps are skipped whole by all shard groups") {
  for (const auto& cell : testing::HybridCells({{4, 2}}, Dtype::kF16, {2})) {
    CAPTURE(cell.name);
    CheckSkips(cell.setup);
  }
}

}  // namespace
}  // namespace zeroplan
