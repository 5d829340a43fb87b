// OLMoE (Muennighoff et al. 2024): llama's layer with norms over all query heads and all key heads,
// and experts in place of the MLP. Names as in Hugging Face's OlmoeForCausalLM.
#pragma once

#include "core/model/model_family.h"

namespace zeroplan {

const ModelFamily& Olmoe();

}  // namespace zeroplan
