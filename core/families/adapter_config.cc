#include "core/families/adapter_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/base/json_source.h"
#include "core/base/strings.h"
#include "core/families/load_model.h"
#include "core/families/name_pattern.h"
#include "core/model/lora.h"
#include "core/model/model_family.h"
#include "core/model/param_table.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

// Says how a key of PEFT's LoraConfig changes what the tensors of an adapter mean.
enum class KeyRole : uint8_t {
  kRead,     // it is read below
  kNothing,  // nothing
  kRefused,  // it changes them, but for null, false and what is empty
  kSection   // so does any object, an empty one too: it turns on what it configures
};

struct AdapterKey {
  const char* key;
  KeyRole role;
  const char* what = "";  // of what is refused: "VALUE ..."
};

constexpr const char* kInPeft = "merge it with PEFT (merge_and_unload) and use the model";

// All keys of PEFT 0.21 (peft/config.py, peft/tuners/lora/config.py), and those of before that say
// the same.
constexpr AdapterKey kAdapterKeys[] = {
    {"peft_type", KeyRole::kRead},
    {"base_model_name_or_path", KeyRole::kRead},
    {"r", KeyRole::kRead},
    {"lora_alpha", KeyRole::kRead},
    {"lora_dropout", KeyRole::kRead},
    {"use_rslora", KeyRole::kRead},
    {"target_modules", KeyRole::kRead},
    {"exclude_modules", KeyRole::kRead},
    {"layers_to_transform", KeyRole::kRead},
    {"layers_pattern", KeyRole::kRead},
    {"rank_pattern", KeyRole::kRead},
    {"alpha_pattern", KeyRole::kRead},
    {"modules_to_save", KeyRole::kRead},
    {"ensure_weight_tying", KeyRole::kRead},
    {"trainable_token_indices", KeyRole::kRead},
    {"bias", KeyRole::kRead},
    {"init_lora_weights", KeyRole::kRead},
    {"task_type", KeyRole::kNothing},
    {"auto_mapping", KeyRole::kNothing},
    {"peft_version", KeyRole::kNothing},
    {"revision", KeyRole::kNothing},
    {"inference_mode", KeyRole::kNothing},
    {"fan_in_fan_out", KeyRole::kNothing},  // PEFT corrects it by the kind of the linear
    {"runtime_config", KeyRole::kNothing},
    {"megatron_config", KeyRole::kNothing},
    {"megatron_core", KeyRole::kNothing},
    {"qalora_group_size", KeyRole::kNothing},  // of use_qalora
    // These say how init_lora_weights makes the first values.
    {"loftq_config", KeyRole::kNothing},
    {"eva_config", KeyRole::kNothing},
    {"corda_config", KeyRole::kNothing},
    {"lora_ga_config", KeyRole::kNothing},
    {"use_dora", KeyRole::kRefused,
     "is DoRA, which also scales each output (lora_magnitude_vector)"},
    {"lora_bias", KeyRole::kRefused,
     "gives B biases, which are not read; merge it with PEFT, where the base has biases"},
    {"use_qalora", KeyRole::kRefused, "is QA-LoRA, whose A reads sums of inputs"},
    {"layer_replication", KeyRole::kRefused, "makes a model of more layers"},
    {"target_parameters", KeyRole::kRefused, "adapts what is no linear"},
    {"alora_invocation_tokens", KeyRole::kRefused,
     "is aLoRA, which adapts a text from these tokens on; no merged model can, and PEFT alone runs "
     "it"},
    {"use_bdlora", KeyRole::kSection, "is BD-LoRA, whose matrices are block-diagonal"},
    {"arrow_config", KeyRole::kSection,
     "is Arrow, which chooses among several adapters; PEFT alone runs it"},
    {"kasa_config", KeyRole::kSection,
     "is KaSA, which cuts the base's weights and scales the rank"},
    {"monteclora_config", KeyRole::kSection, "is MonteCLoRA, which draws its adapters"},
    {"velora_config", KeyRole::kSection,
     "is VeLoRA, which trains with compressed inputs and keeps more than A and B"},
};

bool IsNeutral(const JsonNode& node, bool objects) {
  if (node.is_null() || (node.kind == JsonNode::Kind::kScalar && node.scalar == false)) return true;
  if (node.is_string()) return node.scalar.text().empty();
  return node.is_object() ? objects && node.members.empty()
                          : node.is_array() && node.elements.empty();
}

