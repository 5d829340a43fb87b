#include "core/program/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "core/base/error.h"

namespace zeroplan {
namespace {

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
      if (!layer.empty()) name = layer + " " + name;
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
  const std::string text = trace.Finish();
  std::FILE* out = std::fopen(file.c_str(), "wb");
  bool written = out != nullptr && std::fwrite(text.data(), 1, text.size(), out) == text.size();
  int error = written ? 0 : errno;
  if (out != nullptr && std::fclose(out) != 0 && written) {
    written = false;
    error = errno;
  }
  if (written) return;
  // Half a trace opens nowhere, and holds the room that is short.
  if (std::error_code ignored; out != nullptr && std::filesystem::is_regular_file(file, ignored)) {
    std::filesystem::remove(file, ignored);
  }
  ThrowRuntime("{} {}: cannot be written: {}", option, file.string(), std::strerror(error));
}

}  // namespace zeroplan
