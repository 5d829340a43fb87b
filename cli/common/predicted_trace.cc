#include "cli/common/predicted_trace.h"

#include "cost_models/step_time.h"

namespace zeroplan {

void AddPredictedStep(const Program& program, const CostModel& costs, ChromeTrace& trace) {
  constexpr int64_t kMostMiddle = 2;
  trace.AddBesideLastStep("predicted", StepTimer(costs).Trace(program, kMostMiddle));
}

void WritePredictedTrace(const Program& program, const CostModel& costs, const std::string& file) {
  ChromeTrace trace(program);
  AddPredictedStep(program, costs, trace);
  WriteTraceFile(file, trace, "--trace");
}

}  // namespace zeroplan
