// What a step holds meanwhile.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/base/units.h"
#include "planner/explain/explain.h"
#include "planner/page/charts.h"
#include "planner/page/choice_pictures.h"
#include "planner/page/svg.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

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

Picture StepMemoryPicture(const Program& program, const Footprint& footprint,
                          const MemoryReport& report, const std::string& label,
                          const CostModel& costs) {
  const StepMemory memory = MemoryOverStep(program, costs);
  const uint64_t runtime = footprint.runtime_bytes;
  AreaChart chart{.name = "Memory of one GPU over one step, by class",
                  .parts = {"runtime"},
                  .first_colour = kGpuClasses - 1};  // as runtime has in bars
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
  Picture picture{.id = "step-memory", .title = "Memory over the step"};
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
  picture.legend = LegendOf(chart.parts, chart.first_colour);
  picture.table = PhaseTable(memory, report);
  picture.Draw(DrawArea, chart);
  return picture;
}

}  // namespace zeroplan
