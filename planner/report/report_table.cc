// Two tables with the same rows: the memory of a choice, and the time of its step.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/base/units.h"
#include "core/settings/setup_facts.h"
#include "planner/estimate/choices.h"
#include "planner/report/choice_columns.h"
#include "planner/report/report.h"
#include "planner/report/report_columns.h"
#include "planner/report/report_text.h"
#include "planner/runtimes/torch_phases.h"
#include "planner/search/search_space.h"

namespace zeroplan {
namespace {

std::string Verdict(const ChoiceEstimate& choice) {
  if (!choice.fits) return "  no";
  if (choice.footprint.gpu_spare_bytes > 0) return "yes*";
  return choice.room == MemoryRoom::kAmple ? " yes" : "tight";
}

// Choices that share a row: only their stage differs, and on one GPU the stage changes nothing.
struct TableRow {
  const ChoiceEstimate* choice;
  std::string stages;  // "2", "0-3", "0, 2"
};

bool SameBesideStage(const ChoiceEstimate& a, const ChoiceEstimate& b) {
  TrainSetup setup = a.setup;
  setup.zero.stage = b.setup.zero.stage;
  return CandidateOf(setup) == CandidateOf(b.setup) && a.fits == b.fits &&
         a.footprint == b.footprint && a.time.total_seconds == b.time.total_seconds;
}

// The choices that fit, then the others, each in their order.
std::vector<TableRow> RowsOf(const Estimate& estimate) {
  std::vector<std::vector<const ChoiceEstimate*>> groups;
  for (const bool fits : {true, false}) {
    for (const ChoiceEstimate& choice : estimate.choices) {
      if (choice.fits != fits) continue;
      const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
        return SameBesideStage(*group.front(), choice);
      });
      if (same != groups.end()) {
        same->push_back(&choice);
      } else {
        groups.push_back({&choice});
      }
    }
  }
  std::vector<TableRow> rows;
  for (const auto& group : groups) {
    const int first = group.front()->setup.zero.stage, last = group.back()->setup.zero.stage;
    std::vector<int> stages;
    stages.reserve(group.size());
    for (const ChoiceEstimate* choice : group) stages.push_back(choice->setup.zero.stage);
    const bool range = stages.size() > 2 && last - first + 1 == static_cast<int>(stages.size());
    rows.push_back({group.front(), range ? fmt::format("{}-{}", first, last)
                                         : fmt::format("{}", fmt::join(stages, ","))});
  }
  return rows;
}

ChoiceWidths WidthsOf(const Estimate& estimate) {
  ChoiceWidths widths;
  for (const ChoiceEstimate& choice : estimate.choices) widths.Fit(choice.setup);
  return widths;
}

std::vector<std::string> CellsOf(const TableRow& row, const ChoiceWidths& widths) {
  std::vector<std::string> cells = ChoiceCells(row.choice->setup, widths);
  cells.front() = row.stages;
  return cells;
}

// The row with its verdict in colour. A row that does not fit is faint.
std::string MarkedRow(const ReportColumns& columns, std::vector<std::string> cells,
                      const ChoiceEstimate& choice, const Paints& paints) {
  cells.emplace_back("");
  std::string line = columns.Row(cells);
  line.resize(line.size() - 4);
  const std::string verdict = Verdict(choice);
  return choice.fits ? fmt::format("{}{}{}{}\n", line, paints.green, verdict, paints.reset)
                     : fmt::format("{}{}{}{}{}{}\n", paints.dim, line, paints.reset, paints.red,
                                   verdict, paints.reset);
}

std::string MemoryTable(const Estimate& estimate, const std::vector<TableRow>& rows,
                        const Paints& paints, size_t width) {
  const ByteUnit unit = CommonUnit(estimate);
  ReportColumns columns;
  AddChoiceColumns(columns, WidthsOf(estimate));
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
                                                width);
  std::string text = columns.Header(paints);
  for (const TableRow& row : rows) {
    const ChoiceEstimate& choice = *row.choice;
    std::vector<std::string> cells = CellsOf(row, WidthsOf(estimate));
    const Footprint& footprint = choice.footprint;
    for (const NamedBytes& part : GpuClasses(footprint)) {
      cells.push_back(ByteCell(part.bytes, unit));
    }
    for (const uint64_t bytes :
         {footprint.gpu_total(), footprint.host.total(), footprint.nvme_bytes}) {
      cells.push_back(ByteCell(bytes, unit));
    }
    text += MarkedRow(columns, std::move(cells), choice, paints);
  }
  return text + LeftOutText(left_out, "a wider terminal, -o FILE and --format csv", width);
}

