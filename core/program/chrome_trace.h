// What ran and when, as Chrome trace events (chrome://tracing, ui.perfetto.dev). A measured trace
// of the engine and a predicted one of the Timeline have the same form, so that they lie side by
// side.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/program/program.h"

namespace zeroplan {

// One instruction as it ran; seconds from the trace's begin.
struct TraceSpan {
  Section section = Section::kMicroStep;
  int32_t index = 0;  // into the section
  double begin_seconds = 0, end_seconds = 0;
};

// "matmul_forward", "all_gather", "copy", "file_read", ...
std::string InstructionName(const Instruction& instruction);

class ChromeTrace {
 public:
  explicit ChromeTrace(const Program& program) : program_(program) {}

  // One process of the trace, one thread a stream; `title` such as "rank 0" or "predicted".
  // Allocations, frees and events take no time and are left out.
  void BeginProcess(std::string_view title);
  void Add(const TraceSpan& span);

  // The file's text.
  std::string Finish() const;

 private:
  const Program& program_;
  int process_ = -1;
  std::string events_;
};

// Throws Error(kRuntime) naming option and file.
void WriteTraceFile(const std::filesystem::path& file, const ChromeTrace& trace,
                    std::string_view option);

}  // namespace zeroplan
