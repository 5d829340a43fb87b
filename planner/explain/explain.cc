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
#include "core/program/step_order.h"
#include "planner/estimate/choices.h"
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

std::string Choice(const Program& program, const ChoiceEstimate& choice, const Cluster& cluster,
                   size_t columns) {
  std::string text = Wrap(ModelLine(program.model, program.setup.batch.seq_len), 2, columns);
  text += Wrap(ClusterLine(cluster), 2, columns);
  text += Wrap(BatchLine(choice.setup), 2, columns);
  std::string sentence = fmt::format("\nZeRO {}: {} of {} on each GPU", SetupLabel(choice.setup),
                                     FormatBytes(choice.footprint.gpu_total()),
                                     FormatBytes(cluster.gpu_capacity_bytes));
  if (choice.footprint.host.total() > 0) {
    sentence += fmt::format(", {} on each host", FormatBytes(choice.footprint.host.total()));
  }
  if (choice.footprint.nvme_bytes > 0) {
    sentence += fmt::format(", {} on each node's disk", FormatBytes(choice.footprint.nvme_bytes));
  }
  sentence += choice.fits ? "; it fits." : fmt::format("; it does not fit: {}.", choice.why_not);
  const TimeEstimate& time = choice.time;
  if (time.total_seconds) {
    sentence += fmt::format(" A step takes {}: {} tokens/s on all GPUs, MFU {:.1f} %.",
                            FormatSeconds(*time.total_seconds), FormatRate(*time.tokens_per_second),
                            100 * *time.mfu);
  }
  return text + '\n' + Wrap(sentence.substr(1), 2, columns);
}

std::string Memory(const Program& program, const ChoiceEstimate& choice, const Cluster& cluster,
                   size_t columns) {
  std::vector<std::string> parts;
  for (const NamedBytes& part : GpuClasses(choice.footprint)) {
    if (part.bytes > 0) parts.push_back(fmt::format("{} {}", part.name, FormatBytes(part.bytes)));
  }
  return "\nMemory\n" + PhasePeaks(choice, columns) +
         Wrap(fmt::format("  At the highest of these one GPU holds {}; in all {}.",
                          fmt::join(parts, ", "), FormatBytes(choice.footprint.gpu_total())),
              2, columns) +
         (SavesFromCopy(program)
              ? Wrap(fmt::format(
                         "  Of a host's memory {} are a copy of the states, from which saves "
                         "are written beside the steps.",
                         FormatBytes(SaveCopyBytes(program) *
                                     static_cast<uint64_t>(cluster.ranks_per_node()))),
                     2, columns)
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

std::string Times(const Program& program, const std::vector<Part>& parts, size_t columns) {
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
                 6, columns);
  }
  return text + fmt::format("  {:<22}{:>9}\n", "in all", FormatSeconds(total));
}

std::string Lanes(const Program& program, const std::vector<Part>& parts, size_t columns) {
  // The middle one where there is one: it is what most of a step looks like. Else the last.
  const Part* micro = nullptr;
  for (const Part& part : parts) {
    if (part.played.section != Section::kMicroStep) continue;
    if (micro != nullptr && micro->played.kinds == kMiddle && part.played.kinds == kLast) break;
    micro = &part;
  }
  std::string text, rows;
  for (const Part* part : {micro, &parts.back()}) {
    const std::string drawn = DrawLanes(program, part->played, columns);
    if (drawn.empty()) continue;
    text += fmt::format("\n{}{}, stream by stream\n{}",
                        part->name[0] == 'u' ? "The "
                        : part == micro      ? "One "
                                             : "",
                        part->name, drawn);
    rows += drawn;
  }
  return text + Wrap("  " + LaneLegend(rows), 2, columns);
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

std::string Waits(const Program& program, const std::vector<Part>& parts, size_t columns) {
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
    text += Wrap(line, 16, columns);
  }
  if (rest > 0) text += fmt::format("  {:>9.3f} ms  others\n", 1e3 * rest);
  if (exposed - waited > least) {
    text += fmt::format("  {:>9.3f} ms  kernels slowed down by collectives beside them\n",
                        1e3 * (exposed - waited));
  }
  return text;
}

// Finds out which instruction a wait that ended at some time was for.
class WaitResolver {
 public:
  WaitResolver(const Program& program, const PlayedPart& played)
      : program_(program),
        section_(played.section),
        list_(program.section(played.section)),
        // A step's first micro-step finds what an update left, the others what one of them did.
        carried_from_((played.kinds & kTakesFromMicroStep) != 0 ? Section::kMicroStep
                                                                : Section::kOptimizerStep),
        total_(played.time.total_seconds),
        span_of_(list_.size() + program.section(carried_from_).size(), -1),
        record_of_(program.event_count, -1) {
    for (size_t s = 0; s < played.spans.size(); ++s) {
      span_of_[Id(played.spans[s])] = static_cast<int64_t>(s);
    }
    for (size_t i = 0; i < list_.size(); ++i) {
      if (played.section == Section::kMicroStep && (list_[i].when & played.kinds) == 0) continue;
      queues_[static_cast<size_t>(list_[i].stream)].push_back(i);
      if (const auto* record = std::get_if<RecordEvent>(&list_[i].op)) {
        record_of_[record->event] = static_cast<int64_t>(i);
      }
    }
    spans_ = &played.spans;
  }

