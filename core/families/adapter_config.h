// adapter_config.json: the file that PEFT stores next to the weights of an adapter.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json_section.h"
#include "core/model/model_spec.h"

namespace zeroplan {

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr const char* kAdapterWeightsFile = "adapter_model.safetensors";
// PEFT's prefix of tensor names.
inline constexpr const char* kAdapterPrefix = "base_model.model.";
// The same weights as a pickle, which is never read because a pickle is code.
inline constexpr const char* kAdapterPickleFile = "adapter_model.bin";
// Suffix of a module's name if trainable_token_indices apply to it: the matrix whose rows they
// replace, if that is saved too.
inline constexpr const char* kTokensBase = ".token_adapter.base_layer.weight";
// The key in the header of adapter_model.safetensors that holds the base's digest.
inline constexpr const char* kBaseDigestKey = "zeroplan.base";

// The purpose of reading an adapter: it is merged into its base, or trained on.
enum class AdapterUse : uint8_t { kMerge, kTrain };

// `spec` with the adapter in `folder`, as PEFT 0.21 reads the same file. Throws Error(kUsage)
// naming file, key and value if it is no LoRA on linears of layers, has more than A and B (DoRA,
// biases) or changes the base below; and for any key whose value is not known to have no effect.
ModelSpec WithAdapter(ModelSpec spec, const std::filesystem::path& folder, AdapterUse use);

// The modules of the token embedding and of the head, a second name for the embedding in a tied
// model: "model.embed_tokens", "lm_head"; empty if the family lacks it.
struct VocabularyModules {
  std::string embedding, head;
};
VocabularyModules VocabularyModulesOf(const ModelSpec& spec);

// Applies the adapter's settings for embedding and head to the base's model, as PEFT loads them:
//
// - modules_to_save: each of the two that it names is trained. For a tied base PEFT makes a copy,
// and the other module stays: spec.tied_head becomes false. With ensure_weight_tying both are one.
// - Tensors of the two in the adapter's file that no key names (save_embedding_layers) are carried:
// read from the adapter, left unchanged, and saved again. spec.lora_saved and spec.frozen name
// both.
// - Another number of rows is another vocabulary, as in a model that was resized.
// - trainable_token_indices become spec.lora_tokens and spec.lora_head_tokens. If they apply to the
// head alone, or to other tokens than the embedding's, a tied model becomes untied, too.
//
// REQUIRES: spec.lora_saved equals modules_to_save. Called by WithAdapter.
void TakeVocabulary(JsonSection& config, const std::filesystem::path& folder, ModelSpec& spec);
// Marks embedding and head as carried with the adapter, unless lora_saved names them.
void CarryVocabulary(ModelSpec& spec);
// Whether `module` is carried with the adapter, without being trained.
bool IsCarried(const ModelSpec& spec, std::string_view module);

// Throws Error(kUsage) with advice if `folder`, which is used as a model, holds an adapter, too:
// neither is ignored silently. `adapter`: the adapter that was requested; "": none.
void RefuseUnaskedAdapter(const std::filesystem::path& folder, const std::string& adapter);

// The folder with the tokenizer of a model with an adapter: the adapter's if it has one, because it
// may have added tokens, else `model`.
std::filesystem::path TokenizerFolder(const std::filesystem::path& model,
                                      const std::filesystem::path& adapter);

// The folder of the base model of the adapter in `folder`: `given`, a name or folder, or if that is
// empty the base that the adapter names. Throws Error(kUsage) if it is not on this machine.
std::string BaseFolder(const std::filesystem::path& folder, const std::string& given);

// PEFT's modules_to_save for the modules that are trained whole; and whether its
// ensure_weight_tying must be true, because a tied embedding that is trained is the head, too.
// REQUIRES: HasAdapters(spec).
std::vector<std::string> SavedModules(const ModelSpec& spec);
bool TrainsTiedHead(const ModelSpec& spec);

// The adapter_config.json of spec's adapters, as PEFT reads it. `base`: the name or folder of the
// base model. REQUIRES: HasAdapters(spec).
std::string WriteAdapterConfig(const ModelSpec& spec, const std::string& base);

}  // namespace zeroplan
