#include "core/program/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/model/param_table.h"

namespace zeroplan {

namespace {

const Instruction& Of(const Program& program, Section section, int32_t index) {
  return program.section(section)[static_cast<size_t>(index)];
}

class Builder {
 public:
  Builder(const Program& program, double shift_seconds)
      : program_(program), shift_seconds_(shift_seconds), events_(program.event_count) {
    lanes_.fill({});
  }

  TraceProcess Build(std::span<const TracedInstruction> issued) {
    const bool allocates = std::any_of(issued.begin(), issued.end(), [](const auto& item) {
      return item.section == Section::kInit;
    });
    if (!allocates) BeginWithPersistent();
    for (const TracedInstruction& item : issued) Take(item);
    AddLayers();
    return std::move(process_);
  }

 private:
  struct Lane {
    int64_t now = 0;                    // where the stream is
    int64_t free_at = 0;                // the end of its last slice
    std::optional<size_t> last;         // the slice before, where that is known
    std::vector<TraceArrow> waits_for;  // what the next slice waits for
  };
  struct Event {
    int64_t at = 0;
    Stream stream = Stream::kCompute;
    std::optional<size_t> after;  // the slice before it
  };

  int64_t Ns(double seconds) const {
    return std::max<int64_t>(0, std::llround((seconds + shift_seconds_) * 1e9));
  }

  void BeginWithPersistent() {
    for (const Buffer& buffer : program_.buffers) {
      if (buffer.persistent) Add(buffer, true);
    }
    process_.memory.push_back(live_);
    process_.memory.back().ns = Ns(0);
  }

  void Add(const Buffer& buffer, bool alloc) {
    const auto change = [&](uint64_t& bytes) {
      bytes = alloc ? bytes + buffer.bytes : bytes - buffer.bytes;
    };
    change(live_.arenas[static_cast<size_t>(buffer.space)]);
    if (buffer.space != Space::kDevice) return;
    change(live_.device[static_cast<size_t>(buffer.memory_class)]);
  }

  void Take(const TracedInstruction& item) {
    const Instruction& instruction = Of(program_, item.section, item.index);
    Lane& lane = lanes_[static_cast<size_t>(instruction.stream)];
    if (TakesTime(instruction)) {
      TakeSlice(item, instruction, lane);
    } else if (const auto* record = std::get_if<RecordEvent>(&instruction.op)) {
      events_[record->event] = {lane.now, instruction.stream, lane.last};
    } else if (const auto* wait = std::get_if<WaitEvent>(&instruction.op)) {
      const Event& event = events_[wait->event];
      if (event.stream == instruction.stream) return;
      lane.now = std::max(lane.now, event.at);
      if (event.after) lane.waits_for.push_back({*event.after, 0, wait->event});
    } else if (const auto* alloc = std::get_if<Alloc>(&instruction.op)) {
      TakeMemory(alloc->buffer, true, lane.now);
    } else if (const auto* free = std::get_if<Free>(&instruction.op)) {
      TakeMemory(free->buffer, false, lane.now);
    }
  }

  void TakeSlice(const TracedInstruction& item, const Instruction& instruction, Lane& lane) {
    if (!item.timed) {  // nobody knows when its stream got past it
      lane.last.reset();
      lane.waits_for.clear();
      return;
    }
    const int64_t begin = std::max(Ns(item.begin_seconds), lane.free_at);
    const int64_t end = std::max(Ns(item.end_seconds), begin);
    const size_t self = process_.slices.size();
    process_.slices.push_back({static_cast<int>(instruction.stream), item.section, item.index,
                               instruction.phase, instruction.layer, begin, end});
    std::set<size_t> drawn;
    for (TraceArrow arrow : lane.waits_for) {
      const TraceSlice& from = process_.slices[arrow.from];
      const bool shows = from.end_ns > from.begin_ns && end > begin && from.begin_ns <= begin;
      if (!shows || !drawn.insert(arrow.from).second) continue;
      arrow.to = self;
      process_.arrows.push_back(arrow);
    }
    lane.waits_for.clear();
    lane.last = self;
    lane.now = lane.free_at = end;
  }

