// Whether a run fits this machine's host memory.
#pragma once

#include <cstdint>

#include "core/program/program.h"

namespace zeroplan {

// Bytes of all ranks' arenas but the files': on the CPU backend all of it is host memory.
uint64_t HostBytesOfRun(const Program& program);

// Throws Error(kNothingFits) if the run needs more than `available_bytes`; the message names what
// is short by how much and the smallest change that fits (lowered and added up, not guessed), if
// any does.
void CheckFitsHost(const Program& program, uint64_t available_bytes);

// The same for a run on GPUs: what the `ranks` of this host keep in host memory.
void CheckOffloadFitsHost(const Program& program, int ranks, uint64_t available_bytes);

// Memory that this machine can give to a process now, by /proc/meminfo (MemAvailable) or, where
// there is none, all it has.
uint64_t AvailableHostBytes();

}  // namespace zeroplan
