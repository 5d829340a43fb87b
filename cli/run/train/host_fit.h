// Whether a run fits this machine's host memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/lowering/lower.h"
#include "core/program/program.h"

namespace zeroplan {

// The origin of a run's choice: determines the changes that a message may propose.
struct ChoiceOrigin {
  enum class Kind : uint8_t { kOptions, kConfig, kPlan } kind = Kind::kOptions;
  std::string file;  // the config or the plan
};

// Memory available to a run, and its owner.
struct HostRoom {
  uint64_t bytes = 0;
  std::string whose = "this machine has";  // or the control group that limits it
};

// For a run on the CPU backend, where all arenas but the files' are host memory: throws
// Error(kNothingFits) if the `ranks` of this host need more than `available`. The message names the
// memory that is short, by how much, and the smallest change that fits, if any does: lowered with
// `lower`, the run's own options, and added up, not guessed. It proposes only changes that `origin`
// allows: options, a change of the config, or another plan.
void CheckFitsHost(const Program& program, const LowerOptions& lower, const ChoiceOrigin& origin,
                   int ranks, const HostRoom& available);

// The same for a run on GPUs: the host memory of this host's `ranks`.
void CheckOffloadFitsHost(const Program& program, const ChoiceOrigin& origin, int ranks,
                          const HostRoom& available);

// Whether the host memory that `ranks` ranks need here is available, including arenas of the CPU
// backend if `backend` is that.
bool FitsHost(const Program& program, Backend backend, int ranks, const HostRoom& available);

// Memory that this machine can give to a process now: the least of /proc/meminfo's (MemAvailable;
// if missing, the total), of the rest that the process's control groups leave
// (machine/host_state.h), and of the machine's or control group's memory minus `reserve_bytes`
// (unset: HostReserveBytes of planner/footprint.h), so that a choice that fits in plan and estimate
// also runs.
HostRoom AvailableHostMemory(const std::optional<uint64_t>& reserve_bytes);

// Throws Error(kUsage) for more threads than a host is expected to start: `threads` (0: one a
// processor) for each of `ranks`.
void CheckThreads(int threads, int ranks);

}  // namespace zeroplan