// Refuses every key that would change what the tensors mean and is not read.
void CheckKeys(const JsonNode& root, const JsonSection& config) {
  for (const auto& [key, value] : root.members) {
    const auto* known =
        std::find_if(std::begin(kAdapterKeys), std::end(kAdapterKeys),
                     [&name = key](const AdapterKey& one) { return one.key == name; });
    if (known == std::end(kAdapterKeys)) {
      if (IsNeutral(value, true)) continue;
      config.Fail(key,
                  "{} is not known to leave an adapter as it is; use null where it is without "
                  "effect, else {}",
                  value.Quote(), kInPeft);
    }
    if (known->role == KeyRole::kNothing) continue;
    if (value.is_string() && value.scalar == "auto") config.FailValue(key, "a value");
    if (known->role == KeyRole::kRead || IsNeutral(value, known->role == KeyRole::kRefused))
      continue;
    const bool says_how = std::string_view(known->what).find(';') != std::string_view::npos;
    config.Fail(key, "{} {}{}{}", value.Quote(), known->what, says_how ? "" : "; ",
                says_how ? "" : kInPeft);
  }
}

// How the first A and B were made. Some ways take what these two make from the base's own weights,
// so that what was trained means nothing on the base as it is.
void CheckInit(JsonSection& config, AdapterUse use) {
  constexpr const char* kKey = "init_lora_weights";
  const JsonNode* node = config.Value(kKey);
  if (node == nullptr || (node->kind == JsonNode::Kind::kScalar && node->scalar.is_boolean())) {
    return;
  }
  const std::string way = node->is_string() ? LowerAscii(node->scalar.text()) : "";
  if (way == "gaussian" || way == "eva" || way == "orthogonal") return;
  if (way == "mica" && use == AdapterUse::kMerge) return;
  if (way == "mica") {
    config.Fail(kKey, "\"mica\" trains A alone; merge it, or train on in PEFT");
  }
  if (way == "loftq") {
    config.Fail(kKey, "\"loftq\" goes with a base of other weights, which it makes; {}", kInPeft);
  }
  if (way.starts_with("pissa") || way.starts_with("corda") || way == "olora" || way == "lora_ga") {
    config.Fail(kKey,
                "{} has taken the first adapter from the base's weights; convert it with PEFT "
                "(save_pretrained with path_initial_model_for_weight_conversion), or {}",
                node->Quote(), kInPeft);
  }
  config.FailValue(kKey, "true, false, \"gaussian\", \"eva\" or \"orthogonal\"");
}

std::vector<std::string> NamesIn(const JsonSection& config, const char* key, const JsonNode& node) {
  std::vector<std::string> names;
  for (const JsonNode& name : node.elements) {
    const bool sound = name.is_string() && !name.scalar.text().empty() &&
                       name.scalar.text().find_first_of(",@:") == std::string::npos;
    if (!sound) config.FailValue(key, "a list of modules' names");
    names.push_back(name.scalar.text());
  }
  return names;
}

// Modules as PEFT lets them be said: names, whole or their ends, or a regular expression.
class ModuleSet {
 public:
  ModuleSet(JsonSection& config, const char* key) : config_(config), key_(key) {
    const JsonNode* node = config.Value(key);
    if (node == nullptr) return;
    if (node->is_string() && !node->scalar.text().empty()) {
      all_linear_ = LowerAscii(node->scalar.text()) == kAllLinear;
      if (!all_linear_) pattern_.emplace(node->scalar.text(), config.Where(key));
    } else if (node->is_array()) {
      list_ = NamesIn(config, key, *node);
      names_.insert(list_.begin(), list_.end());
    } else if (!node->is_string()) {
      config.FailValue(key, "a list of modules' names, or a regular expression");
    }
  }

  bool empty() const { return !all_linear_ && !pattern_ && names_.empty(); }
  bool all_linear() const { return all_linear_; }
  bool is_text() const { return all_linear_ || pattern_; }
  const std::vector<std::string>& list() const { return list_; }
  // Whether it is listed in full.
  bool Lists(std::string_view module) const { return names_.contains(std::string(module)); }
  bool Has(std::string_view module, int64_t& steps) const {
    if (pattern_) {
      const bool found = pattern_->FullyMatches(module, steps);
      if (steps < 0) config_.Fail(key_, "takes too long to match; list the modules' names");
      return found;
    }
    for (std::string_view rest = module; !names_.empty();) {
      if (Lists(rest)) return true;
      const size_t dot = rest.find('.');
      if (dot == std::string_view::npos) break;
      rest = rest.substr(dot + 1);
    }
    return false;
  }

