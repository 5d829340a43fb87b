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
  prediction.runtime_bytes = RuntimeBytes(hardware, gpus);
  prediction.gpu_total_bytes =
      program.arena_bytes[static_cast<size_t>(Space::kDevice)] + prediction.runtime_bytes;
  if (shape.nodes() == 1 || hardware.network) {
    const CostModel costs(hardware, shape);
    prediction.step_seconds = StepTimer(costs).Time(program).total_seconds;
  }
  return prediction;
}

void CheckGpuMemory(const RunPrediction& prediction, uint64_t limit_bytes) {
  if (prediction.gpu_total_bytes <= limit_bytes) return;
  throw Error(
      ExitCode::kNothingFits,
      fmt::format("--gpu-memory: {} of a GPU's memory are needed ({} outside the arena by {}), {} "
                  "more than {}; 'zeroplan plan' with the same --gpu-memory finds what fits",
                  FormatBytes(prediction.gpu_total_bytes), FormatBytes(prediction.runtime_bytes),
                  prediction.hardware, FormatBytes(prediction.gpu_total_bytes - limit_bytes),
                  FormatBytes(limit_bytes)));
}

std::optional<double> DensePeak(const HardwareProfile& hardware, Dtype dtype) {
  const auto found = hardware.gpu.dense_peaks.find(dtype);
  if (found == hardware.gpu.dense_peaks.end()) return std::nullopt;
  return found->second.value;
}

}  // namespace zeroplan
