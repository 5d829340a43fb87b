// The lanes and waits of steps that can be played on paper, and sums of a lowered one.
#include "planner/explain/explain.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>

#include "cost_models/step_time.h"
#include "tests/planner/plan_fixture.h"

namespace zeroplan {
namespace {

// A micro-step written by hand, each instruction with its milliseconds.
class Script {
 public:
  void Run(Stream stream, Op op, double ms, Phase phase = Phase::kForward, int16_t layer = -2) {
    Instruction instruction{op};
    instruction.stream = stream;
    instruction.phase = phase;
    instruction.layer = layer;
    program.section(Section::kMicroStep).push_back(instruction);
    seconds_.push_back(ms * 1e-3);
  }
  void Compute(double ms, Phase phase = Phase::kForward) {
    Run(Stream::kCompute, LaunchKernel{KernelId::kFill}, ms, phase);
  }
  void Gather(double ms) {
    Run(Stream::kGather, Collective{CollectiveKind::kAllGather, Dtype::kBF16}, ms);
  }
  EventId Record(Stream stream) {
    Run(stream, RecordEvent{program.event_count}, 0);
    return program.event_count++;
  }
  void Wait(Stream stream, EventId event) { Run(stream, WaitEvent{event}, 0); }
  PlayedPart Play(const OverlapRates& rates = {}) {
    PlayedPart played{Section::kMicroStep, kOnly, 0, 1, {}, seconds_, {}};
    played.time =
        Timeline().Play(program, Section::kMicroStep, kOnly, seconds_, rates, &played.spans);
    return played;
  }

  Program program;

