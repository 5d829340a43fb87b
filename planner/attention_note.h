// What a plan says of attention where it is not one call of cuDNN's fused kernel.
#pragma once

#include <string>

#include "core/config/zero_config.h"
#include "core/lowering/lower.h"
#include "core/model/model_spec.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

// One paragraph: what runs instead, why, and what to change; "" where nothing is to be said.
// `lower`: what `setup` is lowered with, for CUDA.
std::string AttentionNote(const ModelSpec& model, const TrainSetup& setup,
                          const LowerOptions& lower, const GpuProfile& gpu);

}  // namespace zeroplan
