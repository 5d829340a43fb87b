// config.json of transformers' LlamaConfig, MistralConfig, Qwen2Config and Qwen3Config: keys,
// defaults and what zeroplan does not do of them.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/families/llama/llama.h"
#include "core/model/model_family.h"

namespace zeroplan {

namespace {

struct ConfigKey {
  std::string_view field;  // of ModelSpec
  std::string_view key;
};
constexpr ConfigKey kKeys[] = {
    {"layers", "num_hidden_layers"},
    {"hidden", "hidden_size"},
    {"heads", "num_attention_heads"},
    {"ffn", "intermediate_size"},
    {"vocab", "vocab_size"},
    {"positions", "max_position_embeddings"},
    {"layer_norm_eps", "rms_norm_eps"},
    {"init_std", "initializer_range"},
    {"kv_heads", "num_key_value_heads"},
    {"head_size", "head_dim"},
    {"window", "sliding_window"},
    {"tied_head", "tie_word_embeddings"},
    {"qkv_bias", "attention_bias"},
    {"out_bias", "attention_bias"},
    {"mlp_bias", "mlp_bias"},
    {"rope_scaling", "rope_type"},
    {"rope_positions", "original_max_position_embeddings"},
    {"rope_theta", "rope_theta"},
    {"rope_factor", "factor"},
    {"rope_low", "low_freq_factor"},
    {"rope_high", "high_freq_factor"},
    {"rope_attention_factor", "attention_factor"},
    {"num_experts", "num_experts"},
    {"experts_per_token", "num_experts_per_tok"},
    {"expert_ffn", "moe_intermediate_size"},
    {"shared_ffn", "shared_expert_intermediate_size"},
    {"normalized_gates", "norm_topk_prob"},
    {"dense_layers", "mlp_only_layers"},
    {"router_aux_loss", "router_aux_loss_coef"},
};

constexpr int64_t kMax = std::numeric_limits<int32_t>::max();

// Null is 0, which stands for what follows from the other keys; a missing key is `fallback`.
int64_t Optional(JsonSection* config, const char* key, int64_t fallback) {
  if (config->Raw(key) == nullptr) return fallback;
  return config->Int(key, 1, kMax).value_or(0);
}

void CheckArchitecture(const LlamaKind& kind, JsonSection* config) {
  if (config->String("hidden_act").value_or("silu") != "silu") {
    config->FailValue("hidden_act", "\"silu\" (SwiGLU)");
  }
  if (config->Number("partial_rotary_factor", 0, 1).value_or(1) != 1) {
    config->FailValue("partial_rotary_factor", "1 (positions turn whole heads)");
  }
  if (config->Int("pretraining_tp", 1, kMax).value_or(1) != 1) {
    config->FailValue("pretraining_tp", "1 (the weights are the same)");
  }
  RequireSwitch(config, "rope_interleaved", false);
  if (!kind.attention_bias) RequireSwitch(config, "attention_bias", false);
  if (!kind.mlp_bias) RequireSwitch(config, "mlp_bias", false);
}

void ReadHeads(const LlamaKind& kind, JsonSection* config, ModelSpec* spec) {
  spec->heads = config->Int("num_attention_heads", 1, kMax).value_or(kind.heads);
  spec->kv_heads = Optional(config, "num_key_value_heads", kind.kv_heads);
  if (spec->kv_heads == spec->heads) spec->kv_heads = 0;
  spec->head_size = Optional(config, "head_dim", kind.head_size);
  const bool divides = spec->hidden % spec->heads == 0;
  if (divides && spec->head_size == spec->hidden / spec->heads) spec->head_size = 0;
  if (spec->head_size == 0 && !divides) {
    config->Fail("num_attention_heads",
                 "{} does not divide hidden_size {}; use a number of heads that does, or head_dim",
                 spec->heads, spec->hidden);
  }
  if (spec->HeadSize() % 2 != 0) {
    const char* key = spec->head_size > 0 ? "head_dim" : "num_attention_heads";
    config->Fail(key, "a head of {} channels has no pairs to turn; use an even head size",
                 spec->HeadSize());
  }
}

// Attention of a window is that of all tokens as long as the sequence is no longer, which training
// sees to. So it matters only that there is one, for the longest sequence.
void ReadWindow(const LlamaKind& kind, JsonSection* config, ModelSpec* spec) {
  if (kind.sliding_window == 0) return;
  const bool on = !kind.window_switch || config->Bool("use_sliding_window").value_or(false);
  // transformers 5 writes 0 where the window is switched off.
  const bool zero = kind.window_switch && !on && config->Int("sliding_window", 0, kMax) == 0;
  const int64_t window =
      zero ? 0 : Optional(config, "sliding_window", std::max<int64_t>(0, kind.sliding_window));
  if (on) spec->window = window;
  const JsonNode* types = config->Value("layer_types");
  if (kind.window_switch) {
    const int64_t from = config->Int("max_window_layers", 0, kMax).value_or(28);
    if (types == nullptr && spec->window > 0 && from > 0 && from < spec->layers) {
      config->Fail("max_window_layers",
                   "{} of {} layers without the window are not supported; use 0 (all layers have "
                   "it) or \"use_sliding_window\": false",
                   from, spec->layers);
    }
    if (types == nullptr && from >= spec->layers) spec->window = 0;
  }
  if (types == nullptr) return;
  if (!types->is_array()) config->FailValue("layer_types", "a list of strings");
  bool slides = false;
  for (const JsonNode& type : types->elements) {
    const std::string name = type.is_string() ? type.scalar.text() : type.Quote();
    if (name != "full_attention" && name != "sliding_attention") {
      config->Fail("layer_types", "\"{}\" is not supported; use full_attention", name);
    }
    slides = slides || name == "sliding_attention";
  }
  if (slides && spec->window == 0) {
    config->Fail("layer_types",
                 "sliding_attention without a window; set sliding_window, or use full_attention");
  }
  // The types decide, but for Mistral's, whose layers all have the window that its config names.
  if (!slides && kind.window_switch) spec->window = 0;
}

void NoteDropout(JsonSection* config, std::vector<std::string>* notes) {
  const double p = config->Number("attention_dropout", 0, 1).value_or(0);
  if (p > 0 && notes != nullptr) {
    notes->push_back(config->Where("attention_dropout") +
                     fmt::format("dropout is not trained with (attention_dropout {})", p));
  }
}

nlohmann::ordered_json RopeScalingJson(const ModelSpec& spec) {
  nlohmann::ordered_json rope;
  if (spec.rope_scaling == RotaryScaling::kNone) return nullptr;
  rope["rope_type"] = RotaryScalingName(spec.rope_scaling);
  rope["factor"] = Decimal(spec.rope_factor);
  if (spec.rope_scaling == RotaryScaling::kLlama3) {
    rope["low_freq_factor"] = Decimal(spec.rope_low);
    rope["high_freq_factor"] = Decimal(spec.rope_high);
  } else if (spec.rope_scaling == RotaryScaling::kYarn) {
    rope["beta_slow"] = Decimal(spec.rope_low);
    rope["beta_fast"] = Decimal(spec.rope_high);
    rope["attention_factor"] = Decimal(spec.rope_attention_factor);
  }
  if (spec.rope_positions > 0) rope["original_max_position_embeddings"] = spec.rope_positions;
  return rope;
}

constexpr double kMaxFloat = std::numeric_limits<float>::max();

// The object that holds the scaling, or an absent one.
JsonSection ScalingSection(JsonSection* config) {
  const JsonNode* old_style = config->Value("rope_scaling");
  const JsonNode* new_style = config->Value("rope_parameters");
  if (old_style != nullptr && new_style != nullptr) {
    config->Fail("rope_scaling", "rope_parameters is there too; keep one of them");
  }
  return new_style != nullptr ? JsonSection(new_style, "rope_parameters", config->source())
                              : JsonSection(old_style, "rope_scaling", config->source());
}

RotaryScaling ReadKind(JsonSection* rope) {
  const std::optional<std::string> old_name = rope->String("type");
  const std::optional<std::string> name = rope->String("rope_type");
  if (!name && !old_name) return RotaryScaling::kNone;
  const std::optional<RotaryScaling> found = RotaryScalingNamed(name ? *name : *old_name);
  if (!found) {
    rope->FailValue(name ? "rope_type" : "type", "\"default\", \"linear\", \"llama3\" or \"yarn\"");
  }
  return *found;
}

// A number above 0. Missing: `fallback`, or an error where that is 0.
float Factor(JsonSection* rope, const char* key, double fallback = 0) {
  const std::optional<double> value = rope->Number(key, 1e-30, kMaxFloat, "a number above 0");
  if (!value && fallback == 0) rope->Fail(key, "is missing; set it as the model was trained with");
  return static_cast<float>(value.value_or(fallback));
}

// As in transformers 5 that of the config itself goes before that beside the scaling, and without
// both it is the model's positions.
int64_t OriginalPositions(JsonSection* config, JsonSection* rope, int64_t positions) {
  constexpr const char* kKey = "original_max_position_embeddings";
  const std::optional<int64_t> outer = config->Int(kKey, 1, kMax);
  const std::optional<int64_t> inner = rope->Int(kKey, 1, kMax);
  return (outer ? outer : inner).value_or(positions);
}

void ReadYarn(JsonSection* config, JsonSection* rope, ModelSpec* spec) {
  spec->rope_factor = Factor(rope, "factor");
  spec->rope_low = Factor(rope, "beta_slow", 1);
  spec->rope_high = Factor(rope, "beta_fast", 32);
  spec->rope_positions = OriginalPositions(config, rope, spec->positions);
  // Peng et al. 2023 (YaRN), section 3.4.
  const double usual = spec->rope_factor > 1 ? 0.1 * std::log(spec->rope_factor) + 1 : 1;
  spec->rope_attention_factor = Factor(rope, "attention_factor", usual);
  if (!rope->Bool("truncate").value_or(true)) {
    rope->Fail("truncate", "false is not supported; use true");
  }
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    if (rope->Value(key) != nullptr) {
      rope->Fail(key, "is not supported; set attention_factor in place of it");
    }
  }
}

}  // namespace