 private:
  std::vector<double> seconds_;
};

std::string Times(size_t n, char c) { return std::string(n, c); }

TEST_CASE("DrawLanes: two streams, exactly") {
  // Gather 30 ms beside compute 20 ms; compute waits 10 ms, then forward 10, backward 40: 80 ms in
  // all, one column a millisecond.
  Script script;
  script.Gather(30);
  const EventId gathered = script.Record(Stream::kGather);
  script.Compute(20);
  script.Wait(Stream::kCompute, gathered);
  script.Compute(10);
  script.Compute(40, Phase::kBackward);
  const PlayedPart played = script.Play();
  const std::string drawn = DrawLanes(script.program, played, 100);
  CHECK(drawn == "compute        " + Times(20, 'F') + Times(10, '.') + Times(10, 'F') +
                     Times(40, 'B') + "\n" +  //
                     "gather         " + Times(30, 'g') + Times(50, '.') + "\n" +
                     "               |0.00               |20.00              |40.00              "
                     "|60.00     80.00 ms|\n");
  CHECK(LaneLegend(drawn) == "F forward, B backward, g gather, . idle");

  const std::vector<ComputeWait> waits = ComputeWaits(script.program, played);
  REQUIRE(waits.size() == 1);
  CHECK(waits[0].seconds == doctest::Approx(0.010));
  CHECK(waits[0].waited_for == 0);  // the gather
}

TEST_CASE("DrawLanes: half a column or more shows its kind, less shows that there was something") {
  // 160 ms: a column is 2 ms.
  Script script;
  script.Compute(160);
  script.Gather(1);  // half of the first column
  const EventId first = script.Record(Stream::kGather);
  script.Run(Stream::kHostToDevice, Copy{}, 0.5);  // a quarter
  script.Wait(Stream::kReduce, first);
  // From 1 to 4.5 ms: half of column 0, all of column 1, a quarter of column 2.
  script.Run(Stream::kReduce, Collective{CollectiveKind::kReduceScatter, Dtype::kBF16}, 3.5);
  const std::string drawn = DrawLanes(script.program, script.Play(), 100);
  CHECK(drawn.find("gather         g" + Times(79, '.') + "\n") != std::string::npos);
  CHECK(drawn.find("host_to_device -" + Times(79, '.') + "\n") != std::string::npos);
  CHECK(drawn.find("reduce         rr-" + Times(77, '.') + "\n") != std::string::npos);
  CHECK(drawn.find("storage") == std::string::npos);
}

TEST_CASE("ComputeWaits: through other streams, and to the end of the section") {
  // Compute 1 ms; copies up 5 ms; the gather waits for them and takes 2 ms; compute waits for the
  // gather from 1 to 7. A copy down of 3 ms begins after the last kernel (8) and ends the section.
  Script script;
  script.Run(Stream::kHostToDevice, Copy{}, 5);
  const EventId copied = script.Record(Stream::kHostToDevice);
  script.Wait(Stream::kGather, copied);
  script.Gather(2);
  const EventId gathered = script.Record(Stream::kGather);
  script.Compute(1);
  script.Wait(Stream::kCompute, gathered);
  script.Compute(1);
  const EventId done = script.Record(Stream::kCompute);
  script.Wait(Stream::kDeviceToHost, done);
  script.Run(Stream::kDeviceToHost, Copy{}, 3);
  const std::vector<ComputeWait> waits = ComputeWaits(script.program, script.Play());
  REQUIRE(waits.size() == 3);
  CHECK(waits[0].seconds == doctest::Approx(0.004));  // 1 to 5: the copy that the gather needs
  CHECK(waits[0].waited_for == 0);
  CHECK(waits[1].seconds == doctest::Approx(0.002));
  CHECK(waits[1].waited_for == 3);
  CHECK(waits[2].seconds == doctest::Approx(0.003));
  CHECK(waits[2].waited_for == 10);
}

TEST_CASE("ComputeWaits: a stream with nothing of its own passes on what it waits for") {
  Script script;
  script.Run(Stream::kHost, LaunchKernel{KernelId::kFill}, 4);
  const EventId host = script.Record(Stream::kHost);
  script.Wait(Stream::kGather, host);
  const EventId gathered = script.Record(Stream::kGather);
  script.Wait(Stream::kCompute, gathered);
  script.Compute(1);
  const std::vector<ComputeWait> waits = ComputeWaits(script.program, script.Play());
  REQUIRE(waits.size() == 1);
  CHECK(waits[0].seconds == doctest::Approx(0.004));
  CHECK(waits[0].waited_for == 0);
}

TEST_CASE("ComputeWaits and slowed kernels make the exposed seconds of every lowered section") {
  const HardwareProfile hardware = LoadProfile(std::string(kDefaultProfile));
  const CostModel costs(hardware, ClusterShape{2, 2});
  for (int stage : {1, 2, 3}) {
    for (OffloadDevice device : {OffloadDevice::kNone, OffloadDevice::kCpu, OffloadDevice::kNvme}) {
      Plan plan = SmallPlan();
      plan.setup.batch.grad_accum = 5;
      plan.setup.zero.stage = stage;
      plan.setup.zero.offload_optimizer.device = device;
      if (stage == 3) plan.setup.zero.offload_param.device = device;
      const Program program = Lower(plan.model, plan.setup, plan.lower);
      double total = 0;
      for (const PlayedPart& played : StepTimer(costs).PlayStep(program)) {
        const SectionTime& time = played.time;
        total += static_cast<double>(played.times) * time.total_seconds;
        double waited = 0, slowed = 0;
        for (const ComputeWait& wait : ComputeWaits(program, played)) {
          waited += wait.seconds;
          CHECK(wait.waited_for >= 0);
        }
        for (const PlayedSpan& span : played.spans) {
          if (program.section(span.section)[span.index].stream != Stream::kCompute) continue;
          slowed += span.end_seconds - span.begin_seconds - played.seconds[span.index];
        }
        CHECK(waited + slowed ==
              doctest::Approx(time.total_seconds - time.compute_seconds - time.optimizer_seconds));
      }
      CHECK(total == doctest::Approx(StepTimer(costs).Time(program).total_seconds));
    }
  }
}

TEST_CASE("Explain: the sections are the step, nothing is wider than 100 columns") {
  const HardwareProfile hardware = LoadProfile(std::string(kDefaultProfile));
  const CostModel costs(hardware, ClusterShape{2, 2});
  for (int64_t grad_accum : {1, 2, 3, 9}) {
    Plan plan = SmallPlan();
    plan.setup.batch.grad_accum = grad_accum;
    const Program program = Lower(plan.model, plan.setup, plan.lower);
    const ChoiceEstimate choice = EstimateProgram(program, plan.cluster, &costs);
    const std::string text = Explain(program, choice, plan.cluster, costs, 100);
    CAPTURE(text);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 100);
    for (const char* said :
         {"ZeRO stage 2, optimizer on cpu: ", "it fits", "Memory\n", "forward", "Time of one step",
          "update", "in all", "compute", "idle", "What the compute stream waits for", "adamw"}) {
      CAPTURE(std::string(said));
      CHECK(text.find(said) != std::string::npos);
    }
    // On the host gradients that are written first take as long as those that are added.
    CHECK((text.find("middle micro-step x 7") != std::string::npos) == (grad_accum == 9));
    CHECK((text.find("One middle micro-step") != std::string::npos) == (grad_accum >= 3));
    CHECK((text.find("One last micro-step") != std::string::npos) == (grad_accum == 2));
    CHECK((text.find("One micro-step") != std::string::npos) == (grad_accum == 1));
  }
}

}  // namespace
}  // namespace zeroplan
