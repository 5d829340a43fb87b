// GPT-2: learned positions, layer norms before attention and MLP, biases everywhere, GELU in its
// tanh form, a head that is the token embedding again.
// Source of the architecture: Radford et al. 2019; names as in Hugging Face's GPT2LMHeadModel.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/model/model_family.h"

namespace zeroplan {

const ModelFamily& Gpt2();

// ---- what the family is put together from, a file each ----

// Its parameters, in forward order. Within a layer: ln_1, c_attn, c_proj, ln_2, c_fc, mlp.c_proj.
enum Gpt2Param : int {
  kWte,  // [Vp, C], the head too
  kWpe,  // [positions, C]
  kLn1W,
  kLn1B,
  kQkvW,  // [C, 3C]: query, key, value of all heads
  kQkvB,
  kProjW,  // [C, C]
  kProjB,
  kLn2W,
  kLn2B,
  kFcW,  // [C, F]
  kFcB,
  kFcProjW,  // [F, C]
  kFcProjB,
  kLnfW,
  kLnfB,
};
ParamRows Gpt2Params(const ModelSpec& spec);

std::unique_ptr<ModelGraph> MakeGpt2Graph(GraphBuilder& builder);

std::string_view Gpt2ConfigKey(std::string_view field);
ModelSpec ReadGpt2Config(JsonSection* config, std::vector<std::string>* notes);
std::string WriteGpt2Config(const ModelSpec& spec);

const std::vector<ModelPreset>& Gpt2Presets();
ModelSpec Gpt2Shape(int64_t layers, int64_t hidden, int64_t positions, bool byte_level);

}  // namespace zeroplan