  void TakeMemory(BufferId id, bool alloc, int64_t now) {
    Add(program_.buffers[id], alloc);
    std::vector<TraceMemory>& memory = process_.memory;
    // Streams that allocate may be at different times: what is first said first holds.
    if (!memory.empty()) now = std::max(now, memory.back().ns);
    if (memory.empty() || memory.back().ns < now) memory.emplace_back();
    memory.back() = live_;
    memory.back().ns = now;
  }

  // What the compute stream did in a row for one layer.
  void AddLayers() {
    std::vector<TraceSlice> layers;
    for (const TraceSlice& slice : process_.slices) {
      if (slice.lane != static_cast<int>(Stream::kCompute)) continue;
      const bool same = !layers.empty() && layers.back().layer == slice.layer &&
                        layers.back().phase == slice.phase &&
                        layers.back().section == slice.section;
      if (same) {
        layers.back().end_ns = slice.end_ns;
        continue;
      }
      layers.push_back(slice);
      layers.back().lane = kLayerLane;
      layers.back().index = -1;
    }
    process_.slices.insert(process_.slices.end(), layers.begin(), layers.end());
  }

  const Program& program_;
  const double shift_seconds_;
  std::array<Lane, kStreams> lanes_;
  std::vector<Event> events_;
  TraceMemory live_;
  TraceProcess process_;
};

// Lanes from the top: the layers, then streams in their own order.
constexpr int SortIndex(int lane) { return lane == kLayerLane ? 0 : lane + 1; }

std::string_view LaneName(int lane) {
  return lane == kLayerLane ? "layers" : StreamName(static_cast<Stream>(lane));
}

// Numbers of threads are unlike any process's, and unlike those of other processes.
constexpr int ThreadOf(int process, int lane) { return 100 * process + SortIndex(lane); }

// Microseconds, as the format has them, without rounding.
struct Micros {
  int64_t ns;
};

std::string Text(Micros time) { return fmt::format("{}.{:03}", time.ns / 1000, time.ns % 1000); }

// Classes and arenas that hold a buffer. Viewers would give the others a row of zeros.
struct Held {
  std::array<bool, kMemoryClasses> classes{};  // of the device arena
  std::array<bool, kSpaces> arenas{};

