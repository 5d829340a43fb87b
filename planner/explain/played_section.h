// One section of a program as the time model plays it, with what it was played from.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program/program.h"
#include "cost_models/cost_model.h"
#include "cost_models/timeline.h"

namespace zeroplan {

struct PlayedSection {
  Section section = Section::kMicroStep;
  uint8_t kinds = kEvery;
  int64_t first_micro_step = 0, times = 1;  // as PlayedPart has them
  SectionTime time;
  std::vector<double> seconds;    // of each instruction of the section, alone on its stream
  std::vector<PlayedSpan> spans;  // by end; what takes time alone, and what was carried in of it
};

// A step among others, in order (StepTimer::PlayStep).
std::vector<PlayedSection> PlayStep(const Program& program, const CostModel& costs);

// Time that the compute stream stood still for one instruction of another stream.
struct ComputeWait {
  double seconds = 0;
  // Into `section`; -1: none was found.
  int64_t waited_for = -1;
  Section section = Section::kMicroStep;  // may be another than the played one: carried in
};

// The waits of the compute stream in order, a last one until the section's end included. A wait is
// taken apart by what was going on meanwhile, back from its end: the instruction whose end ended
// it, what that one had waited for, and so on. They and the time lost beside collectives
// (OverlapRates) make the exposed seconds.
std::vector<ComputeWait> ComputeWaits(const Program& program, const PlayedSection& played);

}  // namespace zeroplan