bool UsesDisk(const Estimate& estimate) {
  return std::any_of(estimate.choices.begin(), estimate.choices.end(), [](const auto& choice) {
    return choice.traffic &&
           (choice.traffic->file_read_bytes > 0 || choice.traffic->file_write_bytes > 0);
  });
}

bool TimesKnown(const Estimate& estimate) {
  return std::any_of(estimate.choices.begin(), estimate.choices.end(),
                     [](const auto& choice) { return choice.time.total_seconds.has_value(); });
}

std::string TokensCell(const std::optional<double>& tokens) {
  if (!tokens) return "?";
  return *tokens < 9999.5 ? fmt::format("{:.0f}", *tokens) : FormatRate(*tokens);
}

std::string TimeTable(const Estimate& estimate, const std::vector<TableRow>& rows,
                      const Paints& paints, size_t width) {
  const ByteUnit bytes = CommonUnit(estimate);
  const TimeUnit seconds = CommonTimeUnit(estimate);
  const bool disk = UsesDisk(estimate), times = TimesKnown(estimate);
  ReportColumns columns;
  AddChoiceColumns(columns, WidthsOf(estimate));
  const bool programs = estimate.runtime->facts().predicts_traffic;
  std::vector<size_t> expendable;
  if (programs) {
    columns.BeginGroup(fmt::format("{}{}", bytes.name, disk ? " a GPU and step" : "/step"));
    const size_t comm = columns.Add("comm", 5), pcie = columns.Add("pcie", 5);
    if (disk) expendable = {columns.Add("read", 5), columns.Add("write", 5)};
    if (times) expendable.insert(expendable.end(), {pcie, comm});
  }
  if (times) {
    columns.BeginGroup(fmt::format("in {}", seconds.name));
    columns.Add("compute", 7);
    columns.BeginGroup("exposed");
    columns.Add("comm", 6);
    columns.Add("offload", 7);
    columns.BeginGroup(fmt::format("in {}", seconds.name));
    // A PyTorch process has no column for the update, which counts as compute; it has one for
    // waiting for Python.
    const size_t update = columns.Add(programs ? "optim" : "python", 6);
    columns.Add("step", 6);
    columns.BeginGroup("all GPUs");
    columns.Add("tok/s", 6);
    const size_t mfu = columns.Add("MFU%", 4);
    expendable.insert(expendable.end(), {update, mfu});
  }
  columns.BeginGroup("");
  columns.Add("fits", 4);
  const std::string left_out = columns.LeaveOut(expendable, width);
  std::string text = columns.Header(paints);
  for (const TableRow& row : rows) {
    const ChoiceEstimate& choice = *row.choice;
    const TimeEstimate& time = choice.time;
    std::vector<std::string> cells = CellsOf(row, WidthsOf(estimate));
    if (choice.traffic) {
      cells.push_back(ByteCell(choice.traffic->collective_bytes, bytes));
      cells.push_back(ByteCell(choice.traffic->pcie_bytes(), bytes));
    }
    if (choice.traffic && disk) {
      cells.push_back(ByteCell(choice.traffic->file_read_bytes, bytes));
      cells.push_back(ByteCell(choice.traffic->file_write_bytes, bytes));
    }
    if (times) {
      for (const auto& part :
           {time.compute_seconds, time.exposed_comm_seconds, time.exposed_offload_seconds,
            programs ? time.optimizer_seconds : time.host_overhead_seconds, time.total_seconds}) {
        cells.push_back(SecondsCell(part, seconds));
      }
      cells.push_back(TokensCell(time.tokens_per_second));
      cells.push_back(time.mfu ? fmt::format("{:.1f}", 100 * *time.mfu) : "?");
    }
    text += MarkedRow(columns, std::move(cells), choice, paints);
  }
  return text + LeftOutText(left_out, "a wider terminal, -o FILE and --format csv", width);
}

