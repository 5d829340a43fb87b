#include "cli/run_prediction.h"

#include "cost_models/cost_model.h"
#include "cost_models/step_time.h"

namespace zeroplan {

RunPrediction PredictRun(const Program& program, const HardwareProfile& hardware,
                         int gpus_per_node) {
  const int gpus = program.setup.batch.world_size;
  const ClusterShape shape{gpus, gpus_per_node};
  RunPrediction prediction;
  prediction.hardware = hardware.name;
  prediction.runtime_bytes = RuntimeBytes(hardware, gpus);
  prediction.gpu_total_bytes =
      program.arena_bytes[static_cast<size_t>(Space::kDevice)] + prediction.runtime_bytes;
  if (shape.nodes() == 1 || hardware.network) {
    const CostModel costs(hardware, shape);
    prediction.step_seconds = StepTimer(costs).Time(program).total_seconds;
  }
  return prediction;
}

std::optional<double> DensePeak(const HardwareProfile& hardware, Dtype dtype) {
  const auto found = hardware.gpu.dense_peaks.find(dtype);
  if (found == hardware.gpu.dense_peaks.end()) return std::nullopt;
  return found->second.value;
}

}  // namespace zeroplan
