// GPT-2: learned positions, layer norms before attention and MLP, biases everywhere, GELU in its
// tanh form, a head tied to the token embedding. Source of the architecture: Radford et al. 2019;
// names as in Hugging Face's GPT2LMHeadModel.
#pragma once

#include <string>
#include <vector>

#include "core/model/model_family.h"

namespace zeroplan {

const ModelFamily& Gpt2();

// ---- its config.json ----

std::string_view Gpt2ConfigKey(std::string_view field);
ModelSpec ReadGpt2Config(JsonSection* config, std::vector<std::string>* notes);
std::string WriteGpt2Config(const ModelSpec& spec);

}  // namespace zeroplan
