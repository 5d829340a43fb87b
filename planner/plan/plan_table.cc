#include "planner/plan/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/base/units.h"
#include "core/settings/setup_facts.h"
#include "planner/report/choice_columns.h"
#include "planner/report/report_columns.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

// The least width for reasons in whole words and for a column of the matmul dtype.
constexpr size_t kWideColumns = 96;

// "106 GB short": the GPU's shortage, else "host short" or "no disk".
std::string Shortfall(const ChoiceEstimate& choice, const Cluster& cluster, bool wide) {
  if (wide) return choice.why_not.substr(0, choice.why_not.find(':'));
  const uint64_t takes = choice.footprint.totals().gpu_bytes + cluster.gpu_reserve_bytes;
  if (takes > cluster.gpu_capacity_bytes) {
    return fmt::format("{} short", FormatBytes(takes - cluster.gpu_capacity_bytes));
  }
  return choice.footprint.nvme_bytes > 0 && !cluster.nvme_capacity_bytes ? "no disk" : "host short";
}

std::string Loss(const StageBest& stage, const ChoiceEstimate& best) {
  const double slower = *best.time.tokens_per_second / *stage.estimate.time.tokens_per_second - 1;
  const char* about = stage.proven ? "" : "~";
  if (slower >= 0.0005) return fmt::format("{}{} % slower", about, FormatPercent(slower));
  const double faster = 1 / (1 + slower) - 1;
  return faster >= 0.0005 ? fmt::format("{}{} % faster", about, FormatPercent(faster)) : "as fast";
}

}  // namespace

std::string StageTable(const Plan& plan, const SearchResult& result,
                       const HardwareProfile& hardware, size_t width, bool colour) {
  const Paints paints(colour);
  const Cluster& cluster = plan.cluster;
  const auto of = [](const std::optional<uint64_t>& capacity) {
    return capacity ? "of " + GigabyteCell(*capacity) : std::string();
  };
  ReportColumns columns;
  columns.BeginGroup("");
  columns.Add("", 1, true);
  ChoiceWidths widths;
  bool products = false;  // whether some matmuls are FP8, and there is room for a column
  for (const StageBest& stage : result.stages) {
    if (!stage.can_run()) continue;
    widths.Fit(stage.estimate.setup);
    products |= width >= kWideColumns && stage.estimate.setup.precision.fp8.enabled;
  }
  constexpr size_t kProductsWidth = 6;
  const size_t more =
      (products ? kProductsWidth + 1 : 0) + (widths.activations > 0 ? widths.activations + 1 : 0) +
      (widths.sequence > 0 ? widths.sequence + 1 : 0) + widths.recompute - ChoiceWidths().recompute;
  const bool wide = width >= kWideColumns + more;
  AddChoiceColumns(columns, widths);
  columns.BeginGroup("");
  if (products) columns.Add("matmul", kProductsWidth, true);
  columns.Add("batch", 6);
  columns.Add("tok/s", 6);
  columns.Add("step", 7);
  columns.Add("+-%", 3);
  columns.BeginGroup(of(cluster.gpu_capacity_bytes));
  columns.Add("GB/GPU", 7);
  columns.BeginGroup(of(cluster.host_capacity_bytes));
  columns.Add("GB/host", 7);
  columns.BeginGroup("");
  columns.Add("why not", 10, true);

  const ChoiceEstimate& best = result.stages[*result.best].estimate;
  std::string text = columns.Header(paints);
  for (size_t s = 0; s < result.stages.size(); ++s) {
    const StageBest& stage = result.stages[s];
    if (!stage.can_run()) continue;
    const ChoiceEstimate& choice = stage.estimate;
    const bool chosen = s == *result.best;
    const bool fits = stage.candidate.has_value();
    std::vector<std::string> cells = ChoiceCells(choice.setup, widths);
    cells.insert(cells.begin(), chosen ? ">" : "");
    if (products) cells.emplace_back(MatmulDtypeName(choice.setup.precision));
    const BatchSpec& batch = choice.setup.batch;
    cells.push_back(fmt::format("{}x{}", batch.micro_batch, batch.grad_accum));
    if (fits) {
      cells.push_back(FormatRate(*choice.time.tokens_per_second));
      cells.push_back(FormatSeconds(*choice.time.total_seconds));
      const double worst = plan.runtime->LargestTimeError(choice, cluster, hardware);
      cells.push_back(worst > 0 ? fmt::format("{:.0f}", 100 * worst) : "?");
    } else {
      cells.insert(cells.end(), {"-", "-", "-"});
    }
    cells.push_back(GigabyteCell(choice.footprint.totals().gpu_bytes));
    cells.push_back(GigabyteCell(choice.footprint.host.total()));
    cells.push_back(chosen ? "" : fits ? Loss(stage, best) : Shortfall(choice, cluster, wide));
    std::string row = columns.Row(cells);
    row.erase(row.find_last_not_of(' ') + 1);
    const std::string_view paint = chosen ? paints.green : fits ? "" : paints.dim;
    text += fmt::format("{}{}{}\n", paint, row, paint.empty() ? "" : paints.reset);
  }
  return text;
}

}  // namespace zeroplan
