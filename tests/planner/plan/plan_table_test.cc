// The table that plan's answer opens with.
#include "planner/plan/plan_table.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <sstream>

#include "planner/report/report_text.h"
#include "planner/runtimes/fitted.h"
#include "planner/runtimes/runtimes.h"
#include "tests/has.h"
#include "tests/planner/search_fixture.h"

namespace zeroplan {
namespace {

struct Answered {
  Plan plan;
  SearchResult result;
};

Answered Answer(SearchFixture& fixture) {
  Searcher searcher(fixture.inputs);
  SearchResult result = searcher.Run();
  REQUIRE(result.best.has_value());
  Plan plan = MakePlan(searcher, result);
  return {std::move(plan), std::move(result)};
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("the table of stages has a row each, marks the answer and says what the others lack") {
  SearchFixture fixture("gpt2-10b", 1);
  fixture.Capacity(32'000'000'000, 256'000'000'000);
  const auto [plan, result] = Answer(fixture);
  for (const size_t columns : {80, 100}) {
    const std::vector<std::string> lines =
        Lines(StageTable(plan, result, fixture.profile, columns, false));
    REQUIRE(lines.size() == 6);  // two of titles
    size_t marked = 0;
    for (size_t s = 0; s < 4; ++s) {
      const std::string& line = lines[s + 2];
      CAPTURE(line);
      CHECK(line.size() <= columns);
      CHECK(line[2] == static_cast<char>('0' + s));
      const StageBest& stage = result.stages[s];
      CHECK(Has(line, NumberCell(static_cast<double>(stage.estimate.footprint.gpu_total()) / 1e9)));
      if (line[0] == '>') {
        ++marked;
        CHECK(s == *result.best);
        // A narrow table lacks the step, which the choice's own line has.
        CHECK(Has(line, FormatSeconds(*plan.choice.time.total_seconds)) == (columns == 100));
      } else if (!stage.candidate) {
        CHECK(Has(line, columns == 100 ? "GPU memory short by " : " short"));
        CHECK(Lacks(line, "slower"));
      } else {
        CHECK((Has(line, " % slower") || Has(line, " % faster") || Has(line, "as fast")));
      }
    }
    CHECK(marked == 1);
  }
  const std::string painted = StageTable(plan, result, fixture.profile, 100, true);
  CHECK(Has(painted, "\x1b[32m> "));
}

// Not inlined: GCC takes the empty optional for one that is read (its bug 80635).
[[gnu::noinline]] void AddTorch(Footprint& footprint) { footprint.torch.emplace(); }

TEST_CASE(
    "the error beside a time is one that the margin's text names, the largest for the whole") {
  ChoiceEstimate choice, offloaded;
  choice.setup.zero.stage = offloaded.setup.zero.stage = 2;
  offloaded.setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  Cluster cluster;
  cluster.gpus = cluster.gpus_per_node = 1;
  AddTorch(choice.footprint);
  for (const char* name : {"hgx-h200", "dgx-h100", "dgx-a100-80gb", "rtx4090", "l40s"}) {
    for (const char* source : {"built in", "mine.json"}) {
      HardwareProfile hardware = LoadProfile(name);
      hardware.source = source;
      CAPTURE(name);
      CAPTURE(source);
      const std::string text = OwnExecutor().MarginText(cluster, hardware);
      CAPTURE(text);
      const auto error_of = [&](const ChoiceEstimate& of) {
        return 100 * OwnExecutor().LargestTimeError(of, cluster, hardware);
      };
      const bool by_shape = hardware.gpu.gemm.has_value();
      const double error = error_of(choice);
      CHECK(error > 0);
      CHECK(Has(text, fmt::format("{:.0f} %", error)));
      // Nothing was compared with offload to a host that nobody measured, nor on such a GPU.
      CHECK(error_of(offloaded) == 0);
      hardware.node.adam_bandwidth->source = FigureSource::kMeasured;
      CHECK((error_of(offloaded) > 0) == by_shape);
      if (by_shape) CHECK(Has(text, fmt::format("{:.0f} %", error_of(offloaded))));
      CHECK(error_of(choice) == error);
    }
  }
  // Of the others nothing is named that was not compared.
  CHECK(DeepSpeedRuntime().LargestTimeError(choice, cluster, LoadProfile("l40s")) == 0);
  CHECK(Fsdp2Runtime().LargestTimeError(choice, cluster, LoadProfile("rtx3090")) == 0);
  const HardwareProfile h100 = LoadProfile("dgx-h100");
  CHECK(Fsdp2Runtime().LargestTimeError(choice, cluster, h100) ==
        doctest::Approx(PublishedMarginOf("fsdp2", h100)->time.worst()));
  CHECK(DeepSpeedRuntime().LargestTimeError(choice, cluster, LoadProfile("hgx-h200")) ==
        doctest::Approx(kDeepSpeedMargins.chosen_worst));
}

}  // namespace
}  // namespace zeroplan
