// --trace of the commands that predict: the step as the time model plays it.
#pragma once

#include <string>

#include "core/program/program.h"
#include "cost_models/cost_model.h"

namespace zeroplan {

// Writes a Chrome trace of one optimizer step: first micro-step, at most two of those in the
// middle, the last one, the update. Throws Error(kRuntime) if `file` cannot be written.
void WritePredictedTrace(const Program& program, const CostModel& costs, const std::string& file);

}  // namespace zeroplan
