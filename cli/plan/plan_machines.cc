#include "cli/plan/plan_machines.h"

#include <string>

#include "cli/common/output.h"
#include "core/base/error.h"
#include "core/base/long_work.h"
#include "planner/machines/machines.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

// The first option that goes with one plan alone; "" where none is given.
std::string OnlyOfOnePlan(const PlanOptions& options) {
  if (!options.deepspeed_file.empty()) return "--out";
  if (options.config_for) return "--for";
  if (!options.plan_file.empty()) return "--plan-out";
  return options.trace_file.empty() ? "" : "--trace";
}

}  // namespace

void PrintMachines(PlanOptions options) {
  if (const std::string only = OnlyOfOnePlan(options); !only.empty()) {
    ThrowUsage(
        "{}: goes with one plan, and machines are compared; name one machine, without "
        "⟦deadline⟧, ⟦budget⟧ and ⟦objective⟧ cost",
        only);
  }
  options.brief = options.on_screen() && options.report_file.empty();
  Assumptions assumptions;
  LongWork work("Comparing");
  const MachineComparison all = CompareMachines(
      options, assumptions,
      [&](size_t, const std::string& how_far) { work.Show([&] { return how_far; }); });
  if (!options.report_file.empty()) {
    WriteOutput(options.report_file, RenderPage(MachinesPage(all, ReportOrigin(assumptions))));
  }
  if (options.as_json()) {
    WriteOutput("", MachinesJson(all, assumptions));
  } else if (const bool colour = StdoutTakesColour(); !options.explain) {
    std::string next;
    if (const MachineRow* best = all.best()) {
      next = OwnCommand({"--hw", "--gpus", "--objective", "--deadline", "--budget", "--prices"},
                        {"--hw", best->name(), "--gpus", std::to_string(best->gpus)});
    }
    WriteReport("", MachinesScreen(all, next, PageColumns(), colour), colour);
  } else {
    WriteReport("", MachinesText(all, PageColumns(), colour) + '\n' + AssumedText(assumptions),
                colour);
  }
  if (const std::string why = NothingWithin(all); !why.empty()) {
    throw Error(ExitCode::kNothingFits, why);
  }
}

}  // namespace zeroplan
