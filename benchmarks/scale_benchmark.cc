// Published runs on one to 280 nodes beside what is predicted for them, by framework, GPU and
// nodes.
//
//   scale_benchmark [--rows]
//
// Predicts every row of tests/data/scale/published_scale_runs.jsonl, and the runs of FSDP in
// tests/fixtures/published_runs.jsonl that have a sibling on another number of nodes, with the
// runtime that made them: FSDP2's and DeepSpeed's models, zeroplan's own executor for others. Other
// executors' kernels are slower than zeroplan's, so beside the ratio (predicted tokens/s over
// measured) stands what it is over that of the smallest run of the same work: what the number of
// nodes adds to the error. Then curves of ZeRO over all ranks beside shard groups, with what is
// fitted to their programs (FittedOf).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/scale_runs.h"

namespace zeroplan {
namespace {

constexpr double kGoal = 0.15;

struct Errors {
  std::vector<double> errors;
  // `ratio`: tokens/s predicted over measured, which is seconds measured over predicted.
  void Add(double ratio) { errors.push_back(std::abs(ratio - 1)); }
  std::string Text() {
    std::sort(errors.begin(), errors.end());
    const double median = errors[(errors.size() - 1) / 2];
    return fmt::format("{:>4} {:>9.1f}% {:>9.1f}%", errors.size(), 100 * median,
                       100 * errors.back());
  }
};

void PrintGroups(const char* title, std::map<std::string, Errors>& groups) {
  fmt::print("\n{:<44} {:>4} {:>10} {:>10}\n", title, "runs", "median", "worst");
  for (auto& [name, errors] : groups) fmt::print("{:<44} {}\n", name, errors.Text());
}

// Predicted with what is fitted, beside what was measured; `held` runs are unseen by the fit.
void PrintFitted(const std::vector<PublishedRun>& runs) {
  fmt::print("\n{:<34} {:>5} {:>10} {:>10} {:>8}\n", "with what is fitted", "GPUs", "measured",
             "predicted", "error");
  std::map<std::string, Errors> by_part;
  int within = 0, all = 0;
  for (const PublishedRun& run : runs) {
    const FittedProgram* fitted = FittedOf(run);
    if (fitted == nullptr) continue;
    const auto tokens = static_cast<double>(run.micro_batch * run.grad_accum * run.seq);
    const double predicted = tokens / StepSeconds(run, *fitted);
    const double error = predicted / run.measured - 1;
    fmt::print("{:<34} {:>5} {:>10.1f} {:>10.1f} {:>+7.1f}%{}\n", run.id, run.gpus, run.measured,
               predicted, 100 * error, run.held ? "  unseen" : "");
    by_part[fmt::format("{}{}", run.framework, run.held ? ", unseen" : ", fitted")].Add(
        predicted / run.measured);
    within += std::abs(error) <= kGoal ? 1 : 0;
    ++all;
  }
  PrintGroups("tokens/s with what is fitted / measured", by_part);
  fmt::print("within {:.0f} %: {} of {}\n", 100 * kGoal, within, all);
}

int Main(int argc, char** argv) {
  const bool print_rows = argc > 1 && std::string_view(argv[1]) == "--rows";
  std::vector<PublishedRun> runs = ReadScaleRuns(ZEROPLAN_SOURCE_DIR);
  for (PublishedRun& run : ReadFsdpRuns(ZEROPLAN_SOURCE_DIR)) runs.push_back(std::move(run));
  const std::map<std::string, const PublishedRun*> smallest = PredictRuns(runs);
  std::map<std::string, Errors> by_framework, by_nodes, by_held;
  if (print_rows) {
    fmt::print("{:<42} {:>5} {:>10} {:>10} {:>7} {:>9}\n", "run", "GPUs", "measured", "predicted",
               "ratio", "by nodes");
  }
  for (const PublishedRun& run : runs) {
    const PublishedRun& base = *smallest.at(run.work);
    const double grown = run.ratio() / base.ratio();
    if (print_rows) {
      fmt::print("{:<42} {:>5} {:>10.0f} {:>10.0f} {:>7.2f} {:>9.3f}{}\n", run.id, run.gpus,
                 run.measured, run.predicted, run.ratio(), grown, run.held ? "  held" : "");
    }
    by_framework[run.framework + ", " + run.machine].Add(run.ratio());
    if (&run == &base) continue;
    const int nodes = std::max(1, run.gpus / 8);
    const char* size = nodes <= 8 ? "2 to 8 nodes" : nodes <= 32 ? "9 to 32 nodes" : "33 and more";
    by_nodes[run.framework + ", " + size].Add(grown);
    by_held[run.held ? "held back" : "fitted, or looked at"].Add(grown);
  }
  PrintGroups("tokens/s predicted / measured", by_framework);
  PrintGroups("the same over that of the smallest run", by_nodes);
  PrintGroups("", by_held);
  PrintFitted(runs);
  return 0;
}

}  // namespace
}  // namespace zeroplan

int main(int argc, char** argv) { return zeroplan::Main(argc, argv); }
