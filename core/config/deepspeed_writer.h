// Writes a TrainSetup as a DeepSpeed JSON config that DeepSpeed itself loads.
#pragma once

#include <string>

#include "core/config/zero_config.h"

namespace zeroplan {

// Every key that is needed to reproduce `setup` (at DeepSpeed's defaults a key is left out only
// where zeroplan's reader has the same default) and no other. ReadDeepSpeedConfig of the result with
// the same world size, sequence length and `layers` gives `setup` back, but for what the next
// function refuses. `layers`: of the model, for activation_checkpointing.number_checkpoints.
std::string WriteDeepSpeedConfig(const TrainSetup& setup, int64_t layers);

// What DeepSpeed cannot do of `setup`: "ratio 0.4 below stage 3", "the optimizer on NVMe below stage
// 3"; empty if it can do all. The search leaves such choices out when a DeepSpeed config is wanted.
std::string DeepSpeedCannot(const TrainSetup& setup);

}  // namespace zeroplan
