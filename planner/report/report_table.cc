// Two tables with the same rows: what a choice takes of memory, and what its step takes of time.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/base/terminal.h"
#include "core/base/units.h"
#include "core/config/setup_facts.h"
#include "planner/estimate/choices.h"
#include "planner/report/choice_columns.h"
#include "planner/report/report.h"
#include "planner/report/report_columns.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

// The row, its verdict in colour, and all of it faint if it does not fit.
std::string MarkedRow(const ReportColumns& columns, std::vector<std::string> cells, bool fits,
                      const Paints& paints) {
  cells.emplace_back("");
  std::string line = columns.Row(cells);
  line.resize(line.size() - 4);
  return fits ? fmt::format("{}{} yes{}\n", line, paints.green, paints.reset)
              : fmt::format("{}{}{}{}  no{}\n", paints.dim, line, paints.reset, paints.red,
                            paints.reset);
}

std::string MemoryTable(const Estimate& estimate, const Paints& paints) {
  const ByteUnit unit = CommonUnit(estimate);
  ReportColumns columns;
  AddChoiceColumns(columns);
  columns.BeginGroup(fmt::format("{} on one GPU at its peak", unit.name));
  columns.Add("params", 6);
  columns.Add("grads", 5);
  columns.Add("optim", 5);
  columns.Add("activ", 5);
  const size_t buffers = columns.Add("buffers", 7), runtime = columns.Add("runtime", 7);
  columns.Add("total", 5);
  columns.BeginGroup(fmt::format("{}/node", unit.name));
  const size_t host = columns.Add("host", 5), nvme = columns.Add("nvme", 5);
  columns.BeginGroup("");
  columns.Add("fits", 4);
  const bool on_disk =
      std::any_of(estimate.choices.begin(), estimate.choices.end(),
                  [](const ChoiceEstimate& choice) { return choice.footprint.nvme_bytes > 0; });
  const std::string left_out = columns.LeaveOut(on_disk ? std::vector{runtime, buffers, nvme, host}
                                                        : std::vector{nvme, runtime, buffers, host},
                                                PageColumns());
  std::string text = columns.Header(paints);
  for (const ChoiceEstimate& choice : estimate.choices) {
    std::vector<std::string> cells = ChoiceCells(choice.setup);
    const Footprint& footprint = choice.footprint;
    for (const NamedBytes& part : GpuClasses(footprint)) {
      cells.push_back(ByteCell(part.bytes, unit));
    }
    for (const uint64_t bytes :
         {footprint.gpu_total(), footprint.host.total(), footprint.nvme_bytes}) {
      cells.push_back(ByteCell(bytes, unit));
    }
    text += MarkedRow(columns, std::move(cells), choice.fits, paints);
  }
  return text + LeftOutText(left_out, "csv");
}

bool UsesDisk(const Estimate& estimate) {
  return std::any_of(estimate.choices.begin(), estimate.choices.end(), [](const auto& choice) {
    return choice.traffic.file_read_bytes > 0 || choice.traffic.file_write_bytes > 0;
  });
}

bool TimesKnown(const Estimate& estimate) {
  return std::any_of(estimate.choices.begin(), estimate.choices.end(),
                     [](const auto& choice) { return choice.time.total_seconds.has_value(); });
}

std::string TokensCell(const std::optional<double>& tokens) {
  if (!tokens) return "?";
  return *tokens < 9999.5 ? fmt::format("{:.0f}", *tokens)
                          : FormatCount(static_cast<uint64_t>(std::llround(*tokens)));
}

std::string TimeTable(const Estimate& estimate, const Paints& paints) {
  const ByteUnit bytes = CommonUnit(estimate);
  const TimeUnit seconds = CommonTimeUnit(estimate);
  const bool disk = UsesDisk(estimate), times = TimesKnown(estimate);
  ReportColumns columns;
  AddChoiceColumns(columns);
  columns.BeginGroup(fmt::format("{}{}", bytes.name, disk ? " a GPU and step" : "/step"));
  const size_t comm = columns.Add("comm", 5), pcie = columns.Add("pcie", 5);
  std::vector<size_t> expendable;
  if (disk) {
    expendable = {columns.Add("read", 5), columns.Add("write", 5)};
  }
  if (times) {
    columns.BeginGroup(fmt::format("in {}", seconds.name));
    columns.Add("compute", 7);
    columns.BeginGroup("exposed");
    columns.Add("comm", 6);
    columns.Add("offload", 7);
    columns.BeginGroup(fmt::format("in {}", seconds.name));
    const size_t update = columns.Add("optim", 6);
    columns.Add("step", 6);
    columns.BeginGroup("all GPUs");
    columns.Add("tok/s", 6);
    const size_t mfu = columns.Add("MFU%", 4);
    expendable.insert(expendable.end(), {pcie, comm, update, mfu});
  }
  columns.BeginGroup("");
  columns.Add("fits", 4);
  const std::string left_out = columns.LeaveOut(expendable, PageColumns());
  std::string text = columns.Header(paints);
  for (const ChoiceEstimate& choice : estimate.choices) {
    const StepTraffic& traffic = choice.traffic;
    const TimeEstimate& time = choice.time;
    std::vector<std::string> cells = ChoiceCells(choice.setup);
    cells.push_back(ByteCell(traffic.collective_bytes, bytes));
    cells.push_back(ByteCell(traffic.pcie_bytes(), bytes));
    if (disk) {
      cells.push_back(ByteCell(traffic.file_read_bytes, bytes));
      cells.push_back(ByteCell(traffic.file_write_bytes, bytes));
    }
    if (times) {
      for (const auto& part :
           {time.compute_seconds, time.exposed_comm_seconds, time.exposed_offload_seconds,
            time.optimizer_seconds, time.total_seconds}) {
        cells.push_back(SecondsCell(part, seconds));
      }
      cells.push_back(TokensCell(time.tokens_per_second));
      cells.push_back(time.mfu ? fmt::format("{:.1f}", 100 * *time.mfu) : "?");
    }
    text += MarkedRow(columns, std::move(cells), choice.fits, paints);
  }
  return text + LeftOutText(left_out, "csv");
}

