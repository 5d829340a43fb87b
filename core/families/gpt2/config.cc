// Hugging Face's GPT2Config, read and written. Defaults are GPT2Config's own.
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/families/gpt2/gpt2.h"
#include "core/model/model_family.h"
#include "core/model/model_fields.h"

namespace zeroplan {
namespace {

struct ConfigKey {
  std::string_view field;  // of ModelSpec
  const char* key;
  const char* alias;  // the generic name that transformers accepts for it; nullptr: none
  int64_t fallback;   // of whole numbers; 0: four times the width
};
constexpr ConfigKey kKeys[] = {
    {"layers", "n_layer", "num_hidden_layers", 12},
    {"hidden", "n_embd", "hidden_size", 768},
    {"heads", "n_head", "num_attention_heads", 12},
    {"ffn", "n_inner", nullptr, 0},
    {"vocab", "vocab_size", nullptr, 50257},
    // Old configs say n_ctx too; GPT2Config reads n_positions only.
    {"positions", "n_positions", "max_position_embeddings", 1024},
    {"layer_norm_eps", "layer_norm_epsilon", nullptr, 0},
    {"init_std", "initializer_range", nullptr, 0},
    {"tied_head", "tie_word_embeddings", nullptr, 0},
};

const ConfigKey* FindKey(std::string_view field) {
  for (const ConfigKey& key : kKeys) {
    if (key.field == field) return &key;
  }
  return nullptr;
}

int64_t Dimension(JsonSection* config, const ConfigKey& key, int64_t fallback) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const std::optional<int64_t> own = config->Int(key.key, 1, kMax);
  const std::optional<int64_t> other =
      key.alias == nullptr ? std::nullopt : config->Int(key.alias, 1, kMax);
  if (own && other && *own != *other) {
    config->Fail(key.key, "{} differs from {} {}; keep one of them", *own, key.alias, *other);
  }
  return own ? *own : other.value_or(fallback);
}

void CheckArchitecture(JsonSection* config) {
  const std::string activation = config->String("activation_function").value_or("gelu_new");
  // Both names stand for the tanh form of GELU.
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    config->FailValue("activation_function", "\"gelu_new\" (GELU in its tanh form)");
  }
  RequireSwitch(config, "scale_attn_weights", true);
  RequireSwitch(config, "scale_attn_by_inverse_layer_idx", false);
  RequireSwitch(config, "reorder_and_upcast_attn", false);
  RequireSwitch(config, "add_cross_attention", false);
}

void NoteDropout(JsonSection* config, std::vector<std::string>* notes) {
  std::string found;
  for (const char* key : {"embd_pdrop", "resid_pdrop", "attn_pdrop"}) {
    const double p = config->Number(key, 0, 1).value_or(0.1);
    if (p > 0) found += fmt::format("{}{} {}", found.empty() ? "" : ", ", key, p);
  }
  if (!found.empty() && notes != nullptr) {
    notes->push_back(config->Where("embd_pdrop") + "dropout is not trained with (" + found + ")");
  }
}

}  // namespace

std::string_view Gpt2ConfigKey(std::string_view field) {
  const ConfigKey* key = FindKey(field);
  return key == nullptr ? std::string_view() : key->key;
}

ModelSpec ReadGpt2Config(JsonSection* config, std::vector<std::string>* notes) {
  CheckArchitecture(config);
  ModelSpec spec;
  ForEachField(spec, [&]<typename T>(const ModelField& field, T& value) {
    const ConfigKey* key = FindKey(field.key);
    if constexpr (std::is_same_v<T, int64_t>) {
      if (key == nullptr) return;
      value = Dimension(config, *key, key->fallback != 0 ? key->fallback : 4 * spec.hidden);
    }
  });
  constexpr const char* kEps = "a number above 0 and below 1, such as 1e-5";
  spec.layer_norm_eps = static_cast<float>(
      config->Number(FindKey("layer_norm_eps")->key, 1e-30, 0.999, kEps).value_or(1e-5));
  spec.init_std =
      static_cast<float>(config->Number(FindKey("init_std")->key, 0, 99).value_or(0.02));
  spec.tied_head = config->Bool(FindKey("tied_head")->key).value_or(true);
  NoteDropout(config, notes);
  return spec;
}

std::string WriteGpt2Config(const ModelSpec& spec) {
  nlohmann::ordered_json out;
  out["architectures"] = {"GPT2LMHeadModel"};
  out["model_type"] = Gpt2().name();
  out["activation_function"] = "gelu_new";
  ForEachField(spec, [&]<typename T>(const ModelField& field, const T& value) {
    const ConfigKey* key = FindKey(field.key);
    if (key == nullptr) return;
    if constexpr (std::is_same_v<T, int64_t>) out[key->key] = value;
    if constexpr (std::is_same_v<T, float>) out[key->key] = Decimal(value);
    if (field.key == "positions") out["n_ctx"] = spec.positions;
  });
  if (spec.ffn == 4 * spec.hidden) out["n_inner"] = nullptr;
  for (const char* key : {"embd_pdrop", "resid_pdrop", "attn_pdrop"}) out[key] = 0.0;
  out["scale_attn_weights"] = true;
  out["tie_word_embeddings"] = spec.tied_head;
  if (spec.vocab == 50257) {
    // GPT-2's end-of-text token; other vocabularies have none that zeroplan knows of.
    out["bos_token_id"] = out["eos_token_id"] = 50256;
  } else {
    out["bos_token_id"] = out["eos_token_id"] = nullptr;
  }
  return out.dump(2) + "\n";
}

}  // namespace zeroplan
