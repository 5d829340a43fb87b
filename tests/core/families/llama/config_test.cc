// config.json of llama's kind: as published, in both styles of transformers, there and back, and
// what is refused.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/families/load_model.h"
#include "core/model/model_fields.h"
#include "tests/core/families/llama/tiny_llama.h"
#include "tests/error_of.h"
#include "tests/paths.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

using nlohmann::json;

ModelSpec ReadText(const std::string& text, std::vector<std::string>* notes = nullptr) {
  const TempDir folder;
  const std::filesystem::path file = std::filesystem::path(folder.path()) / "config.json";
  std::ofstream(file) << text;
  return ReadHuggingFaceConfig(file, notes);
}
ModelSpec Read(const json& config) { return ReadText(config.dump()); }

std::string Refused(const json& config) {
  return ErrorOf(ExitCode::kUsage, [&] { Read(config); });
}

void CheckSame(const ModelSpec& found, const ModelSpec& wanted) {
  ForEachField(found, wanted, [](const ModelField& field, const auto& a, const auto& b) {
    if (field.key == "name") return;
    CAPTURE(field.key);
    CHECK(a == b);
  });
}

json Tiny(const char* family) {
  return {
      {"model_type", family},     {"num_hidden_layers", 2},        {"hidden_size", 24},
      {"num_attention_heads", 6}, {"num_key_value_heads", 2},      {"intermediate_size", 40},
      {"vocab_size", 37},         {"max_position_embeddings", 64}, {"head_dim", 4},
      {"rms_norm_eps", 1e-5},     {"initializer_range", 0.05},     {"tie_word_embeddings", false},
      {"hidden_act", "silu"},     {"rope_theta", 10000.0}};
}

TEST_CASE("llama config: files as published give the presets") {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(SourcePath("tests/fixtures/published_configs"))) {
    CAPTURE(entry.path().string());
    ++files;
    std::vector<std::string> notes;
    CheckSame(ReadHuggingFaceConfig(entry.path(), &notes), LoadModel(entry.path().stem().string()));
    CHECK(notes.empty());
  }
  CHECK(files == 10);
}

TEST_CASE("llama config: presets go out and come back") {
  for (const ModelPreset& preset : ModelPresets()) {
    CAPTURE(preset.spec.name);
    CheckSame(ReadText(WriteHuggingFaceConfig(preset.spec)), preset.spec);
  }
}

TEST_CASE("llama config: both styles of transformers, and every scaling") {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 16}};
  const json linear = {{"type", "linear"}, {"factor", 2.0}};  // as old files have it
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  for (const json& scaling : {json(nullptr), llama3, linear, yarn}) {
    CAPTURE(scaling.dump());
    json old_style = Tiny("llama"), new_style = Tiny("llama");
    old_style["rope_theta"] = 500000.0;
    old_style["rope_scaling"] = scaling;
    old_style["torch_dtype"] = "bfloat16";
    new_style.erase("rope_theta");
    json rope = scaling.is_null() ? json{{"rope_type", "default"}} : scaling;
    rope["rope_theta"] = 500000.0;
    new_style["rope_parameters"] = rope;
    new_style["dtype"] = "bfloat16";
    const ModelSpec spec = Read(old_style);
    CHECK(spec.rope_theta == 500000);
    CheckSame(Read(new_style), spec);
    CheckSame(ReadText(WriteHuggingFaceConfig(spec)), spec);
    if (scaling == llama3) {
      CHECK(spec.rope_scaling == RotaryScaling::kLlama3);
      CHECK(spec.rope_factor == 8);
      CHECK(spec.rope_high == 4);
      CHECK(spec.rope_positions == 16);
    }
    if (scaling == linear) CHECK(spec.rope_factor == 2);
    if (scaling == yarn) {
      CHECK(spec.rope_low == 1);
      CHECK(spec.rope_high == 32);
      CHECK(spec.rope_positions == 64);
      CHECK(spec.rope_attention_factor == static_cast<float>(0.1 * std::log(4.0) + 1));
    }
  }
}

