// zeroplan explain: a plan's step, what it holds, does and waits for.
#include "planner/explain/explain.h"

#include <memory>

#include "cli/common/command_files.h"
#include "cli/common/commands.h"
#include "cli/common/output.h"
#include "cli/common/planned_hardware.h"
#include "core/base/json_source.h"
#include "core/base/long_work.h"
#include "hwprofiles/loader.h"
#include "planner/advice/flips.h"
#include "planner/plan/plan_file.h"

namespace zeroplan {
namespace {

constexpr const char* kExplainFooter = R"(Examples:
  zeroplan explain plan.json
  zeroplan explain plan.json --trace step.json
The program is lowered again and must be the planned one. With --hw times follow that profile's
rates and links; capacities stay the plan's.)";

const OutputKind kExplanation = {"a text of 'zeroplan explain'", {"Peak of each phase on one GPU"}};

struct ExplainOptions {
  std::string plan, hardware, trace, output;
};

void RunExplain(const ExplainOptions& options) {
  const PlanFile plan = ReadPlan(ReadTextFile(options.plan), options.plan);
  const LongWork work("Building the plan's program", /*at_once=*/true);
  const Program program = CheckedProgram(plan);
  const HardwareProfile hardware = PlannedHardware(plan, options.hardware);
  const CostModel costs(hardware, ClusterShape{plan.cluster.gpus, plan.cluster.gpus_per_node});
  Cluster cluster = plan.cluster;
  cluster.hardware = hardware.name;
  cluster.gpu_name = hardware.gpu.name;
  cluster.links = LinksText(cluster, hardware);
  const ChoiceEstimate choice = EstimateProgram(program, cluster, &costs);
  if (!options.trace.empty()) WritePredictedTrace(program, costs, options.trace);
  LayOutFor(options.output);
  WriteReport(options.output, Explain(program, choice, cluster, costs, PageColumns()));
}

}  // namespace

void RegisterExplain(Command& app) {
  Command command =
      app.Add("explain", "A plan's step: what it holds, what it does when, what it waits for");
  auto options = std::make_shared<ExplainOptions>();
  command.Required("plan", "PLAN", "What 'zeroplan plan --plan-out' wrote", options->plan);
  command.Text({"Hardware", "--hw", "NAME|FILE",
                "Hardware profile whose rates give the times (default: the plan's)"},
               options->hardware, ProfileNames);
  command.Text({.group = "Output",
                .name = "--trace",
                .type = "FILE.json",
                .help = "Write the predicted step as a Chrome trace (chrome://tracing, "
                        "ui.perfetto.dev)",
                .path = PathRole::Writes(kTrace)},
               options->trace);
  command.Text({.group = "Output",
                .name = "-o,--out",
                .type = "FILE",
                .help = "File for the text (default: stdout)",
                .path = PathRole::Writes(kExplanation)},
               options->output);
  command.Progress("Output");
  command.Footer(kExplainFooter);
  command.Run([options] { RunExplain(*options); });
}

}  // namespace zeroplan
