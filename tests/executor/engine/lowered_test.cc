// Programs as the lowering makes them, run by the engine: a small model trains, at every stage
// alike.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "core/lowering/lower.h"
#include "core/program/verify.h"
#include "executor/engine/engine.h"
#include "tests/executor/engine/small_training.h"
#include "tests/executor/engine/tiny_program.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

using namespace small_training;

// fp32 sums in another order: a few units in the last place, grown by three optimizer steps.
constexpr double kTolerance = 2e-4;

TEST_CASE("lowered: every stage and rank count trains alike") {
  const Outcome control = Train(Setup(0, 1, 4));
  CHECK(control.steps[0].loss_sum == doctest::Approx(std::log(60.0)).epsilon(0.05));
  CHECK(control.steps[2].loss_sum < control.steps[0].loss_sum);
  CHECK(control.eval_loss < control.steps[2].loss_sum);
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int world : {1, 2, 4}) {
      CAPTURE(stage);
      CAPTURE(world);
      // The same global batch of 4, sample by sample.
      const Outcome outcome = Train(Setup(stage, world, 4 / world));
      for (size_t step = 0; step < kSteps; ++step) {
        CHECK(outcome.steps[step].loss_sum ==
              doctest::Approx(control.steps[step].loss_sum).epsilon(kTolerance));
        CHECK(outcome.steps[step].grad_norm ==
              doctest::Approx(control.steps[step].grad_norm).epsilon(kTolerance));
        CHECK(outcome.steps[step].step == static_cast<int64_t>(step) + 1);
      }
      CHECK(outcome.touched[0] <= outcome.planned[0]);
    }
  }
}

TEST_CASE("lowered: any legal order of the streams gives the same bits") {
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    const Outcome listed = Train(Setup(stage, 3, 2));
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      EngineOptions options;
      options.random_order_seed = seed;
      const Outcome shuffled = Train(Setup(stage, 3, 2), options);
      for (size_t step = 0; step < kSteps; ++step) {
        CHECK(shuffled.steps[step].loss_sum == listed.steps[step].loss_sum);
        CHECK(shuffled.steps[step].grad_norm == listed.steps[step].grad_norm);
      }
      CHECK(shuffled.eval_loss == listed.eval_loss);
    }
  }
}

// Removes the micro-step's waits for gathers that the update left under way.
Program WithoutCarriedWaits(Program program) {
  std::vector<bool> carried(program.event_count, false);
  for (const Instruction& instruction : program.section(Section::kOptimizerStep)) {
    const auto* record = std::get_if<RecordEvent>(&instruction.op);
    if (record != nullptr && instruction.stream == Stream::kGather) carried[record->event] = true;
  }
  std::erase_if(program.section(Section::kMicroStep), [&](const Instruction& instruction) {
    const auto* wait = std::get_if<WaitEvent>(&instruction.op);
    return wait != nullptr && carried[wait->event];
  });
  return program;
}

TEST_CASE("lowered: gathers carried into the next step: random order shows a missing wait") {
  for (int stage = 1; stage <= 2; ++stage) {
    CAPTURE(stage);
    const Program program = Lower(SmallModel(), Setup(stage, 3, 2));
    const Program broken = WithoutCarriedWaits(program);
    const auto losses = [](const Program& of, uint64_t seed) {
      EngineOptions options;
      options.threads_per_rank = 1;
      options.random_order_seed = seed;
      Engine engine(of, options);
      engine.Init();
      std::vector<double> all;
      for (int step = 0; step < 4; ++step) all.push_back(engine.Step(CountingBatch{3}).loss_sum);
      all.push_back(engine.Evaluate(CountingBatch{3}));
      return all;
    };
    const std::vector<double> expected = losses(program, 0);
    CHECK(losses(broken, 0) == expected);  // list order hides it
    int wrong = 0;
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      CHECK(losses(program, seed) == expected);
      wrong += losses(broken, seed) != expected ? 1 : 0;
    }
    CHECK(wrong > 0);
  }
}