std::string_view LlamaConfigKey(std::string_view field) {
  for (const ConfigKey& key : kKeys) {
    if (key.field == field) return key.key;
  }
  return "";
}

ModelSpec ReadLlamaConfig(const LlamaKind& kind, JsonSection* config,
                          std::vector<std::string>* notes) {
  CheckArchitecture(kind, config);
  const auto whole = [&](std::string_view field, int64_t fallback) {
    return config->Int(LlamaConfigKey(field), 1, kMax).value_or(fallback);
  };
  ModelSpec spec;
  spec.layers = whole("layers", kind.layers);
  spec.hidden = whole("hidden", kind.hidden);
  spec.ffn = whole("ffn", kind.ffn);
  spec.vocab = whole("vocab", kind.vocab);
  spec.positions = whole("positions", kind.positions);
  ReadHeads(kind, config, &spec);
  ReadWindow(kind, config, &spec);
  ReadRope(config, &spec, kind.theta);
  constexpr const char* kEps = "a number above 0 and below 1, such as 1e-5";
  spec.layer_norm_eps =
      static_cast<float>(config->Number("rms_norm_eps", 1e-30, 0.999, kEps).value_or(kind.eps));
  spec.init_std = static_cast<float>(config->Number("initializer_range", 0, 99).value_or(0.02));
  spec.tied_head = config->Bool("tie_word_embeddings").value_or(false);
  if (kind.attention_bias) {
    spec.qkv_bias = spec.out_bias = config->Bool("attention_bias").value_or(false);
  }
  if (kind.qkv_bias) spec.qkv_bias = true;
  if (kind.mlp_bias) spec.mlp_bias = config->Bool("mlp_bias").value_or(false);
  spec.qk_norm = kind.qk_norm;
  spec.qk_norm_whole = kind.qk_norm_whole;
  if (kind.mixture != nullptr) ReadMixture(kind, config, &spec, notes);
  NoteDropout(config, notes);
  return spec;
}

