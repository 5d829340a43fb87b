// adapter_config.json: what PEFT keeps beside the weights of an adapter.
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
// PEFT puts this before the names of tensors.
inline constexpr const char* kAdapterPrefix = "base_model.model.";
// The same weights as a pickle, which is code: never read.
inline constexpr const char* kAdapterPickleFile = "adapter_model.bin";
// Behind a module's name where trainable_token_indices are of it: the matrix that they replace rows
// of, if that is saved too.
inline constexpr const char* kTokensBase = ".token_adapter.base_layer.weight";
// The key of the base's digest in the header of adapter_model.safetensors.
inline constexpr const char* kBaseDigestKey = "zeroplan.base";

// Says why an adapter is read: it is merged into its base, or trained on.
enum class AdapterUse : uint8_t { kMerge, kTrain };

// The adapter in `folder`, put on `spec`: what PEFT 0.21 makes of the same file.
// Throws Error(kUsage) naming file, key and value for what is no LoRA on linears of layers, has
// more than A and B (DoRA, biases), or changes the base below; and for any key with a value that is
// not known to be without effect.
ModelSpec WithAdapter(ModelSpec spec, const std::filesystem::path& folder, AdapterUse use);

// The modules of the token embedding and of the head, which a tied model has as a second name:
// "model.embed_tokens", "lm_head"; empty where the family has none such.
struct VocabularyModules {
  std::string embedding, head;
};
VocabularyModules VocabularyModulesOf(const ModelSpec& spec);

// Puts on the model of the base what the adapter's files say of the two, as PEFT loads them:
//
// - modules_to_save: each of the two that it names is trained. On a tied base PEFT makes a copy of
//   it, and the other stays: spec.tied_head becomes false. With ensure_weight_tying both are one.
// - Tensors of the two that nobody named come along (save_embedding_layers): read from the adapter,
//   left as they are, and saved again. spec.lora_saved and spec.frozen name both.
// - Another number of rows is another vocabulary, as of a model that was resized.
// - trainable_token_indices are spec.lora_tokens and spec.lora_head_tokens. Of the head alone, or
//   other ones than of the embedding, they make a tied model untied, too.
//
// REQUIRES: spec.lora_saved is as modules_to_save has it. WithAdapter calls it.
void TakeVocabulary(JsonSection& config, const std::filesystem::path& folder, ModelSpec& spec);
// Embedding and head, as far as lora_saved does not name them, come along with the adapter.
void CarryVocabulary(ModelSpec& spec);
// Whether `module` comes along so, and is not trained.
bool IsCarried(const ModelSpec& spec, std::string_view module);

// Throws Error(kUsage) saying what to do where `folder`, which is taken for a model, holds an
// adapter, too: neither is left out unasked. `adapter`: the adapter that is asked for; "": none.
void RefuseUnaskedAdapter(const std::filesystem::path& folder, const std::string& adapter);

// The folder with the tokenizer of a model with an adapter: the adapter's, which may have added
// tokens, where it has one, else `model`.
std::filesystem::path TokenizerFolder(const std::filesystem::path& model,
                                      const std::filesystem::path& adapter);

// The folder of the model that the adapter in `folder` is of: `given`, a name or folder, or where
// that is empty the one that the adapter names. Throws Error(kUsage) where it is not here.
std::string BaseFolder(const std::filesystem::path& folder, const std::string& given);

// Returns what PEFT's modules_to_save has to name for the modules that are trained whole, and says
// whether its ensure_weight_tying has to be true: a tied embedding that is trained is the head,
// too. REQUIRES: HasAdapters(spec).
std::vector<std::string> SavedModules(const ModelSpec& spec);
bool TrainsTiedHead(const ModelSpec& spec);

// The file of spec's adapters, as PEFT reads it. `base`: the name or folder of the model below.
// REQUIRES: HasAdapters(spec).
std::string WriteAdapterConfig(const ModelSpec& spec, const std::string& base);

}  // namespace zeroplan
