// Processes of a trace (core/program/chrome_trace.h) as Chrome trace events, which ui.perfetto.dev
// and chrome://tracing show. A measured step of the engine and a predicted one of the Timeline have
// the same lanes and names, so that they lie one below the other.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

// What a process of a trace shows, from the instructions as they were issued and the times at which
// they ran: slices on lanes, memory over time, and which slice waited for which.

// One instruction as it ran; seconds from the trace's begin.
struct TraceSpan {
  Section section = Section::kMicroStep;
  int32_t index = 0;  // into the section
  double begin_seconds = 0, end_seconds = 0;
};

// One instruction as it was issued. Those that take no time are among them.
struct TracedInstruction {
  Section section;
  int32_t index;       // into the section
  bool timed = false;  // whether the times are there
  double begin_seconds = 0, end_seconds = 0;
};

// Whether it is a slice of a trace: a kernel, collective, copy or file access.
bool TakesTime(const Instruction& instruction);

// Gives `issued`, in the order of issue, the times of `spans`, in any order: an instruction's n-th
// run the n-th of its spans. Without one it stays untimed.
void GiveTimes(const Program& program, std::vector<TraceSpan> spans,
               std::vector<TracedInstruction>* issued);

// When the compute stream began the last whole step in `issued`. Nothing without one.
std::optional<double> LastStepBegin(const Program& program,
                                    std::span<const TracedInstruction> issued);

// "embeddings", "layer 3", "final norm and head"; "" for what is of no layer.
std::string LayerName(const Program& program, int layer);

// A lane for each stream, and one above them that says which layer the compute stream is at.
inline constexpr int kLayerLane = kStreams;
inline constexpr int kLanes = kStreams + 1;

// Slices of a lane are in order, and neither overlap nor nest. Times in ns, from 0 on.
struct TraceSlice {
  int lane;
  Section section;
  int32_t index;  // into the section; on the layers' lane -1
  Phase phase;
  int layer;
  int64_t begin_ns, end_ns;
};

// Bytes that are live in the arenas from a time on.
struct TraceMemory {
  int64_t ns = 0;
  std::array<uint64_t, kMemoryClasses> device{};  // by class
  std::array<uint64_t, kSpaces> arenas{};         // by arena
};

// `to` waited for an event that was recorded after `from`; both last for 1 ns or more.
struct TraceArrow {
  size_t from, to;  // into slices
  EventId event;
};

struct TraceProcess {
  std::vector<TraceSlice> slices;
  std::vector<TraceMemory> memory;  // in order, one a time at most
  std::vector<TraceArrow> arrows;
};

// Everything `shift_seconds` later. Where clocks are coarse a slice begins when the one before it
// on its lane has ended, and an arrow that would point back is left out. An instruction that takes
// no time is placed where its stream is then: at the end of the one before it, or of the one it
// waited for. Memory begins with the persistent buffers, unless `issued` has `init`, which
// allocates them.
TraceProcess BuildTraceProcess(const Program& program, std::span<const TracedInstruction> issued,
                               double shift_seconds = 0);

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