 private:
  const JsonSection& config_;
  const char* key_;
  bool all_linear_ = false;
  std::optional<NamePattern> pattern_;
  std::vector<std::string> list_;
  std::unordered_set<std::string> names_;
};

// Values for modules whose names match a key: of rank_pattern, alpha_pattern.
class ValuesByName {
 public:
  ValuesByName(JsonSection& config, const char* key, double least, double most, bool whole)
      : config_(config), key_(key) {
    const JsonNode* node = config.Value(key);
    if (node == nullptr || IsNeutral(*node, true)) return;
    if (!node->is_object()) config.FailValue(key, "an object: a value for each name");
    int64_t size = 0;
    for (const auto& [name, value] : node->members) {
      const std::optional<double> number = ScalarNumber(value);
      if (!number || !(*number >= least && *number <= most) ||
          (whole && *number != std::floor(*number))) {
        config.Fail(key, "{}: {} is not allowed; use a {}number from {} to {}",
                    PrintableText(name, 80), value.Quote(), whole ? "whole " : "", least, most);
      }
      // As PEFT puts it together.
      patterns_.emplace_back(NamePattern(fmt::format("(.*\\.)?({})$", name), config.Where(key)),
                             *number);
      size += patterns_.back().first.size();
      if (size > kMostSize) config.Fail(key, "has too many names; use fewer or simpler ones");
    }
  }

  double Of(std::string_view module, double usual, int64_t& steps) const {
    for (const auto& [pattern, value] : patterns_) {
      const bool found = pattern.MatchesFront(module, steps);
      if (steps < 0) config_.Fail(key_, "takes too long to match; use fewer or simpler names");
      if (found) return value;
    }
    return usual;
  }

 private:
  static constexpr int64_t kMostSize = 1'000'000;  // of all patterns; a thousand names take a tenth

  const JsonSection& config_;
  const char* key_;
  std::vector<std::pair<NamePattern, double>> patterns_;
};

// The layers of layers_to_transform; nullopt: all.
std::optional<std::set<int64_t>> ChosenLayers(JsonSection& config, const ParamRows& rows) {
  constexpr const char *kLayers = "layers_to_transform", *kPattern = "layers_pattern";
  const JsonNode* node = config.Value(kLayers);
  if (node == nullptr || (node->is_array() && node->elements.empty())) return std::nullopt;
  std::set<int64_t> layers;
  const auto add = [&](const JsonNode& one) {
    const std::optional<double> number =
        one.kind == JsonNode::Kind::kScalar && one.scalar.is_number() ? ScalarNumber(one)
                                                                      : std::nullopt;
    if (!number || *number != std::floor(*number) || std::abs(*number) > 1e9) {
      config.FailValue(kLayers, "a layer's number, or a list of these");
    }
    layers.insert(static_cast<int64_t>(*number));
  };
  if (node->is_array()) {
    for (const JsonNode& one : node->elements) add(one);
  } else {
    add(*node);
  }
  const JsonNode* pattern = config.Value(kPattern);
  if (pattern == nullptr || IsNeutral(*pattern, false)) return layers;
  constexpr const char* kAllowed = "the name of the list of layers, such as \"layers\"";
  const std::vector<JsonNode> one = {*pattern};
  const std::string_view prefix = rows.layer_prefix;
  bool named = false;
  for (const JsonNode& name : pattern->is_array() ? pattern->elements : one) {
    const bool plain =
        name.is_string() &&
        std::all_of(name.scalar.text().begin(), name.scalar.text().end(), [](char c) {
          return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
        });
    if (!plain) config.FailValue(kPattern, kAllowed);
    named = named || IsNamed(prefix.substr(0, prefix.size() - 1), name.scalar.text());
  }
  if (!named) config.FailValue(kPattern, kAllowed);
  return layers;
}

