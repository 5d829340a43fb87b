// What a step does: where its time goes, and what it holds meanwhile.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/base/units.h"
#include "planner/estimate/cause_seconds.h"
#include "planner/explain/step_memory.h"
#include "planner/page/charts.h"
#include "planner/page/choice_pictures.h"
#include "planner/page/svg.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

std::string SecondsText(double seconds) { return seconds == 0 ? "-" : FormatSeconds(seconds); }

// "backward of the last micro-step"
std::string PlaceName(const StepMemory& memory, const MemoryMoment& moment) {
  const std::string& part = memory.parts[moment.part].name;
  return moment.phase == Phase::kStep ? part : fmt::format("{}, {}", PhaseName(moment.phase), part);
}

std::vector<AreaColumn> ColumnsOf(const StepMemory& memory, uint64_t runtime_bytes) {
  std::vector<AreaColumn> columns;
  for (size_t i = 0; i < memory.moments.size(); ++i) {
    const MemoryMoment& moment = memory.moments[i];
    AreaColumn column;
    column.begin = moment.seconds;
    column.end = i + 1 < memory.moments.size() ? memory.moments[i + 1].seconds : memory.seconds;
    column.parts.push_back(static_cast<double>(runtime_bytes));
    std::vector<std::string> held;
    for (size_t c = 0; c < moment.live.size(); ++c) {
      column.parts.push_back(static_cast<double>(moment.live[c]));
      if (moment.live[c] == 0) continue;
      held.push_back(fmt::format("{} {}", MemoryClassName(static_cast<MemoryClass>(c)),
                                 FormatBytes(moment.live[c])));
    }
    column.title =
        fmt::format("{}, at {}: {} ({})", PlaceName(memory, moment), FormatSeconds(moment.seconds),
                    FormatBytes(TotalOf(moment.live) + runtime_bytes), fmt::join(held, ", "));
    columns.push_back(std::move(column));
  }
  return columns;
}

// Where parts of the step, and within a step of one micro-step its phases, begin.
std::vector<std::pair<double, std::string>> Begins(const StepMemory& memory) {
  std::vector<std::pair<double, std::string>> begins;
  if (memory.parts.size() == 2) {
    std::optional<Phase> phase;
    for (const MemoryMoment& moment : memory.moments) {
      if (phase == moment.phase) continue;
      phase = moment.phase;
      begins.emplace_back(moment.seconds,
                          *phase == Phase::kStep ? "update" : std::string(PhaseName(*phase)));
    }
    return begins;
  }
  for (const StepMemory::Part& part : memory.parts) {
    begins.emplace_back(part.begin_seconds, part.times > 1
                                                ? fmt::format("{} (1 of {})", part.name, part.times)
                                                : part.name);
  }
  return begins;
}

PageTable PhaseTable(const StepMemory& memory, const MemoryReport& report) {
  PageTable table;
  table.heads = {"phase"};
  for (int c = 0; c < kMemoryClasses; ++c) {
    table.heads.emplace_back(MemoryClassName(static_cast<MemoryClass>(c)));
  }
  table.heads.emplace_back("live");
  table.heads.emplace_back("largest buffers");
  table.last_is_text = true;
  uint64_t most = 0;
  for (int p = 0; p < kPhases; ++p) {
    const PhasePeak& peak = report.phases[static_cast<size_t>(p)];
    if (peak.bytes == 0) continue;
    std::vector<std::string> cells = {std::string(PhaseName(static_cast<Phase>(p)))};
    for (const uint64_t bytes : memory.at_phase_peak[static_cast<size_t>(p)]) {
      cells.push_back(bytes == 0 ? "-" : FormatBytes(bytes));
    }
    cells.push_back(FormatBytes(peak.bytes));
    std::vector<std::string> largest;
    for (const Culprit& culprit : peak.culprits) {
      largest.push_back(fmt::format("{} {}", CulpritName(culprit), FormatBytes(culprit.bytes)));
    }
    cells.push_back(fmt::format("{}", fmt::join(largest, ", ")));
    if (peak.bytes > most) {
      most = peak.bytes;
      table.marked = {table.rows.size()};
    }
    table.rows.push_back(std::move(cells));
  }
  table.note = "At the highest moment of each phase, without runtime; the highest of all is bold.";
  return table;
}

}  // namespace

