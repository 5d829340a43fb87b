// A planned step as a person reads it: what it holds, what it does when, and what it waits for.
#pragma once

#include <string>

#include "core/program/program.h"
#include "cost_models/cost_model.h"
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

}  // namespace zeroplan
