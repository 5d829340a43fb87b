// Mixtral (Jiang et al. 2024): Mistral's layer with experts in place of the MLP. Names as in
// Hugging Face's MixtralForCausalLM.
#pragma once

#include "core/model/model_family.h"

namespace zeroplan {

const ModelFamily& Mixtral();

}  // namespace zeroplan
