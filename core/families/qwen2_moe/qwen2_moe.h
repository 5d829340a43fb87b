// Qwen2's mixtures of experts (Yang et al. 2024): Qwen2's layer with experts in place of the MLP,
// and a shared expert that a sigmoid scales. Names as in Hugging Face's Qwen2MoeForCausalLM.
#pragma once

#include "core/model/model_family.h"

namespace zeroplan {

const ModelFamily& Qwen2Moe();

}  // namespace zeroplan
