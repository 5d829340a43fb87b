#include "planner/page/run_page.h"

#include <doctest/doctest.h>

#include "core/base/units.h"
#include "tests/planner/page/page_reading.h"
#include "tests/planner/plan_fixture.h"

namespace zeroplan {
namespace {

using Strings = std::vector<std::string>;

// Ten steps, the third without a loss; 12 were planned.
struct RunFixture {
  RunFixture()
      : plan(SmallPlan()),
        program(Lower(plan.model, plan.setup, plan.lower)),
        memory(WalkMemory(program)),
        hardware(LoadProfile(std::string(kDefaultProfile))),
        costs(hardware, ClusterShape{2, 2}) {}

  RunRecord Record(bool on_gpu) const {
    RunRecord record{.program = program, .memory = memory};
    record.backend = on_gpu ? "CUDA" : "CPU";
    record.planned_steps = 12;
    if (on_gpu) {
      record.costs = &costs;
      record.prediction = PredictRun(program, hardware, 2);
      record.limit_watts = 700;
    }
    for (int64_t i = 1; i <= 10; ++i) {
      RunStep step;
      step.step = i;
      if (i != 3) step.loss = 6.0 - 0.1 * static_cast<double>(i);
      step.step_seconds = 0.1 * static_cast<double>(i);
      step.tokens_per_second = 1000 + static_cast<double>(i);
      if (on_gpu) {
        step.exposed_comm_seconds = 0.01;
        step.exposed_offload_seconds = 0.02;
        step.device_used_bytes = 1'000'000'000 + static_cast<uint64_t>(i);
        step.watts = 600 + static_cast<double>(i);
      }
      record.steps.push_back(step);
    }
    record.validations = {{5, 5.75}, {10, 5.25}};
    record.saves = {10};
    RunEnd end;
    end.steps = 10;
    end.touched_bytes = program.arena_bytes;
    end.step_seconds_median = 0.55;
    record.end = end;
    return record;
  }

  Plan plan;
  Program program;
  MemoryReport memory;
  HardwareProfile hardware;
  CostModel costs;
};

TEST_CASE("a run on the CPU has what it can know") {
  const RunFixture fixture;
  const std::string html = RenderPage(RunPage(fixture.Record(false), {"zeroplan train", {}, {}}));
  CHECK(Attributes(html, "section", "id") == Strings{"loss", "speed", "arenas"});
  CHECK(html.find("5.2500") != std::string::npos);  // the last validation
  CHECK(html.find("predicted") == std::string::npos);
}

TEST_CASE("a run on GPUs stands beside its prediction") {
  const RunFixture fixture;
  const RunRecord record = fixture.Record(true);
  const std::string html = RenderPage(RunPage(record, {"zeroplan train", {}, {}}));
  CHECK(Attributes(html, "section", "id") ==
        Strings{"loss", "speed", "step-time", "arenas", "gpu-used", "gpu-power", "step-memory"});
  const std::optional<Picture> time = MeasuredTimePicture(record);
  REQUIRE(time);
  REQUIRE(time->table.rows.size() == 2);
  const std::map<int, double> sums = BarSums(time->wide);
  CHECK(sums.at(0) == doctest::Approx(*record.prediction->step_seconds));
  CHECK(sums.at(1) == doctest::Approx(0.55));  // the median step
  const Picture used = *UsedMemoryPicture(record);
  const uint64_t predicted = record.prediction->footprint.gpu_total();
  CHECK(used.wide.find("predicted " + FormatBytes(predicted)) != std::string::npos);
  CHECK(used.table.rows[0] == Strings{"1", FormatBytes(1'000'000'001)});
  CHECK(used.legend.size() == 2);
  const Picture power = *PowerPicture(record);
  CHECK(power.wide.find("limit 700 W") != std::string::npos);
  CHECK(power.table.rows[9] == Strings{"10", "610 W"});
}

TEST_CASE("pictures of the GPU say what is a mean") {
  const RunFixture fixture;
  RunRecord record = fixture.Record(true);
  CHECK(PowerPicture(record)->about.find("mean of") == std::string::npos);
  CHECK(PowerPicture(record)->table.note.empty());
  while (record.steps.size() < 600) record.steps.push_back(record.steps.back());
  for (const Picture& picture : {*PowerPicture(record), *UsedMemoryPicture(record)}) {
    CHECK(picture.about.find(" Each point is the mean of 2 steps") != std::string::npos);
    CHECK(picture.table.note.find("Each row is the mean of 50 steps") == 0);
  }
}

TEST_CASE("points are the steps, and a step without a loss has none") {
  const RunFixture fixture;
  const Picture loss = *LossPicture(fixture.Record(false));
  const Strings steps = Attributes(loss.wide, "circle", "data-x");
  CHECK(steps.size() == 9 + 2);  // and the validations
  CHECK(std::count(steps.begin(), steps.end(), "3") == 0);
  CHECK(loss.table.rows.size() == 10);
  CHECK(loss.table.rows[2] == Strings{"3", "not finite", ""});
  CHECK(loss.table.rows[4] == Strings{"5", "5.5000", "5.7500"});
  CHECK(loss.about.empty());
}

TEST_CASE("many steps become means of as many each") {
  std::vector<RunStep> steps;
  for (int64_t i = 1; i <= 1001; ++i) {
    RunStep step;
    step.step = i;
    step.loss = static_cast<double>(i);
    step.step_seconds = 2;
    step.tokens_per_second = static_cast<double>(i % 2);
    steps.push_back(step);
  }
  steps[5].loss.reset();
  const std::vector<RunStep> means = MeanSteps(steps, 300);
  REQUIRE(means.size() == 251);  // of 4, the last of 1
  CHECK(means[0].step == 4);
  CHECK(*means[0].loss == 2.5);
  CHECK(!means[1].loss);
  CHECK(means[0].step_seconds == 2);
  CHECK(means[0].tokens_per_second == 0.5);
  CHECK(means.back().step == 1001);
  CHECK(*means.back().loss == 1001);
  CHECK(MeanSteps(steps, 5000).size() == steps.size());
  CHECK(MeanSteps({}, 10).empty());
}

TEST_CASE("a run that fails, is cut short or goes on says so") {
  const RunFixture fixture;
  RunRecord record = fixture.Record(false);
  record.end->interrupted = true;
  record.done = 4;
  std::string html = RenderPage(RunPage(record, {}));
  CHECK(html.find("Interrupted after step 10 of 12.") != std::string::npos);
  CHECK(html.find("up to step 4 is not on this page") != std::string::npos);
  record.end.reset();
  record.failure = "training diverged <at step 10>";
  html = RenderPage(RunPage(record, {}));
  CHECK(html.find("The run did not end: training diverged &lt;at step 10&gt;") !=
        std::string::npos);
  record.steps.clear();
  record.validations.clear();
  html = RenderPage(RunPage(record, {}));
  CHECK(Attributes(html, "section", "id") == Strings{"arenas"});
}

}  // namespace
}  // namespace zeroplan
