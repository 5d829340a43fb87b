// adapter_config.json: what PEFT keeps beside the weights of an adapter.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/model/model_spec.h"

namespace zeroplan {

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr const char* kAdapterWeightsFile = "adapter_model.safetensors";
// What PEFT puts before the names of tensors.
inline constexpr const char* kAdapterPrefix = "base_model.model.";

// What an adapter is read for: to be merged into its base, or to be trained on.
enum class AdapterUse : uint8_t { kMerge, kTrain };

// The adapter in `folder`, put on `spec`: what PEFT 0.21 makes of the same file.
// Throws Error(kUsage) naming file, key and value for what is no LoRA on linears of layers, has
// more than A and B (DoRA, biases), or changes the base below; and for any key with a value that is
// not known to be without effect.
ModelSpec WithAdapter(ModelSpec spec, const std::filesystem::path& folder, AdapterUse use);

// The folder of the model that the adapter in `folder` is of: `given`, a name or folder, or where
// that is empty the one that the adapter names. Throws Error(kUsage) where it is not here.
std::string BaseFolder(const std::filesystem::path& folder, const std::string& given);

// The file of spec's adapters, as PEFT reads it. `base`: the name or folder of the model below.
// REQUIRES: HasAdapters(spec).
std::string WriteAdapterConfig(const ModelSpec& spec, const std::string& base);

}  // namespace zeroplan
