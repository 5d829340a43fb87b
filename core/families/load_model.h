// Models by name, from a Hugging Face config.json, or by a count of parameters.
#pragma once

#include <array>
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

// The one list of families. The first is the default: a parameter count becomes a model of it, and
// files that name no family mean it.
FamilyList ModelFamilies();

// nullptr if no family has that name.
const ModelFamily* FamilyNamed(std::string_view name);

// The family's name in a file of zeroplan's own: empty for the default family, whose name is left
// out.
std::string_view FamilyInFile(const ModelFamily& family);
// The family of `name` as written by FamilyInFile. Throws Error(kUsage) naming `where` (a file and
// key) and the known families.
const ModelFamily* FamilyFromFile(std::string_view name, std::string_view where);

// "\"gpt2\"", for messages.
std::string QuotedNames(FamilyList families);

// ---- models by the names that people use ----

// The file of a Hugging Face folder that holds a model's shape.
constexpr const char* kConfigFile = "config.json";

// The presets of all families, family by family.
const std::vector<ModelPreset>& ModelPresets();

// A model found by name, and how the name was understood.
struct NamedModel {
  ModelSpec spec;
  std::filesystem::path folder = {};  // folder of its config.json; empty: a preset, or a file
  std::string note = {};              // one line if the name is not the preset's own
  std::vector<std::string> config_notes = {};  // ReadHuggingFaceConfig's notes
  // OWNER/NAME of a model on a hub: its weights are in `folder`, or not on this machine.
  std::string hub_name = {};
};

// Models that zeroplan plans for other programs, and does not train: refused unless allowed.
struct OtherModels {
  bool allowed = false;
  // Types that it both trains and plans for other programs are read as the latter: the graph of
  // such a family is not what those programs run.
  bool preferred = false;
  std::optional<int64_t> image_tokens = {};  // image tokens of a sequence, for models with vision
};

// A model on a hub that is known by its config.json, of a type that zeroplan does not train.
struct PublishedConfig {
  std::array<const char*, 3> names;  // "OWNER/NAME" of models of this shape; null: no more
  uint64_t parameters = 0;           // as its page counts them
  const char* config = nullptr;
};

// Reads such models. The planner has all of them (planner/runtimes/planned/planned_models.h), and
// registers its reader before main; a program without a planner has none and refuses them.
class OtherModelReader {
 public:
  virtual ~OtherModelReader() = default;
  // Whether the type is known by name.
  virtual bool Knows(std::string_view model_type) const = 0;
  virtual std::span<const PublishedConfig> Published() const = 0;
  // The model of a config.json, whose root is `config`. Throws Error(kUsage) naming file and key.
  virtual ModelSpec Read(const ModelSource& from, const JsonNode& config,
                         std::string_view model_type, const OtherModels& others,
                         std::vector<std::string>* notes) const = 0;
};
// REQUIRES: before any model is found; `reader` stays as long as the process. Returns true.
bool RegisterOtherModels(const OtherModelReader* reader);
// The registered reader; null: none.
const OtherModelReader* OtherModelsReader();

// Finds a model, in this order: a preset's name; a Hugging Face config.json, or a folder that holds
// one; a published name ("meta-llama/Llama-3.1-8B-Instruct", in any case, with or without its
// owner), or another OWNER/NAME, in Hugging Face's cache; a published name as the preset of its
// shape (published_names.cc). Downloads nothing. Throws Error(kUsage) naming similar names and a
// command that fetches the model, or the file, key and value.
NamedModel FindModel(const std::string& name_or_path, const OtherModels& others = {});
// The spec alone; logs the config.json's settings that training ignores.
ModelSpec LoadModel(const std::string& name_or_path);

// Describes `path`, a folder without a config.json or a file that is none, with advice: "holds an
// adapter (LoRA), not a model; use ...". "" for an unknown file.
std::string WhatInsteadOfModel(const std::filesystem::path& path);
// Describes a folder that another program's checkpoints are in, which no run can be resumed from,
// with what starts from it; "" for all others.
std::string CheckpointOfOthers(const std::filesystem::path& folder);

// Advice for a config.json of another architecture: "; to plan for a model of its size: ⟦params⟧
// 9.24B ⟦family⟧ llama". The count is that of the weights in its folder, or computed from the
// config; "" if neither gives one.
std::string PlanOfItsSize(const std::filesystem::path& folder, const JsonNode& config);

// Reads and validates one Hugging Face config.json whose model_type is one of `families`, or
// another's if `others` allows it. Appends to `*notes` one line for each setting that training
// ignores (dropout). Unsupported settings are errors that name file, key and value.
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

// `model` as other programs' model, where `others` prefer that; else as it is.
ModelSpec AsPreferred(ModelSpec model, const OtherModels& others);

// A shape of `family` with about `params` parameters, `seq_len` positions: the preset within 3 % if
// there is one (10B is 50 x 4096), else the best found (hidden a multiple of 128, depth to width as
// in the GPT-3 paper's table 2.1). Below 20M: 256 byte-level tokens, hidden a multiple of 16.
// Throws Error(kUsage) outside [1e5, 1e15], and if that many positions leave no room.
ModelSpec ModelFromParams(uint64_t params, int64_t seq_len,
                          const ModelFamily& family = *ModelFamilies().front());

}  // namespace zeroplan
