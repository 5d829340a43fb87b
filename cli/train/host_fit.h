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

// A run on the CPU backend, where all arenas but the files' are host memory: throws
// Error(kNothingFits) if its ranks need more than `available_bytes`. The message names what is
// short by how much and the smallest change that fits, if any does: lowered with `lower`, the run's
// own options, and added up, not guessed. It proposes what `origin` leaves to be proposed: options,
// a change of the config, or another plan.
void CheckFitsHost(const Program& program, const LowerOptions& lower, const ChoiceOrigin& origin,
                   uint64_t available_bytes);

// The same for a run on GPUs: what the `ranks` of this host keep in host memory.
void CheckOffloadFitsHost(const Program& program, const ChoiceOrigin& origin, int ranks,
                          uint64_t available_bytes);

// Memory that this machine can give to a process now, by /proc/meminfo (MemAvailable) or, where
// there is none, all it has; at most what it has without `reserve_bytes` (unset: HostReserveBytes
// of planner/footprint.h), so that what plan and estimate say fits is what runs.
uint64_t AvailableHostBytes(const std::optional<uint64_t>& reserve_bytes);

}  // namespace zeroplan