// Time and cost of the whole run. REQUIRES: the goal has tokens.
std::string RunTable(const Estimate& estimate, const std::vector<TableRow>& rows,
                     const Paints& paints, size_t width) {
  const RunGoal& goal = estimate.goal;
  ReportColumns columns;
  AddChoiceColumns(columns, WidthsOf(estimate));
  columns.BeginGroup("");
  columns.Add("steps", 9);
  columns.Add("hours", 7);
  columns.Add("GPU-hours", 9);
  if (goal.gpu_hour_price) columns.Add("price", 7);
  columns.Add("fits", 4);
  std::string text =
      Wrap(fmt::format(
               "Training on {}, steps alone (without saving, validation and interruptions){}:",
               RunLengthText(goal),
               goal.gpu_hour_price ? fmt::format(", {} a GPU-hour", *goal.gpu_hour_price) : ""),
           2, width) +
      columns.Header(paints);
  for (const TableRow& row : rows) {
    const ChoiceEstimate& choice = *row.choice;
    if (!choice.time.total_seconds) continue;
    std::vector<std::string> cells = CellsOf(row, WidthsOf(estimate));
    const RunCost cost = CostOf(goal, choice.setup.batch, *choice.time.total_seconds);
    cells.push_back(std::to_string(cost.steps));
    cells.push_back(FineCell(cost.seconds / 3600));
    cells.push_back(FineCell(cost.gpu_hours));
    if (cost.price) cells.push_back(FineCell(*cost.price));
    text += MarkedRow(columns, std::move(cells), choice, paints);
  }
  return text;
}

// The interval between saves, and time and cost of a run with interruptions. REQUIRES: the goal has
// interruptions.
std::string InterruptionTable(const Estimate& estimate, const std::vector<TableRow>& rows,
                              const Paints& paints, size_t width) {
  const RunGoal& goal = estimate.goal;
  const Interruptions& asked = *goal.interruptions;
  ReportColumns columns;
  AddChoiceColumns(columns, WidthsOf(estimate));
  columns.BeginGroup("save every");
  columns.Add("steps", 7);
  columns.Add("min", 6);
  columns.BeginGroup("a save, s");
  columns.Add("waits", 6);
  columns.Add("whole", 6);
  columns.BeginGroup("");
  columns.Add("lost%", 5);
  if (asked.notice_seconds) columns.Add("notice", 6);
  if (goal.tokens) columns.Add("hours", 7);
  if (goal.tokens && goal.gpu_hour_price) columns.Add("price", 7);
  columns.Add("fits", 4);
  const auto notice = [&] {
    return fmt::format("; notice: whether a save fits {}", TimeText(*asked.notice_seconds));
  };
  std::string text =
      Wrap(fmt::format("Interrupted once in {} on average, by the least times of "
                       "saves{} (docs/checkpoints.md#interrupted-runs):",
                       TimeText(1 / asked.rate), asked.notice_seconds ? notice() : ""),
           2, width) +
      columns.Header(paints);
  for (const TableRow& row : rows) {
    const ChoiceEstimate& choice = *row.choice;
    if (!choice.interrupted) continue;
    const InterruptedCost& cost = *choice.interrupted;
    std::vector<std::string> cells = CellsOf(row, WidthsOf(estimate));
    const auto add = [&](bool known, double value) {
      cells.push_back(known && std::isfinite(value) ? NumberCell(value) : "?");
    };
    cells.push_back(cost.known ? std::to_string(cost.interval_steps) : "?");
    add(cost.known, cost.interval_seconds / 60);
    add(cost.known, cost.save_seconds);
    add(cost.known, cost.whole_save_seconds);
    cells.push_back(cost.known ? fmt::format("{:.1f}", 100 * cost.lost_share) : "?");
    if (asked.notice_seconds) {
      cells.emplace_back(!cost.fits_notice ? "?" : *cost.fits_notice ? "yes" : "no");
    }
    if (goal.tokens) add(cost.known, cost.expected_seconds.value_or(0) / 3600);
    if (goal.tokens && goal.gpu_hour_price) add(cost.known, cost.expected_price.value_or(0));
    text += MarkedRow(columns, std::move(cells), choice, paints);
  }
  return text;
}

