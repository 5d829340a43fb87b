#include "core/program/chrome_trace.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>

#include "core/base/error.h"

namespace zeroplan {
namespace {

bool TakesTime(const Instruction& instruction) {
  return std::holds_alternative<LaunchKernel>(instruction.op) ||
         std::holds_alternative<Collective>(instruction.op) ||
         std::holds_alternative<Copy>(instruction.op) ||
         std::holds_alternative<FileIo>(instruction.op);
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

void ChromeTrace::BeginProcess(std::string_view title) {
  ++process_;
  auto out = std::back_inserter(events_);
  fmt::format_to(out, R"({}{{"name":"process_name","ph":"M","pid":{},"args":{{"name":"{}"}}}})",
                 events_.empty() ? "" : ",\n", process_, title);
  for (int s = 0; s < kStreams; ++s) {
    fmt::format_to(out,
                   ",\n"
                   R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}})",
                   process_, s, StreamName(static_cast<Stream>(s)));
  }
}

void ChromeTrace::Add(const TraceSpan& span) {
  ZEROPLAN_CHECK(process_ >= 0);
  const Instruction& instruction = program_.section(span.section)[static_cast<size_t>(span.index)];
  if (!TakesTime(instruction)) return;
  fmt::format_to(
      std::back_inserter(events_),
      ",\n"
      R"({{"name":"{}","cat":"{}","ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"layer":{},"section":"{}"}}}})",
      InstructionName(instruction), PhaseName(instruction.phase), process_,
      static_cast<int>(instruction.stream), span.begin_seconds * 1e6,
      (span.end_seconds - span.begin_seconds) * 1e6, instruction.layer, SectionName(span.section));
}

std::string ChromeTrace::Finish() const {
  return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + events_ + "\n]}\n";
}

void WriteTraceFile(const std::filesystem::path& file, const ChromeTrace& trace,
                    std::string_view option) {
  std::ofstream out(file);
  out << trace.Finish();
  out.close();
  if (!out) ThrowRuntime("{} {}: cannot be written", option, file.string());
}

}  // namespace zeroplan
