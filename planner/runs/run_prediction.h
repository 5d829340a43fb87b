// What the planner says of a run on GPUs, to be held against what is measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/program/program.h"
#include "hwprofiles/profile.h"
#include "planner/footprint.h"

namespace zeroplan {

struct RunPrediction {
  std::string hardware;  // name of the profile
  Footprint footprint;
  std::optional<double> step_seconds;  // unset: several hosts, and the profile has no network
};

// `gpus_per_node`: ranks of one host.
RunPrediction PredictRun(const Program& program, const HardwareProfile& hardware,
                         int gpus_per_node);

// What is short of one GPU's memory if it has `gpu_bytes`.
std::optional<Shortage> GpuShortage(const RunPrediction& prediction, uint64_t gpu_bytes);

// Throws Error(kNothingFits) if more than `limit_bytes` of one GPU's memory are predicted.
void CheckGpuMemory(const RunPrediction& prediction, uint64_t limit_bytes);

// FLOP/s of the profile's GPU without sparsity; unset where it does not have that type.
std::optional<double> DensePeak(const HardwareProfile& hardware, Dtype dtype);

}  // namespace zeroplan
