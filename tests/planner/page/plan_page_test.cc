#include "planner/page/plan_page.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>
#include <regex>

#include "core/base/units.h"
#include "tests/planner/page/page_reading.h"
#include "tests/planner/plan_fixture.h"

namespace zeroplan {
namespace {

// A plan with changes on all three axes.
struct PlanFixture {
  PlanFixture() : costs(hardware, ClusterShape{2, 2}) {
    StageBest stage;
    stage.stage = plan.setup.zero.stage;
    stage.candidate = CandidateOf(plan.setup);
    stage.estimate = plan.choice;
    report.stages = {stage};
    other = {CandidateOf(plan.setup), 5000, 0.1, 1'000'000'000};
    other.candidate.stage = 1;
    Claim more, less, slower, batch, of_two;
    more.gpu_memory_bytes = 160'000'000'000;
    more.flips_at = more.holds_from = 160e9;
    more.holds_to = 640e9;
    more.found = other;
    less.gpu_memory_bytes = 10'000'000'000;
    less.holds_from = 0;
    less.flips_at = less.holds_to = 10e9;  // nothing fits
    slower.bandwidth_scale = 0.25;
    slower.holds_from = 45e9;
    slower.flips_at = slower.holds_to = 112.5e9;
    slower.found = other;
    slower.gap = 0.033;
    batch.global_batch = 6;
    batch.flips_at = batch.holds_from = batch.holds_to = 6;
    batch.found = other;
    of_two = slower;  // of stages 2 and 3 alone: another question
    of_two.stages = {2, 3};
    report.advice = {{AdviceKind::kMemory, "more", {more}},
                     {AdviceKind::kMemory, "less", {less}},
                     {AdviceKind::kCrossover, "slower", {slower}},
                     {AdviceKind::kBatch, "batch", {batch}},
                     {AdviceKind::kTwoOrThree, "of two", {of_two}}};
  }

  PlanPageInputs Inputs() const {
    return {plan,
            report,
            {{{CandidateOf(plan.setup), 6000, 0.1, 900'000'000}, true}, {other, false}},
            ScarcestLink{false, 450e9},
            costs,
            hardware};
  }

  HardwareProfile hardware = LoadProfile(std::string(kDefaultProfile));
  Plan plan = SmallPlan();
  Found other;
  CostModel costs;
  PlanReport report;
};

TEST_CASE("bands part an axis where a claim says, and letters name the table's rows") {
  const PlanFixture fixture;
  const Picture picture = FlipPicture(fixture.Inputs());
  using Strings = std::vector<std::string>;
  // memory: below, now, from; bandwidth: below, now
  CHECK(Attributes(picture.wide, "rect", "data-letter") == Strings{"B", "A", "C", "D", "A"});
  const Strings begins = Attributes(picture.wide, "rect", "data-begin"),
                ends = Attributes(picture.wide, "rect", "data-end");
  CHECK(std::stod(ends[0]) == 10e9);
  CHECK(std::stod(begins[1]) == 10e9);
  CHECK(std::stod(ends[1]) == 160e9);
  CHECK(std::stod(begins[2]) == 160e9);
  CHECK(std::stod(ends[2]) == 640e9);
  CHECK(std::stod(begins[3]) == 45e9);
  CHECK(std::stod(ends[3]) == 112.5e9);
  Strings letters, where, answers;
  for (const auto& row : picture.table.rows) {
    REQUIRE(row.size() == picture.table.heads.size());
    letters.push_back(row[0]);
    where.push_back(row[1]);
    answers.push_back(row[2]);
  }
  CHECK(letters == Strings{"A", "B", "C", "D", "E"});
  CHECK(where == Strings{"now", "up to 10.0 GB a GPU", "160 GB to 640 GB a GPU",
                         "45 GB/s to 112 GB/s between the GPUs (each one, each direction)",
                         "with 6 sequences a step"});
  CHECK(answers[0] == fixture.plan.runtime->ChoiceText(fixture.plan.setup));
  CHECK(answers[1] == "nothing fits");
  CHECK(answers[2].find("stage 1") == 0);
  CHECK(picture.table.rows[3].back() == "within 3.3 %");
}

TEST_CASE("a plan's page has every picture once in each width, and what plan says") {
  const PlanFixture fixture;
  const std::string html =
      RenderPage(PlanPage(fixture.Inputs(), {"zeroplan plan", {"⟦dtype⟧ bf16"}, {"note"}}));
  CHECK(Attributes(html, "section", "id") ==
        std::vector<std::string>{"gpu-memory", "step-time", "front", "flips", "step-memory"});
  CHECK(Count(html, "<svg ") == 10);
  CHECK(Count(html, "<table") == 5);
  CHECK(html.find("Why stage 2: &quot;it fits&quot;.") != std::string::npos);
  CHECK(html.find("<pre id=\"command\">zeroplan plan</pre>") != std::string::npos);
  CHECK(html.find("Assumed: ⟦dtype⟧ bf16") != std::string::npos);
}

TEST_CASE("a plan's page begins with the run in one sentence, and has margin and host memory") {
  PlanFixture fixture;
  CHECK(PlanPage(fixture.Inputs(), {}).answer.empty());  // no run is given
  fixture.report.goal.tokens = 10'000'000'000;
  fixture.report.goal.gpu_hour_price = 2.5;
  fixture.plan.cluster.gpus_per_node = 2;
  PlanPageInputs inputs = fixture.Inputs();
  const RunCost run = CostOf(fixture.report.goal, fixture.plan.setup.batch,
                             *fixture.plan.choice.time.total_seconds);
  const Page page = PlanPage(inputs, {});
  std::smatch parts;
  REQUIRE(
      std::regex_match(page.answer, parts,
                       std::regex("small on 10.0B tokens: HGX H200 \\(2 of 8 GPUs\\), ([0-9.]+) "
                                  "(h|min|s), ([0-9.,]+) at 2.5 a GPU-hour\\.")));
  const double unit = parts[2] == "h" ? 3600 : parts[2] == "min" ? 60 : 1;
  CHECK(std::stod(parts[1]) * unit == doctest::Approx(run.seconds).epsilon(0.01));
  std::string price = parts[3];
  std::erase(price, ',');
  CHECK(std::stod(price) == doctest::Approx(*run.price).epsilon(0.01));
  CHECK(page.title == "small on HGX H200 (2 of 8 GPUs): the plan");
  inputs.hw = "2xh200";
  CHECK(PlanPage(inputs, {}).title == "small on 2 x H200 SXM 141 GB: the plan");

  std::map<std::string, std::string> figures(page.figures.begin(), page.figures.end());
  const double margin = fixture.plan.runtime->LargestTimeError(
      fixture.plan.choice, fixture.plan.cluster, fixture.hardware);
  CHECK(figures["margin of error of the time"] ==
        (margin > 0 ? fmt::format("{:.0f} %", 100 * margin) : "not measured"));
  CHECK(figures["host memory of a node"] ==
        fmt::format("{} of 500 GB", FormatBytes(fixture.plan.choice.footprint.host.total())));
}

TEST_CASE("where nothing changes the answer no axis is drawn, and why is said") {
  PlanFixture fixture;
  fixture.report.advice.clear();
  CHECK(FlipPicture(fixture.Inputs()).wide.empty());
  CHECK(FlipPicture(fixture.Inputs()).about.find("Nowhere") == 0);
  PlanPageInputs quick = fixture.Inputs();
  quick.quick = true;
  CHECK(FlipPicture(quick).about == "Not looked for (⟦quick⟧).");
}

}  // namespace
}  // namespace zeroplan
