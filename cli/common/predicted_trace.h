// --trace of the commands that predict: the step as the time model plays it.
#pragma once

#include <string>

#include "core/program/chrome_trace.h"
#include "core/program/program.h"
#include "cost_models/cost_model.h"

namespace zeroplan {

// One optimizer step: first micro-step, at most two of those in the middle, the last one, the
// update. A process of its own, "predicted", beside the last whole step of what is in `trace`.
void AddPredictedStep(const Program& program, const CostModel& costs, ChromeTrace& trace);

// Writes a trace of that alone. Throws Error(kRuntime) if `file` cannot be written.
void WritePredictedTrace(const Program& program, const CostModel& costs, const std::string& file);

}  // namespace zeroplan
