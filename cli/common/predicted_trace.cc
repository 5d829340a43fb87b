#include "cli/common/predicted_trace.h"

#include "core/program/chrome_trace.h"
#include "cost_models/step_time.h"

namespace zeroplan {

void WritePredictedTrace(const Program& program, const CostModel& costs, const std::string& file) {
  constexpr int64_t kMostMiddle = 2;
  ChromeTrace trace(program);
  trace.BeginProcess("predicted");
  for (const TraceSpan& span : StepTimer(costs).Trace(program, kMostMiddle)) trace.Add(span);
  WriteTraceFile(file, trace, "--trace");
}

}  // namespace zeroplan