// Sets spec.lora_targets to the linears that have adapters, with their layers, ranks and alphas, as
// PEFT finds them in the names of a model's modules. REQUIRES: spec has the rest.
void ReadModules(JsonSection& config, ModelSpec& spec) {
  const ParamRows rows = spec.family->Params(BaseModel(spec));
  const std::vector<std::string> linears = LayerLinears(spec);
  const ModuleSet targets(config, "target_modules"), excluded(config, "exclude_modules");
  if (targets.empty()) {
    config.Fail("target_modules", "{} names no linear; list those that have adapters",
                config.Quote("target_modules"));
  }
  const std::optional<std::set<int64_t>> layers = ChosenLayers(config, rows);
  if (layers && targets.is_text()) {
    config.FailValue("layers_to_transform", "null where target_modules is no list");
  }
  const ValuesByName ranks(config, "rank_pattern", 1, 65536, true);
  const ValuesByName alphas(config, "alpha_pattern", 1e-6, 1e6, false);
  const std::vector<std::string_view> saved = SplitList(spec.lora_saved);
  const auto is_saved = [&saved](std::string_view module) {
    return std::any_of(saved.begin(), saved.end(),
                       [module](std::string_view name) { return IsNamed(module, name); });
  };
  int64_t steps = NamePattern::kMostSteps;
  const auto has_adapter = [&](const std::string& module) {
    if (excluded.Has(module, steps) || is_saved(module)) return false;
    return targets.all_linear() || targets.Has(module, steps);
  };
  const auto refuse_other = [&](std::string_view tensor) {
    const std::string module(ModuleOf(tensor));
    if (tensor.empty() || targets.all_linear() || !has_adapter(module)) return;
    config.Fail("target_modules",
                "{} would have an adapter, and linears of layers alone have one "
                "here; {}",
                module, kInPeft);
  };
  for (const auto* list : {&rows.before, &rows.after}) {
    for (const ParamRow& row : *list) {
      refuse_other(row.name);
      refuse_other(row.twin);
    }
  }
  AdapterGrid grid(static_cast<size_t>(spec.layers), std::vector<LinearAdapter>(linears.size()));
  for (size_t layer = 0; layer < grid.size(); ++layer) {
    for (size_t i = 0; i < linears.size(); ++i) {
      const std::string module = fmt::format("{}{}.{}", rows.layer_prefix, layer, linears[i]);
      const bool chosen = !layers || layers->contains(static_cast<int64_t>(layer));
      if (!has_adapter(module) || (!chosen && !targets.Lists(module))) continue;
      grid[layer][i] = {
          static_cast<int64_t>(ranks.Of(module, static_cast<double>(spec.lora_rank), steps)),
          static_cast<float>(alphas.Of(module, spec.lora_alpha, steps))};
    }
  }
  // As the file has it, where that says it all.
  spec.lora_targets = kAllLinear;
  const bool named =
      std::all_of(targets.list().begin(), targets.list().end(), [&](const auto& name) {
        return std::any_of(linears.begin(), linears.end(),
                           [&name](const std::string& linear) { return IsNamed(linear, name); });
      });
  if (named && !targets.is_text())
    spec.lora_targets = fmt::format("{}", fmt::join(targets.list(), ","));
  if (!named || ReadTargets(spec, config.source()) != grid) {
    spec.lora_targets = WriteTargets(spec, grid);
  }
  if (spec.lora_targets.empty()) {
    config.Fail("target_modules", "no linear has an adapter; those of the model's layers are {}",
                fmt::join(linears, ", "));
  }
}

// A pickle is code that runs as it is read.
void RefusePickle(const std::filesystem::path& folder) {
  std::error_code ignored;
  const std::filesystem::path whole = std::filesystem::absolute(folder, ignored);
  const std::filesystem::path pickle = whole / kAdapterPickleFile;
  const std::filesystem::path weights = whole / kAdapterWeightsFile;
  if (std::filesystem::exists(weights, ignored) || !std::filesystem::exists(pickle, ignored))
    return;
  ThrowUsage(
      "{0}: is a pickle, which runs code as it is read, and is not read; make {1} of it with "
      "cd / && python3 -c \"import torch, safetensors.torch; "
      "safetensors.torch.save_file({{k: v.clone() for k, v in torch.load('{0}', "
      "map_location='cpu', weights_only=True).items()}}, '{2}')\"",
      pickle.string(), kAdapterWeightsFile, weights.string());
}

}  // namespace

