#include "planner/explain/explain.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "core/base/units.h"
#include "core/model/param_table.h"
#include "core/program/chrome_trace.h"
#include "core/program/save_copy.h"
#include "planner/estimate/choices.h"
#include "planner/explain/compute_waits.h"
#include "planner/explain/lanes.h"
#include "planner/explain/step_memory.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

struct Part {
  std::string name;
  PlayedPart played;
};

std::vector<Part> PlayParts(const Program& program, const CostModel& costs) {
  std::vector<PlayedPart> step = StepTimer(costs).PlayStep(program);
  std::vector<std::string> names;
  for (size_t i = 0; i < step.size(); ++i) names.push_back(PartName(step, i));
  std::vector<Part> parts;
  for (size_t i = 0; i < step.size(); ++i) {
    parts.push_back({std::move(names[i]), std::move(step[i])});
  }
  return parts;
}

std::string Choice(const Program& program, const ChoiceEstimate& choice, const Cluster& cluster) {
  std::string text = Wrap(ModelLine(program.model, program.setup.batch.seq_len), 2);
  text += Wrap(ClusterLine(cluster), 2);
  text += Wrap(BatchLine(choice.setup), 2);
  std::string sentence = fmt::format(
      "\nZeRO {}{}: {} of {} on each GPU", SetupLabel(choice.setup),
      choice.setup.recompute.every > 1
          ? fmt::format(" in segments of {} layers", choice.setup.recompute.every)
          : "",
      FormatBytes(choice.footprint.gpu_total()), FormatBytes(cluster.gpu_capacity_bytes));
  if (choice.footprint.host.total() > 0) {
    sentence += fmt::format(", {} on each host", FormatBytes(choice.footprint.host.total()));
  }
  if (choice.footprint.nvme_bytes > 0) {
    sentence += fmt::format(", {} on each node's disk", FormatBytes(choice.footprint.nvme_bytes));
  }
  sentence += choice.fits ? "; it fits." : fmt::format("; it does not fit: {}.", choice.why_not);
  const TimeEstimate& time = choice.time;
  if (time.total_seconds) {
    sentence += fmt::format(
        " A step takes {}: {} tokens/s on all GPUs, MFU {:.1f} %.",
        FormatSeconds(*time.total_seconds),
        FormatCount(static_cast<uint64_t>(std::llround(*time.tokens_per_second))), 100 * *time.mfu);
  }
  return text + '\n' + Wrap(sentence.substr(1), 2);
}

std::string Memory(const Program& program, const ChoiceEstimate& choice, const Cluster& cluster) {
  std::vector<std::string> parts;
  for (const NamedBytes& part : GpuClasses(choice.footprint)) {
    if (part.bytes > 0) parts.push_back(fmt::format("{} {}", part.name, FormatBytes(part.bytes)));
  }
  return "\nMemory\n" + PhasePeaks(choice) +
         Wrap(fmt::format("  At the highest of these one GPU holds {}; in all {}.",
                          fmt::join(parts, ", "), FormatBytes(choice.footprint.gpu_total())),
              2) +
         (SavesFromCopy(program)
              ? Wrap(fmt::format(
                         "  Of a host's memory {} are a copy of the states, from which saves "
                         "are written beside the steps.",
                         FormatBytes(SaveCopyBytes(program) *
                                     static_cast<uint64_t>(cluster.ranks_per_node()))),
                     2)
              : "");
}

// What is less of a whole than this is left out, or summed up.
constexpr double kLeastShare = 1e-3;

// Seconds of kernels by phase and name; waits by the stream that is waited for.
std::string SpentOn(const Program& program, const PlayedPart& played) {
  const std::vector<Instruction>& list = program.section(played.section);
  std::map<Phase, double> phases;
  std::map<std::string, double> kernels;
  for (const PlayedSpan& span : played.spans) {
    if (span.section != played.section) continue;  // of the last step, no kernel
    const Instruction& instruction = list[span.index];
    const double seconds = played.seconds[span.index];
    if (instruction.stream == Stream::kCompute) phases[instruction.phase] += seconds;
    if (std::holds_alternative<LaunchKernel>(instruction.op)) {
      const bool host = instruction.stream == Stream::kHost;
      kernels[InstructionName(instruction) + (host ? " on the host" : "")] += seconds;
    }
  }
  std::vector<std::string> parts;
  for (const auto& [phase, seconds] : phases) {
    if (seconds < kLeastShare * played.time.total_seconds) continue;
    parts.push_back(fmt::format("{} {}", phase == Phase::kStep ? "update" : PhaseName(phase),
                                FormatSeconds(seconds)));
  }
  for (int s = 0; s < kStreams; ++s) {
    const double seconds = played.time.exposed(static_cast<Stream>(s));
    if (seconds < kLeastShare * played.time.total_seconds) continue;
    parts.push_back(fmt::format("waiting for {} {}", StreamName(static_cast<Stream>(s)),
                                FormatSeconds(seconds)));
  }
  std::vector<std::pair<double, std::string>> largest;
  largest.reserve(kernels.size());
  for (const auto& [name, seconds] : kernels) largest.emplace_back(seconds, name);
  std::sort(largest.rbegin(), largest.rend());
  if (largest.size() > 3) largest.resize(3);
  std::vector<std::string> names;
  for (const auto& [seconds, name] : largest) {
    if (seconds > 0) names.push_back(fmt::format("{} {}", name, FormatSeconds(seconds)));
  }
  std::string text = fmt::format("{}", fmt::join(parts, ", "));
  if (!names.empty()) text += fmt::format("; largest kernels: {}", fmt::join(names, ", "));
  return text;
}

