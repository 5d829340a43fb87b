// How much more GPU memory DeepSpeed takes than zeroplan for the same choice.
#pragma once

#include "core/config/zero_config.h"

namespace zeroplan {

// The largest ratio of device memory that DeepSpeed 0.19.6 used to the total that zeroplan plans,
// over measured runs of the same stage and offload (docs/cost-model.md lists them): what a plan
// multiplies its bytes by before it hands out a config. At least 1.
double DeepSpeedMemoryFactor(const TrainSetup& setup);

}  // namespace zeroplan
