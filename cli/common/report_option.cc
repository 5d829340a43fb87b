#include "cli/common/report_option.h"

#include <fmt/format.h>

#include <fstream>

#include "core/base/strings.h"
#include "cost_models/step_time.h"

namespace zeroplan {

void AddReportOption(Command& command, const char* group, const char* shows, std::string& file) {
  command.Text({group, "--report", "FILE.html",
                fmt::format("Write {} as one page for a browser: pictures, and tables with their "
                            "numbers",
                            shows)},
               file);
}

PageOrigin ReportOrigin(const Assumptions& assumptions) {
  std::vector<std::string> words = OwnArguments();
  // Whichever of the two programs this is, from wherever: who tries it has it elsewhere.
  if (!words.empty()) words.front() = "zeroplan";
  return {ShellCommand(words), assumptions.assumed, assumptions.notes};
}

std::vector<std::string> OwnArguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

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
