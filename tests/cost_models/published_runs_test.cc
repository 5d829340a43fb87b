// What others measured of GPT-style models beside what is predicted for zeroplan's executor at the
// same shape, batch and sharding. The runs are of other executors, so this is one-sided: none may
// beat the prediction by more than 5 %, and those that are tuned may not fall far behind it.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "benchmarks/published_steps.h"
#include "hwprofiles/loader.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

struct Summary {
  int runs = 0;
  double sum = 0, least = 1e9, most = 0;
  double mean() const { return sum / runs; }
};

TEST_CASE("no published run is faster than predicted by more than 5 %, and tuned ones are close") {
  std::map<std::string, Summary> groups;
  const std::vector<PublishedShape> runs = ReadOwnShapes(SourcePath(""));
  REQUIRE(runs.size() == 153);
  for (const PublishedShape& run : runs) {
    const double ratio = MeasuredOverPredicted(run);
    INFO(fmt::format("{}: predicted {:.2f} times as fast as it was measured", run.id, ratio));
    CHECK(ratio > 1 / 1.05);
    const std::string gpu = LoadProfile(run.machine).gpu.architecture;
    // Long sequences are attention, of kernels that have become faster since.
    const std::string group = IsTuned(run)     ? gpu + ", tuned"
                              : run.seq > 2048 ? gpu + ", long"
                              : run.offload    ? gpu + ", offload"
                                               : gpu + ", FSDP";
    Summary& summary = groups[group];
    ++summary.runs;
    summary.sum += ratio;
    summary.least = std::min(summary.least, ratio);
    summary.most = std::max(summary.most, ratio);
  }
  for (const auto& [group, summary] : groups) {
    // Tuned executors: what zeroplan's own was measured to be slower than predicted by (1.03
    // to 1.11 on H200), and what it is faster than they are.
    if (group.ends_with(", tuned")) {
      CHECK(summary.mean() > 1.03);
      CHECK(summary.mean() < 1.3);
    }
    MESSAGE(fmt::format("{}: {} runs, {:.2f} to {:.2f}, mean {:.2f}", group, summary.runs,
                        summary.least, summary.most, summary.mean()));
  }
}

TEST_CASE("the GPUs that these runs are of rest on measurements") {
  for (const std::string name : {"dgx-a100-40gb", "dgx-a100-80gb", "dgx-h100", "dgx-2"}) {
    CAPTURE(name);
    const GpuProfile gpu = LoadProfile(name).gpu;
    const Dtype dtype = DefaultDtype(LoadProfile(name));
    // Of an A100 what was measured is the best of all shapes.
    const Figure& reached = gpu.reachable_peaks.at(dtype);
    CHECK((reached.source == FigureSource::kMeasured ||
           reached.reference.find("Maximum Achievable Matmul FLOPS") != std::string::npos));
    if (!gpu.flash_attention) continue;
    const bool measured_rows = gpu.attention.has_value();
    CHECK((measured_rows ? gpu.attention->source == FigureSource::kMeasured
                         : gpu.attention_forward->source == FigureSource::kMeasured));
  }
}

}  // namespace
}  // namespace zeroplan