// What the whole run takes. REQUIRES: the goal has tokens.
std::string RunTable(const Estimate& estimate, const Paints& paints) {
  const RunGoal& goal = estimate.goal;
  ReportColumns columns;
  AddChoiceColumns(columns);
  columns.BeginGroup("");
  columns.Add("steps", 9);
  columns.Add("hours", 7);
  columns.Add("GPU-hours", 9);
  if (goal.gpu_hour_price) columns.Add("price", 7);
  columns.Add("fits", 4);
  std::string text =
      Wrap(fmt::format(
               "Training on {} tokens, steps alone (without saving, validation and "
               "interruptions){}:",
               FormatCount(static_cast<uint64_t>(*goal.tokens)),
               goal.gpu_hour_price ? fmt::format(", {} a GPU-hour", *goal.gpu_hour_price) : ""),
           2) +
      columns.Header(paints);
  for (const ChoiceEstimate& choice : estimate.choices) {
    std::vector<std::string> cells = ChoiceCells(choice.setup);
    const RunCost cost = CostOf(goal, choice.setup.batch, *choice.time.total_seconds);
    cells.push_back(std::to_string(cost.steps));
    cells.push_back(NumberCell(cost.seconds / 3600));
    cells.push_back(NumberCell(cost.gpu_hours));
    if (cost.price) cells.push_back(NumberCell(*cost.price));
    text += MarkedRow(columns, std::move(cells), choice.fits, paints);
  }
  return text;
}

std::string Headline(const Estimate& estimate, const Paints& paints) {
  std::string text = Wrap(ModelLine(estimate.model, estimate.seq_len), 2);
  text.pop_back();
  text = fmt::format("{}{}{}\n", paints.bold, text, paints.reset);
  text += Wrap(ClusterLine(estimate.cluster), 2);
  // The batch is the same for all; gradients may be reduced in fp32 as they are for some.
  const auto reduces =
      std::find_if(estimate.choices.begin(), estimate.choices.end(),
                   [](const ChoiceEstimate& choice) { return ReducesInFp32(choice.setup); });
  const ChoiceEstimate& shown =
      reduces == estimate.choices.end() ? estimate.choices.front() : *reduces;
  return text + Wrap(BatchLine(shown.setup), 2) + '\n';
}

std::string Misfits(const Estimate& estimate) {
  std::string text;
  for (const ChoiceEstimate& choice : estimate.choices) {
    if (choice.fits) continue;
    if (text.empty()) {
      text = TimesKnown(estimate)
                 ? "\nWhy not (their times are what they would take if they did):\n"
                 : "\nWhy not:\n";
    }
    text += Wrap(fmt::format("  {}: {}", SetupLabel(choice.setup), choice.why_not), 4);
  }
  return text;
}

}  // namespace

std::string ReportTable(const Estimate& estimate, const TableStyle& style) {
  const Paints paints(style.colour);
  std::string text = Headline(estimate, paints);
  text += MemoryTable(estimate, paints) + '\n' + TimeTable(estimate, paints);
  if (estimate.goal.tokens && TimesKnown(estimate)) text += '\n' + RunTable(estimate, paints);
  if (estimate.choices.size() == 1) {
    const ChoiceEstimate& choice = estimate.choices.front();
    text += '\n' + PhasePeaks(choice);
    if (choice.time.by_stream) text += '\n' + StreamTimes(*choice.time.by_stream);
  }
  text += Misfits(estimate) + '\n';
  if (!style.assumed.empty()) {
    text += Wrap(fmt::format("Assumed: {}", fmt::join(style.assumed, ", ")), 2);
  }
  for (const std::string& note : style.notes) text += Wrap(note, 2);
  return text;
}

}  // namespace zeroplan
