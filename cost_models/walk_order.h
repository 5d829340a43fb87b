// The order in which a program's sections run, each kind of micro-step once.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

struct SectionRun {
  Section section;
  uint8_t kinds;  // instructions run whose `when` has one of these; kEvery outside kMicroStep
  int64_t times;  // repetitions in one optimizer step; 0 outside of it
};

// init, the micro-steps by kind, optimizer_step, drain, eval, generate, save, load. A body leaves
// live what it found live, so that repetitions add nothing to memory.
std::vector<SectionRun> WalkOrder(const Program& program);

}  // namespace zeroplan
