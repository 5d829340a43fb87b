// Models by name, from a Hugging Face config.json, or by a count of parameters.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json_source.h"
#include "core/model/model_family.h"
#include "core/model/model_spec.h"

namespace zeroplan {

// ---- the families of models that zeroplan trains ----

using FamilyList = std::span<const ModelFamily* const>;

// The one list of them. The first is the default: a parameter count becomes a model of it, and
// files that name no family mean it.
FamilyList ModelFamilies();

// nullptr if no family has that name.
const ModelFamily* FamilyNamed(std::string_view name);

// The name to write into a file of zeroplan's own: empty for the default family, which is left out.
std::string_view FamilyInFile(const ModelFamily& family);
// What a file says: `name` as FamilyInFile gave it. Throws Error(kUsage) naming `where` (a file and
// key) and the families there are.
const ModelFamily* FamilyFromFile(std::string_view name, std::string_view where);

// "\"gpt2\"", for messages.
std::string QuotedNames(FamilyList families);

// ---- a model by what people call it ----

// What a Hugging Face folder keeps a model's shape in.
constexpr const char* kConfigFile = "config.json";

// The presets of all families, family by family.
const std::vector<ModelPreset>& ModelPresets();

// A model that somebody named, and how the name was understood.
struct NamedModel {
  ModelSpec spec;
  std::filesystem::path folder = {};           // with its config.json; empty: a preset, or a file
  std::string note = {};                       // one line where the name is not the preset's own
  std::vector<std::string> config_notes = {};  // as ReadHuggingFaceConfig gives them
  // OWNER/NAME where a model on a hub was named: its weights are in `folder`, or not here.
  std::string hub_name = {};
};

// Models that zeroplan plans for other programs, and does not train (core/families/planned):
// refused unless allowed.
struct OtherModels {
  bool allowed = false;
  std::optional<int64_t> image_tokens = {};  // of a sequence, of those that see
};

// In this order: a preset's name; a Hugging Face config.json, or a folder that holds one; a
// published name ("meta-llama/Llama-3.1-8B-Instruct", in any case, with or without its owner), or
// another OWNER/NAME, in Hugging Face's cache; a published name as the preset of its shape
// (published_names.cc). Nothing is downloaded. Throws Error(kUsage) naming what is near and what
// would fetch it, or the file, key and value.
NamedModel FindModel(const std::string& name_or_path, const OtherModels& others = {});
// The spec alone; what its config.json is not trained with is logged.
ModelSpec LoadModel(const std::string& name_or_path);

// What lies at `path`, a folder without a config.json or a file that is none, and what to do:
// "holds an adapter (LoRA), not a model; use ...". "" for a file of which nothing is known.
std::string WhatInsteadOfModel(const std::filesystem::path& path);

// For a config.json of another architecture: "; to plan for a model of its size: ⟦params⟧ 9.24B
// ⟦family⟧ llama". The count is that of the weights in `folder`, or what the config comes to; ""
// where neither tells. `folder`: ModelSource's.
std::string PlanOfItsSize(const std::filesystem::path& folder, const JsonNode& config);

// Reads one Hugging Face config.json whose model_type is one of `families`, or another's where
// `others` allows it, and validates it.
// `*notes` collects one line for each setting that is not trained with (dropout). Unsupported
// settings are errors that name file, key and value.
ModelSpec ReadHuggingFaceConfig(const std::filesystem::path& file, std::vector<std::string>* notes,
                                FamilyList families = ModelFamilies(),
                                const OtherModels& others = {});
// The same of text that was parsed.
ModelSpec ReadHuggingFaceConfig(const JsonNode& root, const ModelSource& source,
                                std::vector<std::string>* notes,
                                FamilyList families = ModelFamilies(),
                                const OtherModels& others = {});
// The config.json that transformers reads back, as text. Vocabulary unpadded.
std::string WriteHuggingFaceConfig(const ModelSpec& spec);

// A shape of `family` with about `params` parameters, `seq_len` positions: the preset within 3 % if
// there is one (10B is 50 x 4096), else the best found (hidden a multiple of 128, depth to width as
// the GPT-3 paper's table 2.1 has it). Below 20M: 256 byte-level tokens, hidden a multiple of 16.
// Throws Error(kUsage) outside [1e5, 1e15], and where that many positions leave no room.
ModelSpec ModelFromParams(uint64_t params, int64_t seq_len,
                          const ModelFamily& family = *ModelFamilies().front());

}  // namespace zeroplan