std::optional<Picture> StepTimePicture(const std::vector<ShownChoice>& choices,
                                       const std::optional<double>& tokens) {
  BarChart chart;
  chart.name = "Seconds of a step by cause, of each choice";
  chart.quantity = Quantity::kSeconds;
  chart.parts = {"compute", "exposed communication", "exposed offload", "optimizer"};
  chart.cut_long = true;
  Picture picture;
  picture.id = "step-time";
  picture.title = "Time of a step by cause";
  picture.table.heads = {"choice",          "compute",   "exposed comm.",
                         "exposed offload", "optimizer", "total",
                         "tokens/s",        "MFU",       "fits"};
  for (const ShownChoice& choice : choices) {
    const TimeEstimate& time = choice.estimate->time;
    if (!time.total_seconds || !time.tokens_per_second) continue;
    const double own_tokens = *time.tokens_per_second * *time.total_seconds;
    const CauseSeconds spent = SecondsForTokens(time, tokens.value_or(own_tokens));
    const bool fits = choice.estimate->fits;
    Bar bar{choice.label + (fits ? "" : " (does\u00A0not\u00A0fit)"),
            {spent.compute, spent.exposed_comm, spent.exposed_offload, spent.optimizer},
            !fits,
            FormatSeconds(spent.total)};
    chart.bars.push_back(std::move(bar));
    if (choice.marked) picture.table.marked.push_back(picture.table.rows.size());
    picture.table.rows.push_back(
        {choice.label, SecondsText(spent.compute), SecondsText(spent.exposed_comm),
         SecondsText(spent.exposed_offload), SecondsText(spent.optimizer), SecondsText(spent.total),
         FormatCount(static_cast<uint64_t>(*time.tokens_per_second)),
         time.mfu ? fmt::format("{:.1f} %", 100 * *time.mfu) : "?", fits ? "yes" : "no"});
  }
  if (chart.bars.empty()) return std::nullopt;
  picture.about =
      tokens ? fmt::format("Each choice's time for as many tokens as a step of the answer has, {}.",
                           FormatCount(static_cast<uint64_t>(*tokens)))
             : "One optimizer step.";
  picture.about +=
      " Exposed is what the compute stream waits for; what hides beside compute costs nothing.";
  if (CutsBars(chart)) {
    picture.about += " Bars with an arrow go on beyond the picture: their figure says how far.";
  }
  for (size_t i = 0; i < chart.parts.size(); ++i) {
    picture.legend.push_back({ColourClass(i), chart.parts[i]});
  }
  picture.wide = DrawBars(chart, kWidePicture);
  picture.narrow = DrawBars(chart, kNarrowPicture);
  return picture;
}

Picture StepMemoryPicture(const Program& program, const Footprint& footprint,
                          const MemoryReport& report, const std::string& label,
                          const CostModel& costs) {
  const StepMemory memory = MemoryOverStep(program, costs);
  const uint64_t runtime = footprint.runtime_bytes;
  AreaChart chart;
  chart.name = "Memory of one GPU over one step, by class";
  chart.parts = {"runtime"};
  for (int c = 0; c < kMemoryClasses; ++c) {
    chart.parts.emplace_back(MemoryClassName(static_cast<MemoryClass>(c)));
  }
  chart.columns = ColumnsOf(memory, runtime);
  chart.limit = Limit{static_cast<double>(footprint.gpu_total()),
                      FormatBytes(footprint.gpu_total()) + " taken for the whole run"};
  const MemoryMoment& peak = memory.moments[memory.peak];
  chart.peak = memory.peak;
  chart.peak_label = fmt::format("most is live: {}, {}", FormatBytes(TotalOf(peak.live) + runtime),
                                 PhaseName(peak.phase));
  chart.parts_of_x = Begins(memory);
  Picture picture;
  picture.id = "step-memory";
  picture.title = "Memory over the step";
  const PhasePeak& culprits = report.phases[static_cast<size_t>(peak.phase)];
  std::vector<std::string> largest;
  for (const Culprit& culprit : culprits.culprits) {
    if (largest.size() == 3) break;
    largest.push_back(fmt::format("{} ({})", CulpritName(culprit), FormatBytes(culprit.bytes)));
  }
  picture.about = fmt::format(
      "What is live on one GPU while a step of {} runs, over predicted time. The largest at the "
      "peak: {}. The line is what a run allocates when it starts, gaps between buffers included.",
      label, fmt::join(largest, ", "));
  // Runtime lies lowest and keeps the colour that it has in bars.
  for (size_t i = 0; i < chart.parts.size(); ++i) {
    picture.legend.push_back({ColourClass((i + kGpuClasses - 1) % kGpuClasses), chart.parts[i]});
  }
  chart.first_colour = kGpuClasses - 1;
  picture.table = PhaseTable(memory, report);
  picture.wide = DrawArea(chart, kWidePicture);
  picture.narrow = DrawArea(chart, kNarrowPicture);
  return picture;
}

}  // namespace zeroplan
