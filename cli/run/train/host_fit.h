// Whether a run fits this machine's host memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/lowering/lower.h"
#include "core/program/program.h"

namespace zeroplan {

// Where a run's choice comes from: what a message may say to change.
struct ChoiceOrigin {
  enum class Kind : uint8_t { kOptions, kConfig, kPlan } kind = Kind::kOptions;
  std::string file;  // the config or the plan
};

// Memory that a run may take, and of what.
struct HostRoom {
  uint64_t bytes = 0;
  std::string whose = "this machine has";  // "this machine has", or which control group leaves it
};

// A run on the CPU backend, where all arenas but the files' are host memory: throws
// Error(kNothingFits) if the `ranks` of this host need more than `available`. The message names
// what is short by how much and the smallest change that fits, if any does: lowered with `lower`,
// the run's own options, and added up, not guessed. It proposes what `origin` leaves to be
// proposed: options, a change of the config, or another plan.
void CheckFitsHost(const Program& program, const LowerOptions& lower, const ChoiceOrigin& origin,
                   int ranks, const HostRoom& available);

// The same for a run on GPUs: what the `ranks` of this host keep in host memory.
void CheckOffloadFitsHost(const Program& program, const ChoiceOrigin& origin, int ranks,
                          const HostRoom& available);

// Whether what `ranks` ranks here need of host memory is there, arenas of the CPU backend included
// where it is `program`'s run.
bool FitsHost(const Program& program, Backend backend, int ranks, const HostRoom& available);

// Memory that this machine can give to a process now: the least of what /proc/meminfo says
// (MemAvailable; where there is none, all it has), of what the process's control groups leave
// (machine/host_state.h), and of what the machine or the control group has without
// `reserve_bytes` (unset: HostReserveBytes of planner/footprint.h), so that what plan and estimate
// say fits is what runs.
HostRoom AvailableHostMemory(const std::optional<uint64_t>& reserve_bytes);

// Throws Error(kUsage) for more threads than a host can be expected to start: `threads` (0: as many
// as there are processors) for each of `ranks`.
void CheckThreads(int threads, int ranks);

}  // namespace zeroplan