ModelSpec WithAdapter(ModelSpec spec, const std::filesystem::path& folder, AdapterUse use) {
  const std::string file = (folder / kAdapterConfigFile).string();
  RefusePickle(folder);
  const JsonNode root = ParseJsonText(ReadTextFile(file), file);
  JsonSection config(&root, "", file);
  if (config.String("peft_type").value_or("") != "LORA") {
    config.Fail("peft_type", "{} is not allowed; use \"LORA\"", config.Quote("peft_type"));
  }
  CheckKeys(root, config);
  CheckInit(config, use);
  if (config.String("bias").value_or("none") != "none") {
    config.Fail("bias", "{} trains biases of the base, which are not read; {}",
                config.Quote("bias"), kInPeft);
  }
  spec.lora_rank = config.Int("r", 1, 65536).value_or(8);
  spec.lora_alpha = static_cast<float>(config.Number("lora_alpha", 1e-6, 1e6).value_or(8));
  spec.lora_dropout = static_cast<float>(config.Number("lora_dropout", 0, 1).value_or(0));
  spec.lora_rslora = config.Bool("use_rslora").value_or(false);
  const JsonNode* saved = config.Value("modules_to_save");
  if (saved != nullptr && !saved->is_array()) {
    config.FailValue("modules_to_save", "a list of modules' names");
  }
  spec.lora_saved.clear();
  if (saved != nullptr) {
    spec.lora_saved = fmt::format("{}", fmt::join(NamesIn(config, "modules_to_save", *saved), ","));
  }
  ReadModules(config, spec);
  TakeVocabulary(config, folder, spec);
  CheckAdapters(spec, file);
  return spec;
}

std::filesystem::path TokenizerFolder(const std::filesystem::path& model,
                                      const std::filesystem::path& adapter) {
  std::error_code ignored;
  const bool has = !adapter.empty() && std::filesystem::exists(adapter / "tokenizer.json", ignored);
  return has ? adapter : model;
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
  // An adapter below this one is part of the model that was meant.
  std::error_code ignored;
  const bool same = std::filesystem::equivalent(model.folder, folder, ignored);
  RefuseUnaskedAdapter(model.folder, same && !given.empty() ? folder.string() : "");
  return model.folder.string();
}

bool TrainsTiedHead(const ModelSpec& spec) {
  const ParamRows rows = RowsOf(spec);
  return std::any_of(rows.before.begin(), rows.before.end(), [&](const ParamRow& row) {
    return *row.twin != '\0' && row.trainable && !IsAdapter(row) &&
           !IsCarried(spec, ModuleOf(row.name));
  });
}

std::vector<std::string> SavedModules(const ModelSpec& spec) {
  std::vector<std::string> names;
  if (spec.lora_saved.empty()) return names;
  for (const std::string_view name : SplitList(spec.lora_saved)) {
    if (!IsCarried(spec, name)) names.emplace_back(name);
  }
  // PEFT ties only what it knows by these two names.
  const VocabularyModules modules = VocabularyModulesOf(spec);
  if (TrainsTiedHead(spec) && !modules.embedding.ends_with("embed_tokens")) {
    names.push_back(modules.head);
  }
  return names;
}

namespace {

// A list is of the embedding, and of the head that it is. null: there are none.
Json TokenIndices(const ModelSpec& spec) {
  const auto list = [&spec](const std::string& tokens) {
    return ReadTokens(tokens, spec.vocab, spec.name);
  };
  if (spec.lora_head_tokens.empty()) {
    return spec.lora_tokens.empty() ? Json(nullptr) : Json(list(spec.lora_tokens));
  }
  const VocabularyModules modules = VocabularyModulesOf(spec);
  Json by_module;
  if (!spec.lora_tokens.empty()) by_module[modules.embedding] = list(spec.lora_tokens);
  by_module[modules.head] = list(spec.lora_head_tokens);
  return by_module;
}

}  // namespace

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
  const AdapterNames names = NamesOfAdapters(spec);
  out["target_modules"] = names.modules;
  for (const auto& [name, rank] : names.ranks) out["rank_pattern"][name] = rank;
  for (const auto& [name, alpha] : names.alphas) out["alpha_pattern"][name] = Decimal(alpha);
  const std::vector<std::string> saved = SavedModules(spec);
  out["modules_to_save"] = saved.empty() ? Json(nullptr) : Json(saved);
  if (!saved.empty()) out["ensure_weight_tying"] = TrainsTiedHead(spec);
  if (const Json tokens = TokenIndices(spec); !tokens.is_null()) {
    out["trainable_token_indices"] = tokens;
  }
  out["bias"] = "none";
  out["fan_in_fan_out"] = transposed;
  out["init_lora_weights"] = true;
  return out.dump(2) + "\n";
}

}  // namespace zeroplan
