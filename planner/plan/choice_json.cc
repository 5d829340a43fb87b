#include "planner/plan/choice_json.h"

namespace zeroplan {

nlohmann::ordered_json GpuBytesJson(const ChoiceEstimate& choice) {
  return {{"params", choice.memory.of(MemoryClass::kParams)},
          {"grads", choice.memory.of(MemoryClass::kGrads)},
          {"optimizer", choice.memory.of(MemoryClass::kOptimizer)},
          {"activations", choice.memory.of(MemoryClass::kActivations)},
          {"buffers", choice.memory.of(MemoryClass::kBuffers)},
          {"runtime", choice.runtime_bytes},
          {"total", choice.gpu_total_bytes}};
}

nlohmann::ordered_json StepSecondsJson(const TimeEstimate& time) {
  return {{"compute", Nullable(time.compute_seconds)},
          {"exposed_comm", Nullable(time.exposed_comm_seconds)},
          {"exposed_offload", Nullable(time.exposed_offload_seconds)},
          {"optimizer", Nullable(time.optimizer_seconds)},
          {"total", Nullable(time.total_seconds)}};
}

}  // namespace zeroplan
