// What is predicted of a run, by its plan or for its machine.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "cli/common/output.h"
#include "cli/common/planned_hardware.h"
#include "cli/run/train/train_work.h"
#include "core/base/log.h"
#include "core/base/units.h"
#include "cost_models/cost_model.h"
#include "planner/report/report_text.h"

namespace zeroplan {

std::string MachineDiffers(const PlanFile& plan, const HardwareProfile& here, int gpus) {
  const Cluster& planned = plan.cluster;
  const int wanted = std::min(planned.gpus, planned.gpus_per_node);
  const auto memory = static_cast<uint64_t>(here.gpu.usable_memory.value);
  const bool less = memory + memory / 100 < planned.gpu_capacity_bytes;
  const bool other_count = gpus > 0 && gpus != wanted;
  if (here.gpu.name == planned.gpu_name && !less && !other_count) return "";
  return fmt::format(
      "Machine: {} was made for {} x {} with {} each on a host; here {} {} x {} with {}. What it "
      "predicts is for its own; 'zeroplan plan' plans for these.",
      plan.source, wanted, planned.gpu_name, FormatBytes(planned.gpu_capacity_bytes),
      gpus == 1 ? "is" : "are", std::max(gpus, 1), here.gpu.name, FormatBytes(memory));
}

std::string StepDiffers(const PlanFile& plan, const RunPrediction& here) {
  constexpr double kAlike = 0.1;
  if (!plan.step_seconds || !here.step_seconds) return "";
  const double planned = *plan.step_seconds, found = *here.step_seconds;
  if (std::abs(found - planned) < kAlike * planned) return "";
  return fmt::format(
      "Step: {} says {}, with the figures of {}; with those of this machine a step is predicted "
      "to take {}. 'zeroplan plan' chooses anew for them.",
      plan.source, FormatSeconds(planned), plan.cluster.hardware, FormatSeconds(found));
}

HardwareProfile PredictingHardware(const TrainWork& work) {
  return work.plan && KnowsPlannedHardware(*work.plan) ? PlannedHardware(*work.plan)
                                                       : work.hardware;
}

namespace {

std::function<void(ChromeTrace&)> PredictionOn(const HardwareProfile& hardware, ClusterShape shape,
                                               const Program& program) {
  return [hardware, shape, &program](ChromeTrace& trace) {
    AddPredictedStep(program, CostModel(hardware, shape), trace);
  };
}

}  // namespace

std::function<void(ChromeTrace&)> PredictionForTrace(const TrainWork& work, const Program& program,
                                                     Backend backend, int ranks_per_host) {
  constexpr const char* kMeasuredAlone = "--trace: what was measured alone, no predicted step: {}";
  if (backend == Backend::kCuda) {
    const ClusterShape shape{program.setup.batch.world_size, ranks_per_host};
    const HardwareProfile hardware = PredictingHardware(work);
    if (shape.nodes() == 1 || hardware.network) return PredictionOn(hardware, shape, program);
    LogInfo(kMeasuredAlone, "hardware profile " + hardware.name + " has no network");
    return {};
  }
  if (!work.plan || program.backend == Backend::kCpu) {
    LogInfo(kMeasuredAlone, "there is no prediction for the CPU backend");
    return {};
  }
  if (!KnowsPlannedHardware(*work.plan)) {
    LogInfo(kMeasuredAlone,
            "the plan's profile " + work.plan->cluster.hardware + " is not built in");
    return {};
  }
  const Cluster& cluster = work.plan->cluster;
  return PredictionOn(PlannedHardware(*work.plan), {cluster.gpus, cluster.gpus_per_node}, program);
}

}  // namespace zeroplan
