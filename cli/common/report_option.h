// What commands write beside their answer: --report, a page for a browser, and --trace, the step as
// the time model plays it.
#pragma once

#include <string>
#include <vector>

#include "cli/common/command.h"
#include "core/program/chrome_trace.h"
#include "core/program/program.h"
#include "cost_models/cost_model.h"
#include "planner/page/plan_page.h"
#include "planner/request/resolve.h"

namespace zeroplan {

// `shows`: "every choice in pictures".
void AddReportOption(Command& command, const char* group, const char* shows, std::string& file);

// What the page says of this process's command line and of what was assumed.
PageOrigin ReportOrigin(const Assumptions& assumptions);

// This process's own arguments, the program's name first. Empty where /proc does not tell them.
std::vector<std::string> OwnArguments();

// One optimizer step: first micro-step, at most two of those in the middle, the last one, the
// update. A process of its own, "predicted", beside the last whole step of what is in `trace`.
void AddPredictedStep(const Program& program, const CostModel& costs, ChromeTrace& trace);

// Writes a trace of that alone. Throws Error(kRuntime) if `file` cannot be written.
void WritePredictedTrace(const Program& program, const CostModel& costs, const std::string& file);

}  // namespace zeroplan
