// A planned step as a person reads it: what it holds, what it does when, and what it waits for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/program/program.h"
#include "cost_models/cost_model.h"
#include "cost_models/step_time.h"
#include "planner/cluster.h"
#include "planner/estimate/estimate.h"

namespace zeroplan {

// Several paragraphs, at most 100 columns wide: the choice in a sentence; the peak of each phase
// and the classes; the seconds of each part of the step and what they are spent on; the streams of
// one micro-step and of the update as rows of text; the longest waits of the compute stream. Every
// number comes from walking and playing `program`. REQUIRES: `choice` is EstimateProgram's of
// `program`, `cluster` and `costs`.
std::string Explain(const Program& program, const ChoiceEstimate& choice, const Cluster& cluster,
                    const CostModel& costs);

// What the compute stream waits for in one section of a program as the time model plays it.

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