  // What an instruction is called here: its index, or past the section's if it was carried in.
  size_t Id(const PlayedSpan& span) const { return span.index + (span.carried ? list_.size() : 0); }
  Stream StreamOf(const PlayedSpan& span) const {
    return program_.section(span.section)[span.index].stream;
  }
  ComputeWait Wait(double seconds, int64_t id) const {
    const auto own = static_cast<int64_t>(list_.size());
    if (id < own) return {seconds, id, section_};
    return {seconds, id - own, carried_from_};
  }

  const std::vector<size_t>& queue(Stream stream) const {
    return queues_[static_cast<size_t>(stream)];
  }
  const PlayedSpan* SpanOf(size_t index) const {
    return span_of_[index] < 0 ? nullptr : &(*spans_)[static_cast<size_t>(span_of_[index])];
  }

  // What ended at `time` and held back queue position `at` of `stream`: through the waits in front
  // of it, or, from the second hop on, as the instruction before it.
  int64_t Resolve(Stream stream, size_t at, double time, int hops = 0) const {
    const std::vector<size_t>& queue = queues_[static_cast<size_t>(stream)];
    for (size_t q = at; q-- > 0;) {
      const PlayedSpan* span = SpanOf(queue[q]);
      if (span != nullptr) {
        if (hops > 0 && Near(span->end_seconds, time)) return span->index;
        break;
      }
      const auto* wait = std::get_if<WaitEvent>(&list_[queue[q]].op);
      if (wait == nullptr || record_of_[wait->event] < 0 || hops > kStreams) continue;
      const auto record = static_cast<size_t>(record_of_[wait->event]);
      if (record > queue[q]) continue;  // for the record that was carried in
      const Stream recorder = list_[record].stream;
      const std::vector<size_t>& theirs = queues_[static_cast<size_t>(recorder)];
      const auto position = std::lower_bound(theirs.begin(), theirs.end(), record);
      const int64_t found =
          Resolve(recorder, static_cast<size_t>(position - theirs.begin()), time, hops + 1);
      if (found >= 0) return found;
    }
    return -1;
  }

  // What held back instruction `index` until `time`.
  int64_t Before(int64_t index, double time) const {
    if (index >= static_cast<int64_t>(list_.size())) return EndedAt(time);  // carried in
    const Stream stream = list_[static_cast<size_t>(index)].stream;
    const std::vector<size_t>& queue = queues_[static_cast<size_t>(stream)];
    const auto position = std::lower_bound(queue.begin(), queue.end(), static_cast<size_t>(index));
    return Resolve(stream, static_cast<size_t>(position - queue.begin()), time, 1);
  }

  // Whatever ended at `time` off the compute stream.
  int64_t EndedAt(double time) const {
    for (const PlayedSpan& span : *spans_) {
      if (Near(span.end_seconds, time) && StreamOf(span) != Stream::kCompute) {
        return static_cast<int64_t>(Id(span));
      }
    }
    return -1;
  }
  bool Near(double a, double b) const { return std::abs(a - b) <= 1e-9 * total_; }

 private:
  const Program& program_;
  const Section section_;
  const std::vector<Instruction>& list_;
  const Section carried_from_;
  double total_;
  const std::vector<PlayedSpan>* spans_ = nullptr;
  std::vector<int64_t> span_of_;    // by instruction
  std::vector<int64_t> record_of_;  // by event
  std::array<std::vector<size_t>, kStreams> queues_;
};

// Takes the wait from `begin` to `end` apart, `last` being what ended it.
void AddWait(const WaitResolver& resolver, double begin, double end, int64_t last,
             std::vector<ComputeWait>& waits) {
  const auto first = static_cast<std::ptrdiff_t>(waits.size());
  while (end > begin && !resolver.Near(begin, end)) {
    if (last < 0) last = resolver.EndedAt(end);
    if (last < 0) {
      waits.push_back(resolver.Wait(end - begin, -1));
      break;
    }
    const double since = std::max(begin, resolver.SpanOf(static_cast<size_t>(last))->begin_seconds);
    if (since >= end) {  // it takes no time: whatever else ended then
      waits.push_back(resolver.Wait(end - begin, last));
      break;
    }
    waits.push_back(resolver.Wait(end - since, last));
    last = resolver.Before(last, since);
    end = since;
  }
  std::reverse(waits.begin() + first, waits.end());
}

}  // namespace

std::string Explain(const Program& program, const ChoiceEstimate& choice, const Cluster& cluster,
                    const CostModel& costs, size_t columns) {
  const std::vector<Part> parts = PlayParts(program, costs);
  return Choice(program, choice, cluster, columns) + Memory(program, choice, cluster, columns) +
         Times(program, parts, columns) + Lanes(program, parts, columns) +
         Waits(program, parts, columns);
}

std::vector<ComputeWait> ComputeWaits(const Program& program, const PlayedPart& played) {
  const WaitResolver resolver(program, played);
  const std::vector<size_t>& queue = resolver.queue(Stream::kCompute);
  std::vector<ComputeWait> waits;
  double idle_since = 0;
  for (size_t q = 0; q < queue.size(); ++q) {
    const PlayedSpan* span = resolver.SpanOf(queue[q]);
    if (span == nullptr) continue;
    if (!resolver.Near(span->begin_seconds, idle_since)) {
      AddWait(resolver, idle_since, span->begin_seconds,
              resolver.Resolve(Stream::kCompute, q, span->begin_seconds), waits);
    }
    idle_since = span->end_seconds;
  }
  const double end = played.time.total_seconds;
  AddWait(resolver, idle_since, end, -1, waits);
  return waits;
}

}  // namespace zeroplan
