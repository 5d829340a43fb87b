// The planner's prediction of a run on GPUs, to be compared with measurements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/program/program.h"
#include "cost_models/step_time.h"
#include "hwprofiles/profile.h"
#include "planner/footprint.h"

namespace zeroplan {

struct RunPrediction {
  std::string hardware;  // name of the profile
  Footprint footprint;
  // Unset: several hosts, and the profile has no network.
  std::optional<double> step_seconds;
  std::optional<StepTime> step;  // the same by cause
};

// `gpus_per_node`: ranks of one host.
RunPrediction PredictRun(const Program& program, const HardwareProfile& hardware,
                         int gpus_per_node);

// Memory of one GPU, of which `reserve_bytes` stay free.
struct GpuLimit {
  uint64_t bytes = 0, reserve_bytes = 0;
};

// What is short of one GPU's memory.
std::optional<Shortage> GpuShortage(const RunPrediction& prediction, const GpuLimit& limit);

// Throws Error(kNothingFits) if more is predicted than `limit`, which is --gpu-memory's, allows.
void CheckGpuMemory(const RunPrediction& prediction, const GpuLimit& limit);

// FLOP/s of the profile's GPU without sparsity; unset where it does not have that type.
std::optional<double> DensePeak(const HardwareProfile& hardware, Dtype dtype);

}  // namespace zeroplan