  explicit Held(const Program& program) {
    for (const Buffer& buffer : program.buffers) {
      if (buffer.bytes == 0) continue;
      arenas[static_cast<size_t>(buffer.space)] = true;
      if (buffer.space == Space::kDevice) classes[static_cast<size_t>(buffer.memory_class)] = true;
    }
  }
};

// What a copy or file access moves, or a collective is handed; 0 of a kernel.
uint64_t MovedBytes(const Program& program, const Instruction& instruction) {
  if (const auto* copy = std::get_if<Copy>(&instruction.op)) return copy->src.bytes;
  if (const auto* io = std::get_if<FileIo>(&instruction.op)) return io->host.bytes;
  uint64_t bytes = 0;
  if (const auto* collective = std::get_if<Collective>(&instruction.op)) {
    for (const Segment& segment : program.segs(*collective)) bytes += segment.src.bytes;
  }
  return bytes;
}

}  // namespace

bool TakesTime(const Instruction& instruction) {
  return std::holds_alternative<LaunchKernel>(instruction.op) ||
         std::holds_alternative<Collective>(instruction.op) ||
         std::holds_alternative<Copy>(instruction.op) ||
         std::holds_alternative<FileIo>(instruction.op);
}

void GiveTimes(const Program& program, std::vector<TraceSpan> spans,
               std::vector<TracedInstruction>* issued) {
  const auto by_instruction = [](const auto& a, const auto& b) {
    return std::pair(a.section, a.index) < std::pair(b.section, b.index);
  };
  std::stable_sort(spans.begin(), spans.end(), [&](const TraceSpan& a, const TraceSpan& b) {
    if (by_instruction(a, b) || by_instruction(b, a)) return by_instruction(a, b);
    return a.begin_seconds < b.begin_seconds;
  });
  std::array<std::vector<size_t>, kSections> next;  // into spans, by instruction
  for (size_t s = 0; s < kSections; ++s) {
    next[s].assign(program.sections[s].size(), spans.size());
  }
  for (size_t i = spans.size(); i-- > 0;) {
    next[static_cast<size_t>(spans[i].section)][static_cast<size_t>(spans[i].index)] = i;
  }
  for (TracedInstruction& item : *issued) {
    size_t& at = next[static_cast<size_t>(item.section)][static_cast<size_t>(item.index)];
    if (at >= spans.size()) continue;
    const TraceSpan& span = spans[at];
    if (span.section != item.section || span.index != item.index) continue;
    item.timed = true;
    item.begin_seconds = span.begin_seconds;
    item.end_seconds = span.end_seconds;
    ++at;
  }
}

std::optional<double> LastStepBegin(const Program& program,
                                    std::span<const TracedInstruction> issued) {
  std::optional<double> begun, last;
  bool in_step = false;
  for (const TracedInstruction& item : issued) {
    const bool micro_step = item.section == Section::kMicroStep;
    if (micro_step && !in_step) begun.reset();
    if (item.section == Section::kOptimizerStep && in_step && begun) last = begun;
    in_step = micro_step;
    if (!micro_step || begun || !item.timed) continue;
    const Instruction& instruction = Of(program, item.section, item.index);
    const bool computes = instruction.stream == Stream::kCompute && TakesTime(instruction);
    if (computes) begun = item.begin_seconds;
  }
  return last;
}

std::string LayerName(const Program& program, int layer) {
  if (layer == kEmbeddingLayer) return "embeddings";
  if (layer == program.model.layers) return "final norm and head";
  return layer >= 0 ? fmt::format("layer {}", layer) : "";
}

TraceProcess BuildTraceProcess(const Program& program, std::span<const TracedInstruction> issued,
                               double shift_seconds) {
  return Builder(program, shift_seconds).Build(issued);
}

std::string InstructionName(const Instruction& instruction) {
  return std::visit(
      Overload{
          [](const LaunchKernel& launch) { return std::string(KernelInfo(launch.kernel).name); },
          [](const Collective& c) { return std::string(CollectiveKindName(c.kind)); },
          [](const Copy&) { return std::string("copy"); },
          [](const FileIo& io) { return std::string(io.write ? "file_write" : "file_read"); },
          [](const Alloc&) { return std::string("alloc"); },
          [](const Free&) { return std::string("free"); },
          [](const RecordEvent&) { return std::string("record"); },
          [](const WaitEvent&) { return std::string("wait"); },
      },
      instruction.op);
}

void ChromeTrace::AddProcess(std::string_view title, std::span<const TracedInstruction> issued) {
  if (processes_ == 0) last_step_ = LastStepBegin(program_, issued);
  Add(title, BuildTraceProcess(program_, issued));
}

void ChromeTrace::AddBesideLastStep(std::string_view title,
                                    std::span<const TracedInstruction> issued) {
  const std::optional<double> own = LastStepBegin(program_, issued);
  if (!last_step_ || !own) return AddProcess(title, issued);
  Add(title, BuildTraceProcess(program_, issued, std::max(0.0, *last_step_ - *own)));
}

void ChromeTrace::Add(std::string_view title, const TraceProcess& process) {
  const int pid = ++processes_;
  auto out = std::back_inserter(events_);
  const auto metadata = [&](std::string_view name, int lane, const std::string& args) {
    fmt::format_to(out, "{}{{\"name\":\"{}\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{{}}}}}",
                   events_.empty() ? "" : ",\n", name, pid, ThreadOf(pid, lane), args);
  };
  metadata("process_name", kLayerLane, fmt::format(R"("name":"{}")", title));
  metadata("process_sort_index", kLayerLane, fmt::format(R"("sort_index":{})", pid));
  for (int lane = 0; lane < kLanes; ++lane) {
    metadata("thread_name", lane, fmt::format(R"("name":"{}")", LaneName(lane)));
    metadata("thread_sort_index", lane, fmt::format(R"("sort_index":{})", SortIndex(lane)));
  }
  for (const TraceSlice& slice : process.slices) {
    const std::string layer = LayerName(program_, slice.layer);
    std::string name(PhaseName(slice.phase)), args;
    if (slice.lane == kLayerLane) {
      if (!layer.empty()) name.insert(0, layer + " ");
    } else {
      const Instruction& instruction =
          program_.section(slice.section)[static_cast<size_t>(slice.index)];
      name = InstructionName(instruction);
      if (!layer.empty()) args = fmt::format(R"("layer":"{}",)", layer);
      if (const uint64_t bytes = MovedBytes(program_, instruction); bytes > 0) {
        args += fmt::format(R"("bytes":{},)", bytes);
      }
    }
    fmt::format_to(
        out,
        ",\n"
        R"({{"name":"{}","cat":"{}","ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}"section":"{}"}}}})",
        name, PhaseName(slice.phase), pid, ThreadOf(pid, slice.lane), Text(Micros{slice.begin_ns}),
        Text(Micros{slice.end_ns - slice.begin_ns}), args, SectionName(slice.section));
  }
  const Held held(program_);
  const TraceMemory* before = nullptr;
  for (const TraceMemory& memory : process.memory) {
    const auto counter = [&](std::string_view name, const auto& is_held, const auto& bytes,
                             const auto& name_of) {
      std::string args;
      for (size_t i = 0; i < bytes.size(); ++i) {
        if (!is_held[i]) continue;
        args += fmt::format(R"({}"{}":{})", args.empty() ? "" : ",", name_of(i), bytes[i]);
      }
      if (args.empty()) return;
      fmt::format_to(out,
                     ",\n"
                     R"({{"name":"{}","ph":"C","pid":{},"tid":{},"ts":{},"args":{{{}}}}})",
                     name, pid, ThreadOf(pid, kLayerLane), Text(Micros{memory.ns}), args);
    };
    if (before == nullptr || before->device != memory.device) {
      counter("device bytes", held.classes, memory.device,
              [](size_t i) { return MemoryClassName(static_cast<MemoryClass>(i)); });
    }
    if (before == nullptr || before->arenas != memory.arenas) {
      counter("arena bytes", held.arenas, memory.arenas,
              [](size_t i) { return SpaceName(static_cast<Space>(i)); });
    }
    before = &memory;
  }
  for (const TraceArrow& arrow : process.arrows) {
    const TraceSlice& from = process.slices[arrow.from];
    const TraceSlice& to = process.slices[arrow.to];
    const auto end = [&](const char* phase, const TraceSlice& slice, int64_t ns) {
      fmt::format_to(
          out,
          ",\n"
          R"({{"name":"event {}","cat":"event","ph":{},"id":{},"pid":{},"tid":{},"ts":{}}})",
          arrow.event, phase, arrows_, pid, ThreadOf(pid, slice.lane), Text(Micros{ns}));
    };
    ++arrows_;
    // Both within their slices, and in order.
    end(R"("s")", from, std::min(from.end_ns - 1, to.begin_ns));
    end(R"("f","bp":"e")", to, to.begin_ns);
  }
}

std::string ChromeTrace::Finish() const {
  return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + events_ + "\n]}\n";
}

void WriteTraceFile(const std::filesystem::path& file, const ChromeTrace& trace,
                    std::string_view option) {
  try {
    ReplaceFile(file, trace.Finish());
  } catch (const Error& error) {
    ThrowRuntime("{}: {}", option, error.what());
  }
}

}  // namespace zeroplan
