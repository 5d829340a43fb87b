// What the compute stream waits for in one section of a program as the time model plays it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program/program.h"
#include "cost_models/step_time.h"

namespace zeroplan {

// Time that the compute stream stood still for one instruction of another stream.
struct ComputeWait {
  double seconds = 0;
  // Into `section`; -1: none was found.
  int64_t waited_for = -1;
  Section section = Section::kMicroStep;  // may be another than the played one: carried in
};

// The waits of the compute stream in order, a last one until the section's end included. A wait is
// taken apart from its end backwards: the instruction whose end ended it, the one that this had
// waited for, and so on. They and the time lost beside collectives (OverlapRates) make the exposed
// seconds.
std::vector<ComputeWait> ComputeWaits(const Program& program, const PlayedPart& played);

}  // namespace zeroplan
