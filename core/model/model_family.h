// The interface of a model family. docs/adding-a-model-family.md explains how to add one.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json_section.h"
#include "core/model/model_spec.h"
#include "core/model/param_table.h"

namespace zeroplan {

// The origin of a config.json that was read.
struct ModelSource {
  std::string file;              // in messages
  std::filesystem::path folder;  // may hold the weights; empty: the config.json is in no folder
  std::string name;              // the model's name
};

class GraphBuilder;  // core/lowering/graph_builder.h
class JsonSection;   // core/base/json_section.h
class ModelGraph;    // core/lowering/graph_builder.h
struct PlannedCode;  // planner/runtimes/planned/planned_models.h

// A model on a hub whose config.json has a preset's shape.
struct PublishedName {
  const char* name;       // "OWNER/NAME", as its owner writes it
  int64_t positions = 0;  // positions of its config.json, if they differ from the preset's
  float rope_theta = 0;
};

struct ModelPreset {
  ModelSpec spec;
  std::string source;  // source of the shape
  std::vector<PublishedName> published = {};
};

// One family: its parameters, its graph, its config.json. A family is a constant object; models
// point to it. core/families/load_model.cc lists all families.
class ModelFamily {
 public:
  virtual ~ModelFamily() = default;

  // "gpt2": model_type in a config.json, and the name in files of zeroplan's own.
  virtual std::string_view name() const = 0;
  // Properties of the modelling code, for a model that is planned for other programs but not
  // trained here and so has no graph. Null: the model is trained here.
  virtual const PlannedCode* planned() const { return nullptr; }

  // ---- parameters ----

  virtual ParamRows Params(const ModelSpec& spec) const = 0;
  // Published weights may lack this prefix of the tensors' names ("transformer.").
  virtual std::string_view optional_prefix() const { return ""; }
  // True for a tensor of a published file that is no parameter of the model; it is skipped.
  virtual bool PassedOver(std::string_view /*tensor*/) const { return false; }

  // True if the model has a table of learned positions, whose row is added to the token's row.
  virtual bool learned_positions() const { return false; }

  // ---- graph ----

  virtual std::unique_ptr<ModelGraph> MakeGraph(GraphBuilder& builder) const = 0;

  // ---- config ----

  // The key of a config.json for a field of ModelSpec ("layers"); empty if there is none.
  virtual std::string_view ConfigKey(std::string_view field) const = 0;
  // Reads the dimensions of a Hugging Face config.json of this model_type. The caller sets name,
  // family and padded vocabulary. Unsupported settings are errors. Appends one line to `*notes`
  // (may be nullptr) for each setting that training ignores.
  virtual ModelSpec ReadConfig(JsonSection* config, std::vector<std::string>* notes) const = 0;
  // Writes a config.json that transformers can read. The vocabulary is unpadded.
  virtual std::string WriteConfig(const ModelSpec& spec) const = 0;

  // ---- shapes ----

  // Published models, with name and source.
  virtual const std::vector<ModelPreset>& presets() const = 0;
  // An unnamed model of usual proportions (heads, MLP). With `byte_level` its vocabulary has 256
  // tokens, else it is the family's own.
  virtual ModelSpec Shape(int64_t layers, int64_t hidden, int64_t positions,
                          bool byte_level) const = 0;
};

// Helpers shared by readers and writers of a Hugging Face config.json.

// Checks a switch that the family supports with one value only: the other value is an error.
inline void RequireSwitch(JsonSection* config, const char* key, bool supported) {
  if (config->Bool(key).value_or(supported) != supported) {
    config->Fail(key, "{} is not supported; use {}", !supported, supported);
  }
}

// The shortest decimal form of a float (1e-05, not 9.999999747378752e-06), which reads back as the
// same float.
inline double Decimal(float value) { return std::stod(fmt::format("{}", value)); }

}  // namespace zeroplan
