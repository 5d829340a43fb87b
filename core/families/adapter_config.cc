#include "core/families/adapter_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/base/json_source.h"
#include "core/base/strings.h"
#include "core/families/load_model.h"
#include "core/model/lora.h"
#include "core/model/model_family.h"
#include "core/model/param_table.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

// A list of names, or "all-linear"; "" where the key is null or absent.
std::string Modules(JsonSection& config, const char* key) {
  const JsonNode* node = config.Value(key);
  if (node == nullptr) return "";
  if (node->is_string()) {
    if (node->scalar.text() == kAllLinear) return std::string(kAllLinear);
    config.FailValue(key, "a list of modules' names, or \"all-linear\" (patterns are not read)");
  }
  if (!node->is_array()) config.FailValue(key, "a list of modules' names");
  std::vector<std::string> names;
  for (const JsonNode& name : node->elements) {
    if (!name.is_string()) config.FailValue(key, "a list of modules' names");
    names.push_back(name.scalar.text());
  }
  return fmt::format("{}", fmt::join(names, ","));
}

// "attn.c_proj" for as many names as there are layers, such as "transformer.h.3.attn.c_proj", which
// PEFT writes where the short name is another linear's too.
std::string ForAllLayers(const JsonSection& config, const ModelSpec& spec,
                         const std::string& targets) {
  if (targets == kAllLinear) return targets;
  const std::vector<std::string> linears = LayerLinears(spec);
  std::map<std::string, std::set<int64_t>> layers;
  std::vector<std::string> names;
  for (const std::string_view target : SplitList(targets)) {
    const auto linear = std::find_if(linears.begin(), linears.end(), [&](const std::string& name) {
      return target.ends_with("." + name) && target.size() > name.size() + 1;
    });
    int64_t layer = -1;
    if (linear != linears.end()) {
      const std::string_view before = target.substr(0, target.size() - linear->size() - 1);
      const std::string_view number = before.substr(before.rfind('.') + 1);
      std::from_chars(number.data(), number.data() + number.size(), layer);
    }
    if (layer < 0) {
      names.emplace_back(target);
    } else {
      layers[*linear].insert(layer);
    }
  }
  for (const auto& [linear, of] : layers) {
    if (static_cast<int64_t>(of.size()) != spec.layers) {
      config.Fail("target_modules", "{} has adapters in {} of {} layers; all or none are trained",
                  linear, of.size(), spec.layers);
    }
    names.push_back(linear);
  }
  return fmt::format("{}", fmt::join(names, ","));
}

void RefuseEntries(JsonSection& config, const char* key, const char* allowed) {
  const JsonNode* node = config.Value(key);
  if (node == nullptr) return;
  const bool empty =
      (node->is_object() && node->members.empty()) || (node->is_array() && node->elements.empty());
  if (!empty) config.FailValue(key, allowed);
}

}  // namespace

ModelSpec WithAdapter(ModelSpec spec, const std::filesystem::path& folder) {
  const std::string file = (folder / kAdapterConfigFile).string();
  const JsonNode root = ParseJsonText(ReadTextFile(file), file);
  JsonSection config(&root, "", file);
  if (config.String("peft_type").value_or("") != "LORA") {
    config.FailValue("peft_type", "\"LORA\"");
  }
  for (const char* key : {"use_dora", "lora_bias", "use_qalora"})
    RequireSwitch(&config, key, false);
  if (config.String("bias").value_or("none") != "none") config.FailValue("bias", "\"none\"");
  constexpr const char* kNone = "none: all adapted linears have one rank and one scale";
  for (const char* key : {"rank_pattern", "alpha_pattern", "layers_to_transform",
                          "layer_replication", "target_parameters"}) {
    RefuseEntries(config, key, kNone);
  }
  spec.lora_rank = config.Int("r", 1, 65536).value_or(8);
  spec.lora_alpha = static_cast<float>(config.Number("lora_alpha", 1e-6, 1e6).value_or(8));
  spec.lora_dropout = static_cast<float>(config.Number("lora_dropout", 0, 1).value_or(0));
  spec.lora_rslora = config.Bool("use_rslora").value_or(false);
  spec.lora_targets = ForAllLayers(config, spec, Modules(config, "target_modules"));
  spec.lora_saved = Modules(config, "modules_to_save");
  CheckAdapters(spec, file);
  return spec;
}

std::string BaseFolder(const std::filesystem::path& folder, const std::string& given) {
  const std::string file = (folder / kAdapterConfigFile).string();
  std::string name = given;
  if (name.empty()) {
    const JsonNode root = ParseJsonText(ReadTextFile(file), file);
    name = JsonSection(&root, "", file).String("base_model_name_or_path").value_or("");
  }
  if (name.empty()) {
    ThrowUsage("{}: base_model_name_or_path: names no model; say which it is of", file);
  }
  NamedModel model;
  try {
    model = FindModel(name);
  } catch (const Error& error) {
    if (!given.empty() || error.code() != ExitCode::kUsage) throw;
    ThrowUsage("{}: base_model_name_or_path: {}; or say which folder the model is in", file,
               error.what());
  }
  if (model.folder.empty()) {
    ThrowUsage("{}: the weights of {} are not here; fetch them with 'hf download {}'", file, name,
               model.hub_name.empty() ? name : model.hub_name);
  }
  return model.folder.string();
}

std::string WriteAdapterConfig(const ModelSpec& spec, const std::string& base) {
  bool transposed = false;
  for (const ParamRow& row : spec.family->Params(BaseModel(spec)).layer) {
    transposed = transposed || (row.use == ParamUse::kProduct && !row.out_in);
  }
  Json out;
  out["peft_type"] = "LORA";
  out["task_type"] = "CAUSAL_LM";
  out["base_model_name_or_path"] = base.empty() ? Json(nullptr) : Json(base);
  out["inference_mode"] = true;
  out["r"] = spec.lora_rank;
  out["lora_alpha"] = Decimal(spec.lora_alpha);
  out["lora_dropout"] = Decimal(spec.lora_dropout);
  out["use_rslora"] = spec.lora_rslora;
  out["target_modules"] = AdaptedModules(spec);
  Json saved = nullptr;
  if (!spec.lora_saved.empty()) {
    saved = Json::array();
    for (const std::string_view name : SplitList(spec.lora_saved))
      saved.push_back(std::string(name));
  }
  out["modules_to_save"] = std::move(saved);
  out["bias"] = "none";
  out["fan_in_fan_out"] = transposed;
  out["init_lora_weights"] = true;
  return out.dump(2) + "\n";
}

}  // namespace zeroplan
