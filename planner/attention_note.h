// What a plan says of attention where it is not one call of cuDNN's fused kernel.
#pragma once

#include <string>

#include "core/config/zero_config.h"
#include "core/lowering/lower.h"
#include "core/model/model_spec.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

// One paragraph: what runs instead, why, and what to change; "" where nothing is to be said.
// `lower`: what `setup` is lowered with, for CUDA. `ordered_program`: whether it was lowered as
// deterministic, which a plan that `train --deterministic` runs may not have been.
std::string AttentionNote(const ModelSpec& model, const TrainSetup& setup,
                          const LowerOptions& lower, const GpuProfile& gpu, bool ordered_program);
inline std::string AttentionNote(const ModelSpec& model, const TrainSetup& setup,
                                 const LowerOptions& lower, const GpuProfile& gpu) {
  return AttentionNote(model, setup, lower, gpu, setup.deterministic);
}

// Why attention within packed documents would run on plain kernels on this GPU: "cuDNN takes packed
// documents from compute capability 9.0 on, the GPU has 8.9". "" where it would not, or where whole
// rows run on slow kernels too (fp32).
std::string PlainWithinDocuments(const ModelSpec& model, const TrainSetup& setup,
                                 const GpuProfile& gpu);

}  // namespace zeroplan
