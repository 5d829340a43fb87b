#include "planner/runs/run_prediction.h"

#include "core/base/error.h"
#include "core/base/units.h"
#include "cost_models/cost_model.h"
#include "cost_models/step_time.h"

namespace zeroplan {

RunPrediction PredictRun(const Program& program, const HardwareProfile& hardware,
                         int gpus_per_node) {
  const int gpus = program.setup.batch.world_size;
  const ClusterShape shape{gpus, gpus_per_node};
  RunPrediction prediction;
  prediction.hardware = hardware.name;
  Cluster cluster;
  cluster.gpus = gpus;
  cluster.gpus_per_node = gpus_per_node;
  cluster.runtime_bytes = RuntimeBytes(hardware, gpus);
  cluster.communicator_bytes = CommunicatorBytes(hardware, gpus);
  prediction.footprint = FootprintOf(program, cluster);
  if (shape.nodes() == 1 || hardware.network) {
    const CostModel costs(hardware, shape);
    prediction.step = StepTimer(costs).Time(program);
    prediction.step_seconds = prediction.step->total_seconds;
  }
  return prediction;
}

std::optional<Shortage> GpuShortage(const RunPrediction& prediction, const GpuLimit& limit) {
  Cluster cluster;
  cluster.gpu_capacity_bytes = limit.bytes;
  cluster.gpu_reserve_bytes = limit.reserve_bytes;
  const std::vector<Shortage> shortages = Check(prediction.footprint, CapacityOf(cluster));
  return shortages.empty() ? std::nullopt : std::optional(shortages.front());
}

void CheckGpuMemory(const RunPrediction& prediction, const GpuLimit& limit) {
  const std::optional<Shortage> shortage = GpuShortage(prediction, limit);
  if (!shortage) return;
  throw Error(
      ExitCode::kNothingFits,
      fmt::format("@@gpu_memory: {} of a GPU's memory are needed ({} outside the arena by {}), {} "
                  "more than {} less {} kept free (@@gpu_reserve); 'zeroplan plan' with the same "
                  "@@gpu_memory finds what fits",
                  FormatBytes(shortage->needs), FormatBytes(prediction.footprint.runtime_bytes),
                  prediction.hardware, FormatBytes(shortage->short_by()), FormatBytes(limit.bytes),
                  FormatBytes(limit.reserve_bytes)));
}

std::optional<double> DensePeak(const HardwareProfile& hardware, Dtype dtype) {
  const auto found = hardware.gpu.dense_peaks.find(dtype);
  if (found == hardware.gpu.dense_peaks.end()) return std::nullopt;
  return found->second.value;
}

}  // namespace zeroplan
