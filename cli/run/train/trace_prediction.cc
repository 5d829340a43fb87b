#include "cli/run/train/trace_prediction.h"

#include <utility>

#include "cli/common/planned_hardware.h"
#include "cli/common/report_option.h"
#include "core/base/log.h"
#include "cost_models/cost_model.h"

namespace zeroplan {
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
    if (shape.nodes() == 1 || work.hardware.network) {
      return PredictionOn(work.hardware, shape, program);
    }
    LogInfo(kMeasuredAlone, "hardware profile " + work.hardware.name + " has no network");
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