TEST_CASE("llama config: what families have of their own") {
  json llama = Tiny("llama");
  llama["attention_bias"] = llama["mlp_bias"] = true;
  CHECK(Read(llama).qkv_bias);
  CHECK(Read(llama).out_bias);
  CHECK(Read(llama).mlp_bias);
  CheckSame(ReadText(WriteHuggingFaceConfig(Read(llama))), Read(llama));
  CHECK(Read(Tiny("qwen2")).qkv_bias);
  CHECK_FALSE(Read(Tiny("qwen2")).out_bias);
  CHECK(Read(Tiny("qwen3")).qk_norm);
  // As many heads of keys as of queries where the file has null.
  llama["num_key_value_heads"] = nullptr;
  CHECK(Read(llama).KvHeads() == 6);
  llama["head_dim"] = 8;
  CHECK(Read(llama).QkvColumns() == 18 * 8);

  json mistral = Tiny("mistral");
  mistral["sliding_window"] = 32;
  CHECK(Read(mistral).LongestSequence() == 32);
  CheckSame(ReadText(WriteHuggingFaceConfig(Read(mistral))), Read(mistral));
  mistral["sliding_window"] = nullptr;
  CHECK(Read(mistral).LongestSequence() == 64);
  json qwen = Tiny("qwen2");
  qwen["sliding_window"] = 32;
  CHECK(Read(qwen).window == 0);  // use_sliding_window is off
  qwen["use_sliding_window"] = true;
  qwen["max_window_layers"] = 0;
  CHECK(Read(qwen).window == 32);
  CheckSame(ReadText(WriteHuggingFaceConfig(Read(qwen))), Read(qwen));
  qwen["max_window_layers"] = 2;  // no layer has it
  CHECK(Read(qwen).window == 0);
  // Where layers have types, these decide.
  qwen["max_window_layers"] = 1;
  qwen["layer_types"] = {"full_attention", "full_attention"};
  CHECK(Read(qwen).window == 0);
  qwen["layer_types"] = {"full_attention", "sliding_attention"};
  CHECK(Read(qwen).window == 32);
  // Not for Mistral, all of whose layers have the window.
  mistral["sliding_window"] = 32;
  mistral["layer_types"] = {"full_attention", "full_attention"};
  CHECK(Read(mistral).window == 32);
}

TEST_CASE("llama config: original positions of the config itself go before the scaling's") {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    for (const char* kind : {"llama3", "yarn"}) {
      json config = Tiny("llama");
      config[key] = {{"rope_type", kind}, {"factor", 4.0}};
      if (std::string(kind) == "llama3") {
        config[key]["low_freq_factor"] = 1.0;
        config[key]["high_freq_factor"] = 4.0;
      }
      config["original_max_position_embeddings"] = 8;
      CHECK(Read(config).rope_positions == 8);
      config[key]["original_max_position_embeddings"] = 16;
      CHECK(Read(config).rope_positions == 8);
      config.erase("original_max_position_embeddings");
      CHECK(Read(config).rope_positions == 16);
      config[key].erase("original_max_position_embeddings");
      CHECK(Read(config).rope_positions == 64);
    }
  }
}

TEST_CASE("llama config: what is not honoured is an error with file, key, value and fix") {
  const auto with = [](const char* family, const char* key, json value) {
    json config = Tiny(family);
    config[key] = std::move(value);
    return Refused(config);
  };
  const auto names = [](const std::string& message, const std::string& key,
                        const std::string& rest) {
    CAPTURE(message);
    CHECK(message.find("config.json:1: " + key + ": ") != std::string::npos);
    CHECK(message.find(rest) != std::string::npos);
  };
  names(with("llama", "hidden_act", "gelu"), "hidden_act", "\"gelu\" is not allowed; use \"silu\"");
  names(with("llama", "partial_rotary_factor", 0.5), "partial_rotary_factor", "0.5 is not allowed");
  names(with("llama", "pretraining_tp", 2), "pretraining_tp", "2 is not allowed; use 1");
  names(with("llama", "rope_interleaved", true), "rope_interleaved", "use false");
  names(with("mistral", "attention_bias", true), "attention_bias", "use false");
  names(with("qwen3", "mlp_bias", true), "mlp_bias", "use false");
  names(with("llama", "head_dim", 5), "head_dim", "5 channels");
  names(with("llama", "rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}),
        "rope_scaling.rope_type", "\"dynamic\" is not allowed; use");
  names(with("llama", "rope_scaling", {{"rope_type", "llama3"}, {"factor", 2.0}}),
        "rope_scaling.low_freq_factor", "is missing");
  names(with("llama", "rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}, {"mscale", 1.0}}),
        "rope_scaling.mscale", "set attention_factor");
  names(with("llama", "rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}, {"beta", 1.0}}),
        "rope_scaling.beta", "remove it");
  names(with("qwen2", "layer_types", {"full_attention", "sliding_attention"}), "layer_types",
        "without a window");
  names(with("qwen2", "layer_types", {"linear_attention"}), "layer_types", "linear_attention");
  json qwen = Tiny("qwen2");
  qwen["use_sliding_window"] = true;
  qwen["max_window_layers"] = 1;
  names(Refused(qwen), "max_window_layers", "1 of 2 layers");
  json both = Tiny("llama");
  both["rope_parameters"] = {{"rope_theta", 10000.0}};
  both["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  names(Refused(both), "rope_scaling", "keep one of them");

  std::vector<std::string> notes;
  json dropout = Tiny("llama");
  dropout["attention_dropout"] = 0.1;
  ReadText(dropout.dump(), &notes);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].find("attention_dropout 0.1") != std::string::npos);
}

}  // namespace
}  // namespace zeroplan
