// What plans of zeroplan's own executor say of how sure their time is.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <vector>

#include "benchmarks/published_steps.h"
#include "benchmarks/scale_runs.h"
#include "hwprofiles/loader.h"
#include "planner/cluster.h"
#include "planner/estimate/estimate.h"
#include "planner/runtimes/fitted.h"
#include "planner/runtimes/runtimes.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/planner/runtimes/runtime_rows.h"
#include "tests/share_off.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

// "18,614".
std::string Thousands(double value) {
  const auto whole = std::llround(value);
  return fmt::format("{},{:03}", whole / 1000, whole % 1000);
}

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

// Runs of programs whose kernels are about as fast as zeroplan's, by card: by how much each took
// more than predicted.
std::map<std::string, std::vector<double>> LikeKernels() {
  std::map<std::string, std::vector<double>> by_card;
  for (const PublishedRun& run : ReadScaleRuns(SourcePath(""))) {
    if (run.framework != "LLM.Q") continue;
    const auto tokens = static_cast<double>(run.micro_batch * run.grad_accum * run.seq);
    by_card[LoadProfile(run.machine).gpu.name].push_back(
        ShareOff(StepSeconds(run), tokens / run.measured));
  }
  for (const PublishedShape& run : ReadOwnShapes(SourcePath(""))) {
    const std::string card = LoadProfile(run.machine).gpu.name;
    // An H100's margin names LLM.Q's runs alone.
    if (!IsTuned(run) || card == "NVIDIA H100 SXM") continue;
    by_card[card].push_back(MeasuredOverPredicted(run) - 1);
  }
  return by_card;
}

TEST_CASE("published runs took as much more than predicted as the margin of their card says") {
  const auto by_card = LikeKernels();
  size_t compared = 0;
  for (const PublishedMargin& margin : kPublishedMargins) {
    if (margin.runtime != "zeroplan") continue;
    CAPTURE(margin.gpu);
    const std::vector<double>& errors = by_card.at(std::string(margin.gpu));
    CAPTURE(ErrorsText(errors));
    CheckErrors(margin.time, errors);
    ++compared;
  }
  CHECK(compared == by_card.size());
}

TEST_CASE("a card's own margin is of runs on that card") {
  ChoiceEstimate choice;
  const auto error = [&](const char* hw) {
    return OwnExecutor().LargestTimeError(choice, {}, LoadProfile(hw));
  };
  const auto text = [](const char* hw) { return OwnExecutor().MarginText({}, LoadProfile(hw)); };
  CHECK(error("l40s") == doctest::Approx(0.0603).epsilon(0.01));
  CHECK(Has(
      text("l40s"),
      "5 published runs of LLM.Q (its rate is fitted to them) on NVIDIA L40S took 3 % more or less "
      "than predicted in the median, 5 % more and 6 % less at most."));
  CHECK(Has(text("l40s"), "are taken to reach here, which nobody measured"));
  CHECK(Lacks(text("rtx4090"), "nobody measured"));
  // One run is named, and makes no margin.
  CHECK(error("rtx5090") == 0);
  CHECK(Has(text("rtx5090"), "1 published run of LLM.Q on NVIDIA GeForce RTX 5090 took 6 % less"));
  // No run, and none on another form either.
  for (const char* card : {"l40", "rtx3090", "gh200-96gb", "b200-180gb-sxm"}) {
    CAPTURE(card);
    CHECK(error(card) == 0);
    CHECK(Has(text(card), "No published run of a program with such kernels on this card"));
    CHECK(Lacks(text(card), "another form"));
  }
  for (const char* form : {"h100-80gb-pcie", "h100-94gb-nvl", "rtx4090-laptop", "a100-80gb-pcie"}) {
    CAPTURE(form);
    CHECK(error(form) == 0);
    CHECK(Has(text(form), "another form of it, took"));
  }
  CHECK(error("hgx-h200") > 0);
  CHECK(error("dgx-h100") > 0);
  // A profile that was measured on a card of which no run was compared.
  HardwareProfile measured = LoadProfile("hgx-h200");
  measured.gpu.name = "NVIDIA RTX 6000 Ada Generation";
  measured.source = "mine.json";
  CHECK(OwnExecutor().LargestTimeError(choice, {}, measured) == 0);
  CHECK(Has(OwnExecutor().MarginText({}, measured), "was compared on this card"));
}

TEST_CASE("activations on a host that nobody measured have no margin, as states there have none") {
  HardwareProfile h200 = LoadProfile("hgx-h200");
  ChoiceEstimate choice;
  CHECK(OwnExecutor().LargestTimeError(choice, {}, h200) > 0);
  for (const RecomputeKind kind : {RecomputeKind::kNone, RecomputeKind::kFull}) {
    choice.setup.recompute = kind == RecomputeKind::kFull ? FullRecompute() : kNoRecompute;
    choice.setup.recompute.offload.device = OffloadDevice::kCpu;
    HardwareProfile guessed = h200;
    CHECK(OwnExecutor().LargestTimeError(choice, {}, guessed) == 0);
    guessed.node.adam_bandwidth->source = FigureSource::kMeasured;
    CHECK(OwnExecutor().LargestTimeError(choice, {}, guessed) > 0);
  }
}

TEST_CASE("published runs in FP8 stand beside the prediction in docs/fp8.md") {
  std::ifstream in(SourcePath("docs/fp8.md"));
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  size_t rows = 0;
  for (const PublishedRun& run : ReadScaleRuns(SourcePath(""))) {
    if (!run.fp8) continue;
    CAPTURE(run.id);
    const auto tokens = static_cast<double>(run.micro_batch * run.grad_accum * run.seq);
    const double predicted = tokens / StepSeconds(run);
    CHECK(Has(page, fmt::format("{} | {:.2f} |", Thousands(predicted), predicted / run.measured)));
    ++rows;
  }
  CHECK(rows == 4);
}

// Errors are relative to the smallest run of the same work.
TEST_CASE("published runs of FSDP across nodes are as far off as kFsdpAcrossNodes says") {
  std::vector<PublishedRun> runs = ReadFsdpRuns(SourcePath(""));
  const std::map<std::string, const PublishedRun*> smallest = PredictRuns(runs);
  std::vector<double> errors;
  for (const PublishedRun& run : runs) {
    const PublishedRun& base = *smallest.at(run.work);
    // Tokens a second predicted over measured are seconds measured over predicted.
    if (&run != &base) errors.push_back(run.ratio() / base.ratio() - 1);
  }
  const RunErrors of = RunErrorsOf(errors);
  CAPTURE(ErrorsText(errors));
  CHECK(of.worst() == doctest::Approx(kFsdpAcrossNodesWorst).epsilon(0.01));
  CHECK(
      Has(std::string(kFsdpAcrossNodes),
          fmt::format("{:.0f} % more or less than its model says in the median, {:.0f} % more and "
                      "{:.0f} % less at most",
                      100 * of.median, 100 * of.most, -100 * of.least)));
}

}  // namespace
}  // namespace zeroplan
