// The one list of a model's fields. All code that reads, writes, compares or hashes a ModelSpec
// walks it.
#pragma once

#include <concepts>
#include <limits>
#include <string_view>
#include <type_traits>

#include "core/model/model_family.h"
#include "core/model/model_spec.h"

namespace zeroplan {

struct ModelField {
  std::string_view key;    // key in plans and checkpoints; a family's config.json has its own keys
  std::string_view words;  // name in messages
  bool shape;              // weights of a model that differs in this field cannot be used
  double max;              // the largest allowed value
  // Files and fingerprints leave the field out if it equals ModelSpec's default.
  bool optional = false;
};

// Calls visit(field, pointer to member) for each. Members are std::string, const ModelFamily*,
// int64_t (from 1 on, optional ones from 0 on), float (from 0 on), bool or RotaryScaling.
template <typename Visit>
void ForEachModelField(Visit&& visit) {
  // Rows and columns reach kernels as 32-bit numbers. A program with the most layers, twenty times
  // those of the deepest published models, is lowered in a second.
  constexpr double kMaxDimension = std::numeric_limits<int32_t>::max(), kMaxLayers = 2048;
  using Field = ModelField;
  visit(Field{"name", "name", false, 0}, &ModelSpec::name);
  visit(Field{"family", "family", true, 0}, &ModelSpec::family);
  visit(Field{"layers", "layers", true, kMaxLayers}, &ModelSpec::layers);
  visit(Field{"hidden", "hidden", true, kMaxDimension}, &ModelSpec::hidden);
  visit(Field{"heads", "heads", true, kMaxDimension}, &ModelSpec::heads);
  visit(Field{"ffn", "ffn", true, kMaxDimension}, &ModelSpec::ffn);
  visit(Field{"vocab", "vocabulary", true, kMaxDimension}, &ModelSpec::vocab);
  visit(Field{"padded_vocab", "padded vocabulary", true, kMaxDimension}, &ModelSpec::padded_vocab);
  visit(Field{"positions", "positions", true, kMaxDimension}, &ModelSpec::positions);
  visit(Field{"layer_norm_eps", "layer norm epsilon", true, 1}, &ModelSpec::layer_norm_eps);
  visit(Field{"init_std", "initialisation", false, 100}, &ModelSpec::init_std);
  constexpr bool kOptional = true;
  constexpr double kMaxFloat = std::numeric_limits<float>::max();
  visit(Field{"kv_heads", "key and value heads", true, kMaxDimension, kOptional},
        &ModelSpec::kv_heads);
  visit(Field{"head_size", "head size", true, kMaxDimension, kOptional}, &ModelSpec::head_size);
  visit(Field{"window", "sliding window", false, kMaxDimension, kOptional}, &ModelSpec::window);
  visit(Field{"tied_head", "tied head", true, 1, kOptional}, &ModelSpec::tied_head);
  visit(Field{"qkv_bias", "query, key and value biases", true, 1, kOptional}, &ModelSpec::qkv_bias);
  visit(Field{"out_bias", "attention output bias", true, 1, kOptional}, &ModelSpec::out_bias);
  visit(Field{"mlp_bias", "MLP biases", true, 1, kOptional}, &ModelSpec::mlp_bias);
  visit(Field{"qk_norm", "query and key norms", true, 1, kOptional}, &ModelSpec::qk_norm);
  visit(Field{"qk_norm_whole", "norms over all query heads", true, 1, kOptional},
        &ModelSpec::qk_norm_whole);
  visit(Field{"num_experts", "experts of a layer", true, 4096, kOptional}, &ModelSpec::experts);
  visit(Field{"experts_per_token", "experts of a token", true, 64, kOptional},
        &ModelSpec::experts_per_token);
  visit(Field{"expert_ffn", "width of an expert", true, kMaxDimension, kOptional},
        &ModelSpec::expert_ffn);
  visit(Field{"shared_ffn", "width of the shared expert", true, kMaxDimension, kOptional},
        &ModelSpec::shared_ffn);
  visit(Field{"normalized_gates", "normalized weights of experts", true, 1, kOptional},
        &ModelSpec::normalized_gates);
  visit(Field{"dense_layers", "layers without experts", true, 0, kOptional},
        &ModelSpec::dense_layers);
  visit(Field{"router_aux_loss", "auxiliary loss of routing", false, 1e6, kOptional},
        &ModelSpec::router_aux_loss);
  visit(Field{"router_z_loss", "z-loss of routing", false, 1e6, kOptional},
        &ModelSpec::router_z_loss);
  visit(Field{"rope_scaling", "rotary scaling", true, 0, kOptional}, &ModelSpec::rope_scaling);
  visit(Field{"rope_positions", "original positions", true, kMaxDimension, kOptional},
        &ModelSpec::rope_positions);
  visit(Field{"rope_theta", "rotary base", true, kMaxFloat, kOptional}, &ModelSpec::rope_theta);
  visit(Field{"rope_factor", "rotary factor", true, kMaxFloat, kOptional}, &ModelSpec::rope_factor);
  visit(Field{"rope_low", "rotary low factor", true, kMaxFloat, kOptional}, &ModelSpec::rope_low);
  visit(Field{"rope_high", "rotary high factor", true, kMaxFloat, kOptional},
        &ModelSpec::rope_high);
  visit(Field{"rope_attention_factor", "rotary attention factor", true, kMaxFloat, kOptional},
        &ModelSpec::rope_attention_factor);
  visit(Field{"frozen", "frozen tensors", true, 0, kOptional}, &ModelSpec::frozen);
  visit(Field{"lora_rank", "adapter rank", true, 65536, kOptional}, &ModelSpec::lora_rank);
  visit(Field{"lora_alpha", "adapter alpha", true, 1e6, kOptional}, &ModelSpec::lora_alpha);
  visit(Field{"lora_dropout", "adapter dropout", true, 1, kOptional}, &ModelSpec::lora_dropout);
  visit(Field{"lora_rslora", "rank-stabilized scale", true, 1, kOptional}, &ModelSpec::lora_rslora);
  visit(Field{"lora_quantized", "base in NF4", true, 1, kOptional}, &ModelSpec::lora_quantized);
  visit(Field{"lora_targets", "adapted linears", true, 0, kOptional}, &ModelSpec::lora_targets);
  visit(Field{"lora_saved", "modules trained whole", true, 0, kOptional}, &ModelSpec::lora_saved);
  visit(Field{"lora_tokens", "trained tokens", true, 0, kOptional}, &ModelSpec::lora_tokens);
  visit(Field{"lora_head_tokens", "trained tokens of the head", true, 0, kOptional},
        &ModelSpec::lora_head_tokens);
}

// Calls visit(field, value) with the values of a ModelSpec or const ModelSpec.
template <typename Spec, typename Visit>
  requires std::same_as<std::remove_const_t<Spec>, ModelSpec>
void ForEachField(Spec& spec, Visit&& visit) {
  ForEachModelField([&](const ModelField& field, auto member) { visit(field, spec.*member); });
}
// The same without optional fields at their default: the contents of files and fingerprints.
template <typename Visit>
void ForEachWrittenField(const ModelSpec& spec, Visit&& visit) {
  const ModelSpec usual;
  ForEachModelField([&](const ModelField& field, auto member) {
    if (!field.optional || spec.*member != usual.*member) visit(field, spec.*member);
  });
}
// Whether the field is positions and positions are computed: a model has as many as its sequences
// need.
inline bool IsComputed(const ModelField& field, const ModelSpec& spec) {
  return field.key == "positions" && !spec.family->learned_positions();
}
// Calls visit(field, value of a, value of b).
template <typename Visit>
void ForEachField(const ModelSpec& a, const ModelSpec& b, Visit&& visit) {
  ForEachModelField(
      [&](const ModelField& field, auto member) { visit(field, a.*member, b.*member); });
}

// A value in the form for messages.
template <typename T>
const T& FieldText(const T& value) {
  return value;
}
inline std::string_view FieldText(const std::string& value) {
  return value.empty() ? std::string_view("none") : value;
}
inline std::string_view FieldText(const ModelFamily* family) { return family->name(); }
inline std::string_view FieldText(RotaryScaling scaling) { return RotaryScalingName(scaling); }

}  // namespace zeroplan
