// Processes of a trace (core/program/trace_process.h) as Chrome trace events, which ui.perfetto.dev
// and chrome://tracing show. A measured step of the engine and a predicted one of the Timeline have
// the same lanes and names, so that they lie one below the other.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/program/program.h"
#include "core/program/trace_process.h"

namespace zeroplan {

// "matmul_forward", "all_gather", "copy", "file_read", ...
std::string InstructionName(const Instruction& instruction);

class ChromeTrace {
 public:
  // What is added is of this program, which must outlive the trace.
  explicit ChromeTrace(const Program& program) : program_(program) {}

  // One process: a thread a lane, memory as counters, and an arrow from each record of an event to
  // its wait. `title`: "rank 0", "predicted"; no character that JSON escapes.
  void AddProcess(std::string_view title, std::span<const TracedInstruction> issued);
  // The same of one step, which is moved so that its compute begins where that of the last whole
  // step of the first process does. Where that has none, as AddProcess.
  void AddBesideLastStep(std::string_view title, std::span<const TracedInstruction> issued);

  // The file's text.
  std::string Finish() const;

 private:
  void Add(std::string_view title, const TraceProcess& process);

  const Program& program_;
  int processes_ = 0;
  uint64_t arrows_ = 0;
  std::optional<double> last_step_;  // of the first process
  std::string events_;
};

// Throws Error(kRuntime) naming option and file.
void WriteTraceFile(const std::filesystem::path& file, const ChromeTrace& trace,
                    std::string_view option);

}  // namespace zeroplan
