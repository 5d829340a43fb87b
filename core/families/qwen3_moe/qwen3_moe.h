// Qwen3's mixtures of experts (Yang et al. 2025): llama's layer with norms of query and key heads,
// and experts in place of the MLP. Names as in Hugging Face's Qwen3MoeForCausalLM.
#pragma once

#include "core/model/model_family.h"

namespace zeroplan {

const ModelFamily& Qwen3Moe();

}  // namespace zeroplan
