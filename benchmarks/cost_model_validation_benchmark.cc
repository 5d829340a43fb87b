// Predicted beside measured times, for what the cost model was fitted on and for what was held out.
//
//   cost_model_validation_benchmark [folder of results] [--all | --misses]
//
// Prints a summary for each group and the held-out rows that miss by more than 10 %; with --all,
// every held-out row; with --misses, only the misses as tests/cost_models/known_misses.txt has
// them.
#include <fmt/format.h>

#include <string_view>

#include "tests/cost_models/measured_rows.h"

namespace zeroplan {
namespace {

void PrintSummary(const std::vector<measured::ValidationRow>& rows, bool fitted) {
  fmt::print("{:<26} {:>5} {:>9} {:>9} {:>9} {:>12}\n", fitted ? "fitted" : "held out", "rows",
             "median", "90 %", "worst", "within 10 %");
  for (const auto& group : measured::Summarise(rows, fitted)) {
    fmt::print("{:<26} {:>5} {:>8.1f}% {:>8.1f}% {:>8.1f}% {:>6}/{}\n", group.group, group.rows,
               100 * group.median, 100 * group.ninety, 100 * group.worst, group.within, group.rows);
  }
}

void PrintHeldOut(const std::vector<measured::ValidationRow>& rows, bool all) {
  for (const auto& row : rows) {
    if (row.fitted) continue;
    const bool miss = std::abs(row.error()) > measured::kAllowedError;
    if (!all && !miss) continue;
    fmt::print("  {:<26} {:<36} {:>10.1f} us predicted {:>10.1f} us measured {:>+7.1f}%{}\n",
               row.group, row.name, 1e6 * row.predicted_seconds, 1e6 * row.measured_seconds,
               100 * row.error(), miss ? "  miss" : "");
  }
}

void PrintMisses(const char* machine, const std::vector<measured::ValidationRow>& rows) {
  for (const auto& row : rows) {
    if (row.fitted || std::abs(row.error()) <= measured::kAllowedError) continue;
    fmt::print("{} | {} | {} | {:+.1f}\n", machine, row.group, row.name, 100 * row.error());
  }
}

void Print(const char* title, const std::vector<measured::ValidationRow>& rows, bool all) {
  fmt::print("\n== {} ==\n", title);
  PrintSummary(rows, true);
  PrintSummary(rows, false);
  PrintHeldOut(rows, all);
}

int Main(int argc, char** argv) {
  std::string folder = "benchmarks/measure/results";
  bool all = false, misses = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--all") {
      all = true;
    } else if (std::string_view(argv[i]) == "--misses") {
      misses = true;
    } else {
      folder = argv[i];
    }
  }
  if (misses) {
    PrintMisses("h200", measured::GpuRows(folder, "h200"));
    PrintMisses("h100", measured::GpuRows(folder, "h100"));
    PrintMisses("h200 node", measured::NodeRows(folder));
    return 0;
  }
  Print("H200", measured::GpuRows(folder, "h200"), all);
  Print("H100", measured::GpuRows(folder, "h100"), all);
  Print("collectives, H200", measured::NodeRows(folder), all);
  return 0;
}

}  // namespace
}  // namespace zeroplan

int main(int argc, char** argv) { return zeroplan::Main(argc, argv); }