std::string Headline(const Estimate& estimate, const Paints& paints, size_t width) {
  const Runtime& runtime = *estimate.runtime;
  std::string text = ModelLine(estimate.model, estimate.seq_len);
  if (runtime.facts().has_recipe) {
    text = fmt::format("{} under {}, {}; {}", estimate.model.name, runtime.version(),
                       RecipeText(estimate.recipe), text);
  }
  text = Wrap(text, 2, width);
  text.pop_back();
  text = fmt::format("{}{}{}\n", paints.bold, text, paints.reset);
  text += Wrap(ClusterLine(estimate.cluster), 2, width);
  // All choices have the same batch. The line shows fp32 reduction of gradients if any choice has
  // it.
  const auto reduces =
      std::find_if(estimate.choices.begin(), estimate.choices.end(),
                   [](const ChoiceEstimate& choice) { return ReducesInFp32(choice.setup); });
  const ChoiceEstimate& shown =
      reduces == estimate.choices.end() ? estimate.choices.front() : *reduces;
  return text + Wrap(BatchLine(shown.setup), 2, width) + '\n';
}

std::string Misfits(const Estimate& estimate, const std::vector<TableRow>& rows, size_t width) {
  std::string text;
  for (const TableRow& row : rows) {
    const ChoiceEstimate& choice = *row.choice;
    if (choice.fits) continue;
    if (text.empty()) {
      text = TimesKnown(estimate)
                 ? "\nWhy not (their times are what they would take if they did):\n"
                 : "\nWhy not:\n";
    }
    std::string label = estimate.runtime->Label(choice.setup);
    const std::string stage = fmt::format("stage {}", choice.setup.zero.stage);
    if (label.starts_with(stage) && row.stages.size() > 1) {
      label = fmt::format("stages {}{}", row.stages, label.substr(stage.size()));
    }
    text += Wrap(fmt::format("  {}: {}", label, choice.why_not), 4, width);
  }
  return text;
}

// Notes on how closely choices fit a PyTorch process, and the margin of error.
std::string MarginNotes(const Estimate& estimate, size_t width) {
  bool once = false, in_steps = false, tight = false;
  for (const ChoiceEstimate& choice : estimate.choices) {
    if (!choice.fits || choice.room == MemoryRoom::kAmple) continue;
    const std::optional<TorchFootprint>& torch = choice.footprint.torch;
    if (choice.footprint.gpu_spare_bytes == 0) {
      tight = true;
    } else {
      (torch && torch->segments_given_back == 0 ? once : in_steps) = true;
    }
  }
  std::string text;
  if (once || in_steps) {
    text += Wrap(fmt::format("* fits because PyTorch gives cached memory back {}.",
                             !once       ? "and asks again, which costs time in every step"
                             : !in_steps ? "once, before its steps are all alike"
                                         : "and asks again: once, before its steps are all alike, "
                                           "or in every step, which costs time"),
                 2, width);
  }
  if (tight) {
    text +=
        Wrap("tight: it fits as predicted, but not with the margin of error of reserved memory.", 2,
             width);
  }
  if (!estimate.margin.empty()) text += Wrap("Margin of error. " + estimate.margin, 2, width);
  return text;
}

