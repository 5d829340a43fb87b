#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "planner/explain/explain.h"

namespace zeroplan {
namespace {

struct ShownPart {
  PlayedPart played;
  std::vector<double> reached;  // by instruction: when the compute stream comes to it
};

// When the compute stream comes to each place of the section's list.
std::vector<double> Reached(const Program& program, const PlayedPart& played) {
  const std::vector<Instruction>& list = program.section(played.section);
  std::vector<double> ends(list.size(), -1);
  for (const PlayedSpan& span : played.spans) {
    if (span.section != played.section || span.carried) continue;
    if (list[span.index].stream == Stream::kCompute) ends[span.index] = span.end_seconds;
  }
  std::vector<double> reached(list.size(), 0);
  double now = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    reached[i] = now;
    now = std::max(now, ends[i]);
  }
  return reached;
}

}  // namespace

uint64_t TotalOf(const ClassBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
}

std::string PartName(const std::vector<PlayedPart>& step, size_t i) {
  const PlayedPart& part = step[i];
  if (part.section == Section::kOptimizerStep) return "update";
  if (part.kinds == kOnly) return "micro-step";
  if (part.kinds == kFirst) return "first micro-step";
  if (part.kinds == kLast) return "last micro-step";
  return step[i + 1].kinds == kMiddle ? fmt::format("micro-step {}", part.first_micro_step + 1)
                                      : "middle micro-step";
}

StepMemory MemoryOverStep(const Program& program, const CostModel& costs) {
  const std::vector<PlayedPart> step = StepTimer(costs).PlayStep(program);
  StepMemory memory;
  std::vector<ShownPart> shown;
  int64_t middle = 0;
  for (size_t i = 0; i < step.size(); ++i) {
    const bool is_middle = step[i].kinds == kMiddle;
    if (is_middle) middle += step[i].times;
    if (is_middle && step[i + 1].kinds == kMiddle) continue;
    memory.parts.push_back({PartName(step, i), memory.seconds, is_middle ? middle : 1});
    memory.seconds += step[i].time.total_seconds;
    shown.push_back({step[i], Reached(program, step[i])});
  }
  WalkMemory(program, [&](const LiveBytes& live) {
    ClassBytes& peak = memory.at_phase_peak[static_cast<size_t>(live.phase)];
    if (TotalOf(live.class_bytes) > TotalOf(peak)) peak = live.class_bytes;
    for (size_t p = 0; p < shown.size(); ++p) {
      const PlayedPart& played = shown[p].played;
      if (played.section != live.section || played.kinds != live.kinds) continue;
      memory.moments.push_back({memory.parts[p].begin_seconds + shown[p].reached[live.index], p,
                                live.phase, live.class_bytes});
    }
  });
  for (size_t i = 0; i < memory.moments.size(); ++i) {
    if (TotalOf(memory.moments[i].live) > TotalOf(memory.moments[memory.peak].live)) {
      memory.peak = i;
    }
  }
  return memory;
}

}  // namespace zeroplan
