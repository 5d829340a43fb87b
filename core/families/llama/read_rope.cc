// The rotary positions of a config.json. Transformers 4 has rope_theta and, for scaled positions,
// an object rope_scaling; 5 has both in an object rope_parameters. The kind of scaling is
// rope_type, once called type.
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/families/llama/llama.h"

namespace zeroplan {
namespace {

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

int64_t OriginalPositions(JsonSection* rope, int64_t fallback) {
  constexpr const char* kKey = "original_max_position_embeddings";
  const std::optional<int64_t> value = rope->Int(kKey, 1, std::numeric_limits<int32_t>::max());
  if (!value && fallback == 0) rope->Fail(kKey, "is missing; set it as the model was trained with");
  return value.value_or(fallback);
}

void ReadYarn(JsonSection* rope, ModelSpec* spec) {
  spec->rope_factor = Factor(rope, "factor");
  spec->rope_low = Factor(rope, "beta_slow", 1);
  spec->rope_high = Factor(rope, "beta_fast", 32);
  spec->rope_positions = OriginalPositions(rope, spec->positions);
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

void ReadRope(JsonSection* config, ModelSpec* spec) {
  JsonSection rope = ScalingSection(config);
  const std::optional<double> inner = rope.Number("rope_theta", 1.001, kMaxFloat);
  const std::optional<double> outer = config->Number("rope_theta", 1.001, kMaxFloat);
  spec->rope_theta = static_cast<float>(inner.value_or(outer.value_or(10000)));
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
      spec->rope_positions = OriginalPositions(&rope, 0);
      if (spec->rope_low >= spec->rope_high) {
        rope.FailValue("low_freq_factor", "less than high_freq_factor");
      }
      break;
    case RotaryScaling::kYarn:
      ReadYarn(&rope, spec);
      break;
  }
  const std::vector<std::string> unknown = rope.Unknown();
  if (!unknown.empty()) {
    rope.Fail(unknown.front(), "is not supported with rope_type \"{}\"; remove it",
              RotaryScalingName(spec->rope_scaling));
  }
}

}  // namespace zeroplan
