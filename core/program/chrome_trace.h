// Processes of a trace as Chrome trace events, which ui.perfetto.dev and chrome://tracing show. A
// step measured by the engine and one predicted by the Timeline have the same lanes and names, so
// they can be compared lane by lane.
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

// The contents of one process of a trace, made from the instructions in the order of issue and
// their times: slices on lanes, memory over time, and which slice waited for which.

// One instruction as it ran; seconds from the trace's begin.
struct TraceSpan {
  Section section = Section::kMicroStep;
  int32_t index = 0;  // index into the section
  double begin_seconds = 0, end_seconds = 0;
};

// One instruction as it was issued, including instructions that take no time.
struct TracedInstruction {
  Section section;
  int32_t index;       // index into the section
  bool timed = false;  // whether the times are set
  double begin_seconds = 0, end_seconds = 0;
};

// Whether the instruction becomes a slice of a trace: a kernel, collective, copy or file access.
bool TakesTime(const Instruction& instruction);

// Copies the times of `spans`, in any order, to `issued`, in the order of issue: an instruction's
// n-th run gets its n-th span. An instruction without a span stays untimed.
void GiveTimes(const Program& program, std::vector<TraceSpan> spans,
               std::vector<TracedInstruction>* issued);

// The time at which the compute stream began the last whole step in `issued`; nothing if there is
// none.
std::optional<double> LastStepBegin(const Program& program,
                                    std::span<const TracedInstruction> issued);

// "embeddings", "layer 3", "final norm and head"; "" outside all layers.
std::string LayerName(const Program& program, int layer);

// One lane for each stream, and above them one with the layer of the compute stream.
inline constexpr int kLayerLane = kStreams;
inline constexpr int kLanes = kStreams + 1;

// Slices of a lane are in order, and neither overlap nor nest. Times in ns, from 0 on.
struct TraceSlice {
  int lane;
  Section section;
  int32_t index;  // index into the section; -1 on the layers' lane
  Phase phase;
  int layer;
  int64_t begin_ns, end_ns;
};

// Live bytes in the arenas from a time on.
struct TraceMemory {
  int64_t ns = 0;
  std::array<uint64_t, kMemoryClasses> device{};  // by class
  std::array<uint64_t, kSpaces> arenas{};         // by arena
};

// `to` waited for an event that was recorded after `from`; both last for 1 ns or more.
struct TraceArrow {
  size_t from, to;  // indices into slices
  EventId event;
};

struct TraceProcess {
  std::vector<TraceSlice> slices;
  std::vector<TraceMemory> memory;  // in order, at most one for each time
  std::vector<TraceArrow> arrows;
};

// Moves all times by `shift_seconds`. Where clocks are coarse a slice begins when the one before it
// on its lane ends, and an arrow that would point back is left out. An instruction that takes no
// time is placed at its stream's time: at the end of the one before it, or of the one it waited
// for. Memory begins with the persistent buffers, unless `issued` has `init`, which allocates them.
TraceProcess BuildTraceProcess(const Program& program, std::span<const TracedInstruction> issued,
                               double shift_seconds = 0);

// "matmul_forward", "all_gather", "copy", "file_read", ...
std::string InstructionName(const Instruction& instruction);

class ChromeTrace {
 public:
  // All processes are of this program, which must outlive the trace.
  explicit ChromeTrace(const Program& program) : program_(program) {}

  // Adds a process: a thread a lane, memory as counters, and an arrow from each record of an event
  // to its wait. `title`: "rank 0", "predicted"; without characters that JSON escapes.
  void AddProcess(std::string_view title, std::span<const TracedInstruction> issued);
  // Adds a process of one step, moved so that its compute begins when the last whole step of the
  // first process begins. If that process has no whole step, same as AddProcess.
  void AddBesideLastStep(std::string_view title, std::span<const TracedInstruction> issued);

  // Returns the file's text.
  std::string Finish() const;

 private:
  void Add(std::string_view title, const TraceProcess& process);

  const Program& program_;
  int processes_ = 0;
  uint64_t arrows_ = 0;
  std::optional<double> last_step_;  // begin of the first process's last whole step
  std::string events_;
};

// Throws Error(kRuntime) naming option and file.
void WriteTraceFile(const std::filesystem::path& file, const ChromeTrace& trace,
                    std::string_view option);

}  // namespace zeroplan
