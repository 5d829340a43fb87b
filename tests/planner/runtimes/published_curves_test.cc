// Published curves of ZeRO over all ranks beside shard groups: InternEvo's ZeRO-1, ZeRO++'s figures
// 6 and 7, FSDP's hybrid sharding.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "benchmarks/scale_runs.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

TEST_CASE("published curves of shard groups are met within 15 %, but for one run") {
  int runs = 0, unseen = 0;
  std::map<std::string, std::pair<double, double>> speed;  // measured, predicted
  for (const PublishedRun& run : ReadScaleRuns(SourcePath(""))) {
    const FittedProgram* fitted = FittedOf(run);
    if (fitted == nullptr) continue;
    const auto tokens = static_cast<double>(run.micro_batch * run.grad_accum * run.seq);
    const double predicted = tokens / StepSeconds(run, *fitted);
    const double error = predicted / run.measured - 1;
    CAPTURE(run.id);
    CAPTURE(error);
    // ZeRO-3 of 18B over one link a node, 1,024 tokens a GPU: -15.8 %, of the fitted ones.
    CHECK(std::abs(error) < (run.id == "base-18b-ib1-1k" ? 0.165 : 0.15));
    if (run.id.starts_with("internevo")) CHECK(std::abs(error) < 0.05);
    speed[run.id] = {run.measured, predicted};
    ++runs;
    unseen += run.held ? 1 : 0;
  }
  CHECK(runs == 49);
  CHECK(unseen == 25);
  // From 16 to 1,024 GPUs InternEvo loses 41 % over all ranks and 8 % within groups of 8.
  const auto kept = [&](const std::string& curve) {
    const auto [first, first_predicted] = speed.at(curve + "-16");
    const auto [last, last_predicted] = speed.at(curve + "-1024");
    return std::pair(last / first, last_predicted / first_predicted);
  };
  const auto [all, all_predicted] = kept("internevo-7b-zero1-all");
  CHECK(all == doctest::Approx(0.59).epsilon(0.01));
  CHECK(std::abs(all_predicted - all) < 0.03);
  const auto [node, node_predicted] = kept("internevo-7b-zero1-node");
  CHECK(node == doctest::Approx(0.92).epsilon(0.01));
  CHECK(std::abs(node_predicted - node) < 0.03);
}

}  // namespace
}  // namespace zeroplan