std::string WriteLlamaConfig(const LlamaKind& kind, const ModelSpec& spec) {
  nlohmann::ordered_json out;
  out["architectures"] = {kind.architecture};
  out["model_type"] = kind.name;
  out["hidden_act"] = "silu";
  out["num_hidden_layers"] = spec.layers;
  out["hidden_size"] = spec.hidden;
  out["num_attention_heads"] = spec.heads;
  out["num_key_value_heads"] = spec.KvHeads();
  out["head_dim"] = spec.HeadSize();
  out["intermediate_size"] = spec.ffn;
  out["vocab_size"] = spec.vocab;
  out["max_position_embeddings"] = spec.positions;
  out["rms_norm_eps"] = Decimal(spec.layer_norm_eps);
  out["initializer_range"] = Decimal(spec.init_std);
  out["tie_word_embeddings"] = spec.tied_head;
  if (kind.attention_bias) out["attention_bias"] = spec.out_bias;
  if (kind.mlp_bias) out["mlp_bias"] = spec.mlp_bias;
  out["attention_dropout"] = 0.0;
  // As transformers 4 has it; 5 reads it too.
  out["rope_theta"] = Decimal(spec.rope_theta);
  out["rope_scaling"] = RopeScalingJson(spec);
  if (kind.window_switch) {
    out["use_sliding_window"] = spec.window > 0;
    out["max_window_layers"] = spec.window > 0 ? 0 : spec.layers;
  }
  if (kind.sliding_window != 0) {
    out["sliding_window"] =
        spec.window > 0 ? nlohmann::ordered_json(spec.window) : nlohmann::ordered_json(nullptr);
  }
  if (kind.mixture != nullptr) WriteMixture(*kind.mixture, spec, &out);
  // Those of the tokenizer, which zeroplan does not know of.
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) out[key] = nullptr;
  return out.dump(2) + "\n";
}

