// zeroplan explain: a plan's step, what it holds, does and waits for.
#include "planner/explain/explain.h"

#include <algorithm>
#include <memory>

#include "cli/app.h"
#include "cli/common/output.h"
#include "cli/common/predicted_trace.h"
#include "core/base/error.h"
#include "core/base/json_source.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/overrides.h"
#include "planner/plan/plan_file.h"

namespace zeroplan {
namespace {

constexpr const char* kFooter = R"(Examples:
  zeroplan explain plan.json
  zeroplan explain plan.json --trace step.json
The program is lowered again and must be the planned one. With --hw times follow that profile's
rates and links; capacities stay the plan's.)";

struct ExplainOptions {
  std::string plan, hardware, trace, output;
};

HardwareProfile PlannedHardware(const PlanFile& plan, const std::string& wanted) {
  if (!wanted.empty()) return LoadProfile(wanted);
  const std::string& name = plan.cluster.hardware;
  const std::vector<std::string> known = ProfileNames();
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    ThrowUsage("{}: cluster.hw: {} is not a built-in profile; give its file with --hw FILE",
               plan.source, name);
  }
  return LoadProfile(name);
}

// The links that the plan was made for, where `hardware` is its profile; another profile has its
// own.
void ApplyPlannedLinks(const PlanFile& plan, HardwareProfile& hardware) {
  const Cluster& cluster = plan.cluster;
  if (hardware.name != cluster.hardware) return;
  try {
    if (!cluster.network.empty()) ApplyNetwork(hardware, cluster.network);
    if (!cluster.intra_node_bandwidth.empty()) {
      ApplyGpuLink(hardware, cluster.intra_node_bandwidth);
    }
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: cluster: {}", plan.source, error.what()));
  }
}

void RunExplain(const ExplainOptions& options) {
  CheckWritable({{"--output", options.output}, {"--trace", options.trace}});
  const PlanFile plan = ReadPlan(ReadTextFile(options.plan), options.plan);
  const Program program = CheckedProgram(plan);
  HardwareProfile hardware = PlannedHardware(plan, options.hardware);
  ApplyPlannedLinks(plan, hardware);
  const CostModel costs(hardware, ClusterShape{plan.cluster.gpus, plan.cluster.gpus_per_node});
  Cluster cluster = plan.cluster;
  cluster.hardware = hardware.name;
  cluster.gpu_name = hardware.gpu.name;
  const ChoiceEstimate choice = EstimateProgram(program, cluster, &costs);
  if (!options.trace.empty()) WritePredictedTrace(program, costs, options.trace);
  WriteOutput(options.output, Explain(program, choice, cluster, costs));
}

}  // namespace

void RegisterExplain(Command& app) {
  Command command =
      app.Add("explain", "A plan's step: what it holds, what it does when, what it waits for");
  auto options = std::make_shared<ExplainOptions>();
  command.Required("plan", "PLAN", "What 'zeroplan plan --plan-out' wrote", options->plan);
  command.Text({"Hardware", "--hw", "NAME|FILE",
                "Hardware profile whose rates give the times (default: the plan's)"},
               options->hardware);
  command.Text({"Output", "--trace", "FILE.json",
                "Write the predicted step as a Chrome trace (chrome://tracing, ui.perfetto.dev)"},
               options->trace);
  command.Text({"Output", "-o,--output", "FILE", "File for the text (default: stdout)"},
               options->output);
  command.Footer(kFooter);
  command.Run([options] { RunExplain(*options); });
}

}  // namespace zeroplan
