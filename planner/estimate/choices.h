// Which ZeRO stages, offloads and recomputes are compared.
#pragma once

#include <string>
#include <vector>

#include "core/config/zero_config.h"

namespace zeroplan {

struct ChoiceSpace {
  std::vector<int> stages = {0, 1, 2, 3};
  std::vector<OffloadDevice> offload_optimizer = {OffloadDevice::kNone, OffloadDevice::kCpu,
                                                  OffloadDevice::kNvme};
  std::vector<OffloadDevice> offload_param = {OffloadDevice::kNone, OffloadDevice::kCpu,
                                              OffloadDevice::kNvme};
  std::vector<RecomputeConfig> recompute = {kNoRecompute};
};

// Whether stage and offloads go together: optimizer offload from stage 1, parameter offload at
// stage 3, a ratio below 1 with the CPU only.
bool CanRun(const ZeroConfig& zero);

// `base` with each combination that can run (optimizer offload from stage 1, parameter offload at
// stage 3; a ratio below 1 with the CPU only), by stage, offload_optimizer, offload_param,
// recompute. If not one can run, throws the Error(kUsage) of the first, which names key and fix.
std::vector<TrainSetup> EnumerateSetups(const TrainSetup& base, const ChoiceSpace& space);

// What is offloaded stays pageable, its staging too.
void UsePageableMemory(ZeroConfig& zero);
// False where all that is offloaded is so.
bool PinsMemory(const ZeroConfig& zero);

// "stage 2, optimizer on cpu, full recompute".
std::string SetupLabel(const TrainSetup& setup);
// "micro-batch 4 x 2 micro-steps".
std::string BatchText(const BatchSpec& batch);

}  // namespace zeroplan