void ReadRope(JsonSection* config, ModelSpec* spec, double theta) {
  JsonSection rope = ScalingSection(config);
  constexpr const char* kThetas = "a number from 1.001 to 3.4e38, the largest of fp32";
  const std::optional<double> inner = rope.Number("rope_theta", 1.001, kMaxFloat, kThetas);
  const std::optional<double> outer = config->Number("rope_theta", 1.001, kMaxFloat, kThetas);
  spec->rope_theta = static_cast<float>(inner.value_or(outer.value_or(theta)));
  if (rope.Number("partial_rotary_factor", 0, 1).value_or(1) != 1) {
    rope.FailValue("partial_rotary_factor", "1 (positions turn whole heads)");
  }
  spec->rope_scaling = ReadKind(&rope);
  switch (spec->rope_scaling) {
    case RotaryScaling::kNone:
      rope.Raw("factor");  // means nothing without a scaling
      rope.Raw("attention_factor");
      rope.Raw("original_max_position_embeddings");
      break;
    case RotaryScaling::kLinear:
      spec->rope_factor = Factor(&rope, "factor");
      break;
    case RotaryScaling::kLlama3:
      spec->rope_factor = Factor(&rope, "factor");
      spec->rope_low = Factor(&rope, "low_freq_factor");
      spec->rope_high = Factor(&rope, "high_freq_factor");
      spec->rope_positions = OriginalPositions(config, &rope, spec->positions);
      if (spec->rope_low >= spec->rope_high) {
        rope.FailValue("low_freq_factor", "less than high_freq_factor");
      }
      break;
    case RotaryScaling::kYarn:
      ReadYarn(config, &rope, spec);
      break;
  }
  const std::vector<std::string> unknown = rope.Unknown();
  if (!unknown.empty()) {
    rope.Fail(unknown.front(), "is not supported with rope_type \"{}\"; remove it",
              RotaryScalingName(spec->rope_scaling));
  }
}

}  // namespace zeroplan