std::string Times(const Program& program, const std::vector<Part>& parts) {
  std::string text = "\nTime of one step (what is under 0.1 % is left out)\n";
  double total = 0;
  for (const Part& part : parts) {
    const double seconds = part.played.time.total_seconds;
    total += seconds * static_cast<double>(part.played.times);
    const std::string name =
        part.played.times == 1 ? part.name : fmt::format("{} x {}", part.name, part.played.times);
    const std::string each = part.played.times == 1 ? "" : " each";
    text += Wrap(fmt::format("  {:<22}{:>9}{}: {}", name, FormatSeconds(seconds), each,
                             SpentOn(program, part.played)),
                 6);
  }
  return text + fmt::format("  {:<22}{:>9}\n", "in all", FormatSeconds(total));
}

std::string Lanes(const Program& program, const std::vector<Part>& parts) {
  // The middle one where there is one: it is what most of a step looks like. Else the last.
  const Part* micro = nullptr;
  for (const Part& part : parts) {
    if (part.played.section != Section::kMicroStep) continue;
    if (micro != nullptr && micro->played.kinds == kMiddle && part.played.kinds == kLast) break;
    micro = &part;
  }
  std::string text, rows;
  for (const Part* part : {micro, &parts.back()}) {
    const std::string drawn = DrawLanes(program, part->played);
    if (drawn.empty()) continue;
    text += fmt::format("\n{}{}, stream by stream\n{}",
                        part->name[0] == 'u' ? "The "
                        : part == micro      ? "One "
                                             : "",
                        part->name, drawn);
    rows += drawn;
  }
  return text + Wrap("  " + LaneLegend(rows), 2);
}

// Waits of one kind, such as for the gathers of parameters in the backward pass.
struct WaitGroup {
  double seconds = 0;  // in one step
  int64_t count = 0;
  double longest_seconds = 0;  // of one wait
  std::string longest;         // what that was for
};

// The kind ("all_gather of gathered, backward") and the very one ("gathered.unit[13], layer 12").
std::pair<std::string, std::string> WaitNames(const Program& program, Section section,
                                              int64_t index) {
  if (index < 0) return {"what no instruction explains", ""};
  const Instruction& instruction = program.section(section)[static_cast<size_t>(index)];
  BufferId written = kNoBuffer;
  ForEachAccess(program, instruction, [&](const Ref& ref, ArgMode mode) {
    if (written == kNoBuffer && Writes(mode)) written = ref.buffer;
  });
  // A collective's name says its stream.
  std::string kind = std::holds_alternative<Collective>(instruction.op)
                         ? ""
                         : fmt::format("{} ", StreamName(instruction.stream));
  kind += InstructionName(instruction);
  const std::string name = LayerName(program, instruction.layer);
  const std::string layer = name.empty() ? "" : ", " + name;
  if (written == kNoBuffer)
    return {fmt::format("{}, {}", kind, PhaseName(instruction.phase)), layer};
  const Buffer& buffer = program.buffers[written];
  return {fmt::format("{} of {}, {}", kind, buffer.label, PhaseName(instruction.phase)),
          BufferName(buffer) + layer};
}

std::string Waits(const Program& program, const std::vector<Part>& parts) {
  constexpr size_t kShown = 8;
  std::map<std::string, WaitGroup> by_kind;
  double exposed = 0, waited = 0, total = 0;
  for (const Part& part : parts) {
    const auto times = static_cast<double>(part.played.times);
    const SectionTime& time = part.played.time;
    total += times * time.total_seconds;
    exposed += times * (time.total_seconds - time.compute_seconds - time.optimizer_seconds);
    for (const ComputeWait& wait : ComputeWaits(program, part.played)) {
      const auto [kind, one] = WaitNames(program, wait.section, wait.waited_for);
      WaitGroup& group = by_kind[kind];
      group.seconds += times * wait.seconds;
      group.count += part.played.times;
      if (wait.seconds > group.longest_seconds) {
        group.longest_seconds = wait.seconds;
        group.longest = one;
      }
      waited += times * wait.seconds;
    }
  }
  const double least = kLeastShare * total;
  if (exposed < least) return "\nThe compute stream hardly ever waits.\n";
  std::vector<std::pair<std::string, WaitGroup>> kinds(by_kind.begin(), by_kind.end());
  std::stable_sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) {
    return a.second.seconds > b.second.seconds;
  });
  std::string text = fmt::format("\nWhat the compute stream waits for: {} of the step ({:.1f} %)\n",
                                 FormatSeconds(exposed), 100 * exposed / total);
  double rest = 0;
  for (size_t i = 0; i < kinds.size(); ++i) {
    const auto& [kind, group] = kinds[i];
    if (i >= kShown || group.seconds < least) {
      rest += group.seconds;
      continue;
    }
    std::string line = fmt::format("  {:>9.3f} ms  {}", 1e3 * group.seconds, kind);
    if (group.count > 1) {
      line += fmt::format(": {} waits, the longest {:.3f} ms", group.count,
                          1e3 * group.longest_seconds);
    }
    if (!group.longest.empty()) line += fmt::format(" ({})", group.longest);
    text += Wrap(line, 16);
  }
  if (rest > 0) text += fmt::format("  {:>9.3f} ms  others\n", 1e3 * rest);
  if (exposed - waited > least) {
    text += fmt::format("  {:>9.3f} ms  kernels slowed down by collectives beside them\n",
                        1e3 * (exposed - waited));
  }
  return text;
}

}  // namespace

std::string Explain(const Program& program, const ChoiceEstimate& choice, const Cluster& cluster,
                    const CostModel& costs) {
  const std::vector<Part> parts = PlayParts(program, costs);
  return Choice(program, choice, cluster) + Memory(program, choice, cluster) +
         Times(program, parts) + Lanes(program, parts) + Waits(program, parts);
}

}  // namespace zeroplan