// For one choice: the tensors of a PyTorch process by purpose and phase.
std::string TorchPhaseTable(const TorchFootprint& torch, size_t width) {
  const auto gigabytes = [](uint64_t bytes) {
    return fmt::format("{:.2f}", static_cast<double>(bytes) / 1e9);
  };
  ReportColumns columns;
  columns.BeginGroup("");
  columns.Add("GB at the peak of", 17, true);
  for (size_t i = 0; i < kTorchClasses; ++i) {
    const std::string_view name = TorchClassName(static_cast<TorchClass>(i));
    columns.Add(name, std::max<size_t>(name.size(), 8));
  }
  columns.Add("reserved", 8);
  std::string text = columns.Header(Paints(false));
  for (size_t p = 0; p < kTorchPhases; ++p) {
    const auto phase = static_cast<TorchPhase>(p);
    std::vector<std::string> cells = {std::string(TorchPhaseName(phase))};
    for (const uint64_t bytes : torch.peak(phase).class_bytes) cells.push_back(gigabytes(bytes));
    cells.push_back(gigabytes(torch.peak(phase).reserved_bytes));
    text += columns.Row(cells) + '\n';
  }
  return text +
         Wrap(fmt::format("Of reserved memory the phase '{}' decides. Host: {} GB page-locked, "
                          "{} pageable, {} Python and libraries, of one process.",
                          TorchPhaseName(torch.DecidingPhase()), gigabytes(torch.host.pinned_bytes),
                          gigabytes(torch.host.pageable_bytes), gigabytes(torch.host_base_bytes)),
              2, width);
}

// The phases of a PyTorch process outside its steps.
std::string AroundTexts(const TorchFootprint& torch, int ranks_per_node, size_t width) {
  std::string text;
  for (const AroundPeak& peak : torch.around) {
    text += Wrap(AroundText(peak, ranks_per_node), 2, width);
  }
  return text;
}

// For one choice: the time of a PyTorch process's step by cause.
std::string TorchStepText(const TimeEstimate& time, size_t width) {
  if (!time.total_seconds || !time.host_update_seconds) return "";
  return Wrap(
      fmt::format("Step, {:#.3g} s: compute {:.3f}, and waiting for communication {:.3f}, "
                  "for copies {:.3f}, for the update on the host {:.3f}, for Python {:.3f}.",
                  *time.total_seconds, *time.compute_seconds, *time.exposed_comm_seconds,
                  *time.exposed_offload_seconds - *time.host_update_seconds,
                  *time.host_update_seconds, *time.host_overhead_seconds),
      2, width);
}

}  // namespace

std::string ReportTable(const Estimate& estimate, const TableStyle& style) {
  const Paints paints(style.colour);
  const size_t width = style.columns;
  std::string text = style.first.empty() ? "" : Wrap(style.first, 2, width);
  text += Headline(estimate, paints, width);
  const std::vector<TableRow> rows = RowsOf(estimate);
  text +=
      MemoryTable(estimate, rows, paints, width) + '\n' + TimeTable(estimate, rows, paints, width);
  if (estimate.goal.data) {
    text += '\n';
    for (const std::string& paragraph :
         DataParagraphs(estimate.goal, estimate.batch(), estimate.model)) {
      text += Wrap(paragraph, 2, width);
    }
  }
  if (estimate.goal.tokens && TimesKnown(estimate)) {
    text += '\n' + RunTable(estimate, rows, paints, width);
  }
  if (estimate.goal.interruptions && TimesKnown(estimate)) {
    text += '\n' + InterruptionTable(estimate, rows, paints, width);
  }
  if (estimate.choices.size() == 1) {
    const ChoiceEstimate& choice = estimate.choices.front();
    text += choice.footprint.torch ? TorchPhaseTable(*choice.footprint.torch, width)
                                   : '\n' + PhasePeaks(choice, width);
    text += TorchStepText(choice.time, width);
    if (choice.footprint.torch) {
      text += AroundTexts(*choice.footprint.torch, estimate.cluster.ranks_per_node(), width);
    }
    if (choice.time.by_stream) text += '\n' + StreamTimes(*choice.time.by_stream);
  }
  text += Misfits(estimate, rows, width) + '\n' + MarginNotes(estimate, width);
  if (!style.assumed.empty()) {
    text += Wrap(fmt::format("Assumed: {}", fmt::join(style.assumed, ", ")), 2, width);
  }
  for (const std::string& note : style.notes) text += Wrap(note, 2, width);
  return text;
}

