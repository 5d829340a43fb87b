// Properties of a PyTorch program that a setup lacks: its modelling code, the parts that are
// compiled, the dtype of its parameters, and its optimizer.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/settings/torch_recipe.h"

namespace zeroplan {

struct ModelSpec;        // core/model/model_spec.h
struct PrecisionConfig;  // core/settings/zero_config.h

// "layers" or "all", as in the field compile; empty: nothing is compiled.
std::string_view CompileName(TorchCompile compile);
// "not compiled", "layers compiled", "layers and loss compiled".
std::string_view CompiledText(TorchCompile compile);

// The dtype in which PyTorch alone and DDP hold trained parameters, their gradients and the
// optimizer's states, if matmuls run in `computes`. transformers and torchtune load parameters in
// the checkpoint's dtype, which has 16 bits. fp16 is an exception, because GradScaler unscales only
// fp32 gradients. PEFT's adapters are in fp32 (autocast_adapter_dtype).
Dtype HeldByDdp(const TorchRecipe& recipe, Dtype computes, bool adapters);

// The dtype in which 4-bit weights are packed, if matmuls run in `computes`.
Dtype QuantStorageOf(const TorchRecipe& recipe, bool fully_shards, Dtype computes);

// Unset if matmuls are in 16 bits.
std::optional<TorchFloat8> Float8Of(const PrecisionConfig& precision, const TorchRecipe& recipe);

// "bfloat16", "float16", "float32", "uint8".
std::string_view TorchDtypeName(Dtype dtype);

// Whether that code supports the model: Liger and torchtune have no LayerNorm; models that are
// planned by the code of transformers have that and, without experts, Liger's.
bool HasCodeOf(CodeStyle code, const ModelSpec& model);

// "transformers' code with Liger's kernels, not compiled, adamw_bnb_8bit", for headlines.
std::string RecipeText(const TorchRecipe& recipe);

// The settings of `recipe` that are not defaults, by the names of its fields: {"code", "hf"}. Files
// contain them as marks, and reports show them.
std::vector<std::pair<std::string, std::string>> RecipeWords(const TorchRecipe& recipe);

}  // namespace zeroplan