TEST_CASE("lowered: offload changes where states are, not what they are") {
  const TempDir dir;
  for (int stage = 1; stage <= 3; ++stage) {
    const Outcome control = Train(Setup(stage, 2, 2));
    for (const auto device : {OffloadDevice::kCpu, OffloadDevice::kNvme}) {
      CAPTURE(stage);
      CAPTURE(OffloadDeviceName(device));
      TrainSetup setup = Setup(stage, 2, 2);
      setup.zero.offload_optimizer.device = device;
      setup.zero.offload_optimizer.nvme_path = dir.path();
      EngineOptions options;
      options.swap_dir = dir.path();
      for (const uint64_t seed : {0, 7}) {
        options.random_order_seed = seed;
        const Outcome outcome = Train(setup, options);
        for (size_t step = 0; step < kSteps; ++step) {
          CHECK(outcome.steps[step].loss_sum ==
                doctest::Approx(control.steps[step].loss_sum).epsilon(kTolerance));
        }
      }
    }
  }
}

// A checkpoint in memory.
class Memory : public StateSource, public StateSink {
 public:
  void Write(const TensorRange& range, std::span<const float> values) override {
    const std::lock_guard lock(mutex_);
    std::vector<float>& tensor = tensors_[{range.tensor, range.state}];
    tensor.resize(std::max<size_t>(tensor.size(), range.begin + range.count));
    std::copy(values.begin(), values.end(), tensor.begin() + static_cast<int64_t>(range.begin));
  }
  void Read(const TensorRange& range, std::span<float> out) const override {
    const std::vector<float>& tensor = tensors_.at({range.tensor, range.state});
    REQUIRE(range.begin + range.count <= tensor.size());
    std::copy_n(tensor.begin() + static_cast<int64_t>(range.begin), range.count, out.begin());
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, StateKind>, std::vector<float>> tensors_;
};

TEST_CASE("lowered: a checkpoint resumes bit by bit at its layout, and closely at another") {
  const TrainSetup setup = Setup(3, 4, 1);
  const CountingBatch batch{4};
  Memory memory;
  const std::vector<StateSink*> sinks(4, &memory);
  const Program program = Lower(SmallModel(), setup);
  Engine engine(program, {});
  engine.Init();
  engine.Step(batch);
  engine.Save(sinks);
  const StepState saved = engine.state();
  const double expected = engine.Step(batch).loss_sum;
  const double after = engine.Step(batch).loss_sum;

  Engine same(program, {});
  same.Init();
  same.Load(memory, true, &saved);
  CHECK(same.Step(batch).loss_sum == expected);
  CHECK(same.Step(batch).loss_sum == after);

  const Program other = Lower(SmallModel(), Setup(1, 2, 2));
  Engine moved(other, {});
  moved.Init();
  moved.Load(memory, true, &saved);
  CHECK(moved.Step(CountingBatch{2}).loss_sum == doctest::Approx(expected).epsilon(kTolerance));
  CHECK(moved.Step(CountingBatch{2}).loss_sum == doctest::Approx(after).epsilon(kTolerance));
}

TEST_CASE("lowered: a request to stop comes out of the next step, at any stage") {
  for (const int world : {1, 2}) {
    for (int stage = 0; stage <= 3; ++stage) {
      CAPTURE(stage);
      const Program program = Lower(SmallModel(), Setup(stage, world, 1));
      Engine engine(program, {});
      engine.Init();
      CHECK(engine.Step(CountingBatch{world}).stop_requested == 0);
      engine.RequestStop();
      CHECK(engine.Step(CountingBatch{world}).stop_requested > 0);
    }
  }
}

TEST_CASE("lowered: the generate program continues what was trained") {
  TrainSetup setup = Setup(2, 2, 2);
  setup.optimizer.lr = 3e-3;
  const CountingBatch batch{2};
  Memory memory;
  const std::vector<StateSink*> sinks(2, &memory);
  const Program program = Lower(SmallModel(), setup);
  Engine engine(program, {});
  engine.Init();
  for (int step = 0; step < 60; ++step) engine.Step(batch);
  engine.Save(sinks);

  LowerOptions options;
  options.purpose = Purpose::kGenerate;
  const Program generate = Lower(SmallModel(), Setup(0, 1, 1), options);
  Engine generator(generate, {});
  generator.Init();
  generator.Load(memory, false, nullptr);
  const std::vector<int32_t> prompt = {0, 3, 6, 9, 12};
  const std::vector<float> logits = generator.Logits(prompt, 4);
  REQUIRE(logits.size() == 64);
  CHECK(std::max_element(logits.begin(), logits.begin() + 60) - logits.begin() == 15);
}

}  // namespace
}  // namespace zeroplan