namespace {

bool OnDisk(const ChoiceEstimate& choice) { return choice.footprint.nvme_bytes > 0; }

bool Offloads(const ChoiceEstimate& choice) {
  return choice.setup.zero.offload_optimizer.device != OffloadDevice::kNone ||
         choice.setup.zero.offload_param.device != OffloadDevice::kNone;
}

std::string ScreenTable(const Estimate& estimate, const std::vector<TableRow>& rows,
                        const Paints& paints, size_t width) {
  const ByteUnit unit = CommonUnit(estimate);
  ReportColumns columns;
  AddChoiceColumns(columns, WidthsOf(estimate));
  columns.BeginGroup(fmt::format("{} of a GPU", unit.name));
  const size_t params = columns.Add("params", 6), grads = columns.Add("grads", 5);
  const size_t optim = columns.Add("optim", 5), activ = columns.Add("activ", 5);
  columns.BeginGroup("GPU GB");
  columns.Add(OfCapacity(estimate.cluster.gpu_capacity_bytes), 7);
  columns.BeginGroup("host GB");
  columns.Add(OfCapacity(estimate.cluster.host_capacity_bytes), 7);
  columns.BeginGroup("");
  columns.Add("tok/s", 6);
  columns.Add("fits", 4);
  columns.LeaveOut({grads, optim, params, activ}, width);
  std::string text = columns.Header(paints);
  for (const TableRow& row : rows) {
    const ChoiceEstimate& choice = *row.choice;
    std::vector<std::string> cells = CellsOf(row, WidthsOf(estimate));
    for (const NamedBytes& part : GpuClasses(choice.footprint)) {
      if (part.name != "buffers" && part.name != "runtime") {
        cells.push_back(ByteCell(part.bytes, unit));
      }
    }
    cells.push_back(GigabyteCell(choice.footprint.gpu_total()));
    cells.push_back(GigabyteCell(choice.footprint.host.total()));
    cells.push_back(TokensCell(choice.time.tokens_per_second));
    text += MarkedRow(columns, std::move(cells), choice, paints);
  }
  return text;
}

}  // namespace

std::string EstimateScreen(const Estimate& estimate, const TableStyle& style, bool disks,
                           const ScreenNotes& notes) {
  const Paints paints(style.colour);
  const size_t width = style.columns;
  std::vector<TableRow> rows = RowsOf(estimate);
  const bool none_else = std::none_of(rows.begin(), rows.end(), [](const TableRow& row) {
    return row.choice->fits && !OnDisk(*row.choice);
  });
  if (!disks && !none_else) {
    std::erase_if(rows, [](const TableRow& row) { return OnDisk(*row.choice); });
  }
  std::stable_sort(rows.begin(), rows.end(), [](const TableRow& a, const TableRow& b) {
    const auto rank = [](const TableRow& row) {
      return (row.choice->fits ? 0 : 2) + (Offloads(*row.choice) ? 1 : 0);
    };
    return rank(a) < rank(b);
  });
  const Capacity capacity = CapacityOf(estimate.cluster);
  const ChoiceEstimate& closest =
      *std::min_element(rows.begin(), rows.end(), [&](const TableRow& a, const TableRow& b) {
         return Excess(a.choice->footprint.totals(), capacity) <
                Excess(b.choice->footprint.totals(), capacity);
       })->choice;
  size_t more = 0, more_fit = 0;
  while (rows.size() > kEstimateRows) {
    ++more;
    more_fit += rows.back().choice->fits ? 1 : 0;
    rows.pop_back();
  }
  std::string text = style.first.empty() ? "" : Wrap(style.first, 2, width);
  text += Headline(estimate, paints, width);
  text.pop_back();
  text += ScreenTable(estimate, rows, paints, width);
  if (more > 0) {
    text += fmt::format("{} more row{}, {} of which fit{}.\n", more, more == 1 ? "" : "s", more_fit,
                        more_fit == 1 ? "s" : "");
  }
  const ChoiceEstimate& first = *rows.front().choice;
  if (!first.fits) {
    text += Wrap(fmt::format("Nothing fits. Closest: {}: {}.",
                             estimate.runtime->Label(closest.setup), closest.why_not),
                 2, width);
  }
  if (estimate.goal.tokens && first.time.total_seconds) {
    text +=
        Wrap(fmt::format("{}: {}", estimate.runtime->Label(first.setup),
                         RunCostLine(estimate.goal, first.setup.batch, *first.time.total_seconds)),
             2, width);
  }
  return text + ScreenEnd(notes, width, style.colour);
}

}  // namespace zeroplan
