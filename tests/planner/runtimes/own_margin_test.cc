// What plans of zeroplan's own executor say of how sure their time is.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "benchmarks/scale_runs.h"
#include "hwprofiles/loader.h"
#include "planner/cluster.h"
#include "planner/estimate/estimate.h"
#include "planner/runtimes/runtimes.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

std::string MarginOf(const HardwareProfile& hardware, int gpus, double compute, double exposed) {
  ChoiceEstimate choice;
  choice.time.compute_seconds = compute;
  choice.time.exposed_comm_seconds = exposed;
  Cluster cluster;
  cluster.gpus = gpus;
  cluster.gpus_per_node = 8;
  std::string text = OwnExecutor().MarginText(cluster, hardware);
  for (const std::string& caution : OwnExecutor().Cautions(choice, cluster, hardware)) {
    text += " " + caution;
  }
  return text;
}

TEST_CASE("the margin is that of where the profile's figures come from") {
  HardwareProfile h200 = LoadProfile("hgx-h200");
  CHECK(Has(MarginOf(h200, 8, 1, 0.1), wording::kWithTheBuiltInProfile));
  h200.source = "mine.json";
  CHECK(Has(MarginOf(h200, 8, 1, 0.1), wording::kZeroplanHwMeasureMadeOn));
  h200.source = kFoundSource;  // found, but nobody measured it
  CHECK(Has(MarginOf(h200, 8, 1, 0.1), wording::kWithTheBuiltInProfile2));
  CHECK(Has(MarginOf(LoadProfile("dgx-h100"), 8, 1, 0.1), wording::kSixRunsOnAnotherTook));
  ChoiceEstimate pageable;
  pageable.setup.zero.stage = 1;
  pageable.setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  h200.node.adam_bandwidth->source = FigureSource::kMeasured;
  const double pinned_error = OwnExecutor().LargestTimeError(pageable, {}, h200);
  CHECK(pinned_error > 0);
  pageable.setup.zero.offload_optimizer.pin_memory = false;
  CHECK(OwnExecutor().LargestTimeError(pageable, {}, h200) == std::max(pinned_error, 0.44));
  // Of what was compared with nothing, on one node or several.
  const HardwareProfile guessed = LoadProfile("hgx-h200");
  Cluster two_nodes;
  two_nodes.gpus = 16;
  two_nodes.gpus_per_node = 8;
  CHECK(OwnExecutor().LargestTimeError(pageable, {}, guessed) == 0);
  CHECK(OwnExecutor().LargestTimeError(pageable, two_nodes, guessed) == 0);
  const auto cautions = OwnExecutor().Cautions(pageable, {}, h200);
  REQUIRE(cautions.size() == 1);
  CHECK(Has(cautions[0], wording::kNotPageLocked));
  const std::string a100 = MarginOf(LoadProfile("dgx-a100-80gb"), 8, 1, 0.1);
  CHECK(Has(a100, wording::kTakenOverFromAn));
  CHECK(Lacks(a100, "Across nodes"));
}

TEST_CASE("across nodes it says that nothing was measured, and names first what most rests on") {
  const HardwareProfile hardware = LoadProfile("dgx-a100-80gb");
  const std::string network = MarginOf(hardware, 64, 1, 3);
  CHECK(Has(network, wording::kAcrossNodesItWasNot));
  CHECK(Has(network, wording::kNetworkReachedInProfileSays));
  CHECK(Has(network, wording::kTheTimeRestsMostOn));
  CHECK(Has(MarginOf(hardware, 64, 3, 1), wording::kTheTimeRestsMostOn2));
}

// What the text says of LLM.Q's runs, from the runs.
TEST_CASE("published runs of LLM.Q are as far from what is predicted as the margin says") {
  std::vector<double> h100, others;  // step predicted over measured, less 1
  for (const PublishedRun& run : ReadScaleRuns(SourcePath(""))) {
    if (run.framework != "LLM.Q") continue;
    const auto tokens = static_cast<double>(run.micro_batch * run.grad_accum * run.seq);
    const double error = StepSeconds(run) * run.measured / tokens - 1;
    CAPTURE(run.id);
    CAPTURE(error);
    (run.machine.find("h100") != std::string::npos ? h100 : others).push_back(error);
  }
  REQUIRE(h100.size() == 8);
  CHECK(*std::min_element(h100.begin(), h100.end()) > -0.005);
  CHECK(*std::max_element(h100.begin(), h100.end()) < 0.045);
  REQUIRE(others.size() == 21);
  for (double& error : others) error = std::abs(error);
  std::sort(others.begin(), others.end());
  CHECK(others[10] < 0.035);
  CHECK(others.back() < 0.135);
}

}  // namespace
}  // namespace zeroplan
