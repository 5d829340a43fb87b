#include "planner/plan/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <vector>

#include "core/base/units.h"
#include "core/settings/setup_facts.h"
#include "planner/advice/advice.h"
#include "planner/advice/loss_reason.h"
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

// The best of the other stages that fit, else the one that comes closest; none: there is no other.
std::optional<size_t> NextBest(const SearchResult& result) {
  const auto rate = [&](size_t s) {
    const StageBest& stage = result.stages[s];
    return stage.candidate ? stage.estimate.time.tokens_per_second.value_or(0) : 0;
  };
  const auto bytes = [&](size_t s) { return result.stages[s].estimate.footprint.gpu_total(); };
  std::optional<size_t> next;
  for (size_t s = 0; s < result.stages.size(); ++s) {
    if (s == *result.best || !result.stages[s].can_run()) continue;
    const bool better = !next || rate(s) > rate(*next) ||
                        (rate(s) == 0 && rate(*next) == 0 && bytes(s) < bytes(*next));
    if (better) next = s;
  }
  return next;
}

// "84.4 of 84.9 GB".
std::string BytesOf(uint64_t bytes, uint64_t capacity) {
  return fmt::format("{} of {} GB", GigabyteCell(bytes), GigabyteCell(capacity));
}

std::string ScreenHeading(const Plan& plan, const ScreenParts& parts) {
  const bool programs = plan.runtime->facts().trains_here;
  const Cluster& cluster = plan.cluster;
  std::string machine = fmt::format("{} x {}", cluster.gpus, cluster.gpu_name);
  if (cluster.nodes() > 1) machine += fmt::format(", {} nodes", cluster.nodes());
  return fmt::format("{}{}: {}{}, sequence {}, {}{}; {}", plan.model.name,
                     programs ? "" : fmt::format(" under {}", plan.runtime->version()),
                     plan.model.CountsText(), parts.shape, plan.setup.batch.seq_len,
                     PrecisionText(plan.setup),
                     programs ? "" : fmt::format(", {}", RecipeText(plan.recipe)), machine);
}

std::string ScreenChoice(const Plan& plan) {
  const ChoiceEstimate& choice = plan.choice;
  const Runtime& runtime = *plan.runtime;
  const Cluster& cluster = plan.cluster;
  const int gpus = choice.setup.batch.world_size;
  const double rate = *choice.time.tokens_per_second;
  std::string text =
      fmt::format("Chosen{}: {}, {}{}: {}",
                  runtime.facts().trains_here ? "" : fmt::format(" for {}", runtime.name()),
                  runtime.Label(choice.setup), BatchText(choice.setup.batch),
                  runtime.SettingsText(choice.setup), RateText(rate));
  if (gpus > 1) text += fmt::format(" ({} a GPU)", FormatRate(rate / gpus));
  text += fmt::format(", {} a step; {} a GPU", FormatSeconds(*choice.time.total_seconds),
                      BytesOf(choice.footprint.totals().gpu_bytes, cluster.gpu_capacity_bytes));
  if (cluster.host_capacity_bytes) {
    text += fmt::format(", {} of the host",
                        BytesOf(choice.footprint.host.total(), *cluster.host_capacity_bytes));
  }
  return text + ".";
}

std::string ScreenReason(const Plan& plan, const SearchResult& result, const SearchInputs& inputs) {
  const std::optional<size_t> next = NextBest(result);
  if (!next) return "";
  const StageBest& other = result.stages[*next];
  std::string name = plan.runtime->StageName(other.stage);
  if (!other.candidate) return "";  // the table has its shortage
  name.front() = static_cast<char>(std::tolower(name.front()));
  return fmt::format("Next best: {}, {}{}.", name, other.proven ? "" : "about ",
                     LossReason(other.estimate, plan.choice, inputs));
}

}  // namespace

std::string StageTable(const Plan& plan, const SearchResult& result,
                       const HardwareProfile& hardware, size_t width, bool colour, bool few) {
  const Paints paints(colour);
  const Cluster& cluster = plan.cluster;
  const std::optional<size_t> next = NextBest(result);
  const auto shown = [&](size_t s) {
    return result.stages[s].can_run() && (!few || s == *result.best || s == next);
  };
  ReportColumns columns;
  columns.BeginGroup("");
  columns.Add("", 1, true);
  ChoiceWidths widths;
  bool offloads_params = false;
  bool products = false;  // whether some matmuls are FP8, and there is room for a column
  for (size_t s = 0; s < result.stages.size(); ++s) {
    const StageBest& stage = result.stages[s];
    if (!shown(s)) continue;
    widths.Fit(stage.estimate.setup);
    offloads_params |= stage.estimate.setup.zero.offload_param.device != OffloadDevice::kNone;
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
  const size_t step = columns.Add("step", 7);
  columns.BeginGroup("margin");
  const size_t margin = columns.Add("%", 6);
  columns.BeginGroup("GPU GB");
  columns.Add(OfCapacity(cluster.gpu_capacity_bytes), 7);
  columns.BeginGroup("host GB");
  columns.Add(OfCapacity(cluster.host_capacity_bytes), 7);
  columns.BeginGroup("");
  columns.Add("why not", 14, true);
  // Columns of the mark, ZeRO and the optimizer come before the parameters'.
  const size_t param = (widths.group > 0) + (widths.sequence > 0) + 3;
  columns.LeaveOut(offloads_params ? std::vector{step, margin} : std::vector{step, param, margin},
                   width);

  const ChoiceEstimate& best = result.stages[*result.best].estimate;
  std::string text = columns.Header(paints);
  for (size_t s = 0; s < result.stages.size(); ++s) {
    const StageBest& stage = result.stages[s];
    if (!shown(s)) continue;
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

std::string PlanScreen(const Plan& plan, const SearchResult& result, const SearchInputs& inputs,
                       const HardwareProfile& hardware, const ScreenParts& parts, size_t columns,
                       bool colour) {
  const Paints paints(colour);
  std::string text;
  const auto add = [&](const std::string& paragraph, std::string_view paint = "") {
    if (paragraph.empty()) return;
    text += fmt::format("{}{}", paint, Wrap(paragraph, 2, columns));
    if (!paint.empty()) text += paints.reset;
  };
  add(parts.first);
  add(ScreenHeading(plan, parts), paints.bold);
  text += StageTable(plan, result, hardware, columns, colour, /*few=*/plan.cluster.gpus == 1);
  add(ScreenChoice(plan), paints.green);
  add(ScreenReason(plan, result, inputs));
  add(parts.brim);
  for (const std::string& paragraph : parts.run) add(paragraph);
  return text + ScreenEnd(parts.notes, columns, colour);
}

}  // namespace zeroplan
