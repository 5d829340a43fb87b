#include "executor/train/chrome_trace.h"

#include <fmt/format.h>

#include <fstream>
#include <string>

#include "core/base/error.h"

namespace zeroplan {
namespace {

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

bool TakesTime(const Instruction& instruction) {
  return std::holds_alternative<LaunchKernel>(instruction.op) ||
         std::holds_alternative<Collective>(instruction.op) ||
         std::holds_alternative<Copy>(instruction.op) ||
         std::holds_alternative<FileIo>(instruction.op);
}

}  // namespace

void WriteChromeTrace(const std::filesystem::path& file, const Program& program,
                      const Engine& engine) {
  std::ofstream out(file);
  out << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (int rank = 0; rank < program.setup.batch.world_size; ++rank) {
    out << fmt::format(R"({{"name":"process_name","ph":"M","pid":{},"args":{{"name":"rank {}"}}}})",
                       rank, rank);
    for (int s = 0; s < kStreams; ++s) {
      out << fmt::format(
          ",\n"
          R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}})",
          rank, s, StreamName(static_cast<Stream>(s)));
    }
    for (const TraceSpan& span : engine.SpanTrace(rank)) {
      const Instruction& instruction =
          program.section(span.section)[static_cast<size_t>(span.index)];
      if (!TakesTime(instruction)) continue;
      out << fmt::format(
          ",\n"
          R"({{"name":"{}","cat":"{}","ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"layer":{},"section":"{}"}}}})",
          InstructionName(instruction), PhaseName(instruction.phase), rank,
          static_cast<int>(instruction.stream), span.begin_seconds * 1e6,
          (span.end_seconds - span.begin_seconds) * 1e6, instruction.layer,
          SectionName(span.section));
    }
    out << (rank + 1 < program.setup.batch.world_size ? ",\n" : "\n");
  }
  out << "]}\n";
  out.close();
  if (!out) ThrowRuntime("--trace {}: cannot be written", file.string());
}

}  // namespace zeroplan
