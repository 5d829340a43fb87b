#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "core/families/load_model.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

// A folder with a config.json, gone at the end of a test.
class ConfigFolder {
 public:
  std::filesystem::path Write(const std::string& text) const {
    const auto file = path() / "config.json";
    std::ofstream(file) << text;
    return file;
  }
  std::filesystem::path path() const { return root_.path(); }

 private:
  TempDir root_;
};

TEST_CASE("hf config: round trip of every preset and of odd shapes") {
  const ConfigFolder folder;
  std::vector<ModelSpec> specs;
  for (const ModelPreset& preset : ModelPresets()) specs.push_back(preset.spec);
  ModelSpec odd = specs[0];
  odd.ffn = 1000, odd.vocab = 65, odd.padded_vocab = 65, odd.positions = 33;
  odd.layer_norm_eps = 3e-6f, odd.init_std = 0.0123f;
  specs.push_back(odd);
  for (const ModelSpec& spec : specs) {
    CAPTURE(spec.name);
    std::vector<std::string> notes;
    const auto file = folder.Write(WriteHuggingFaceConfig(spec));
    const ModelSpec back = ReadHuggingFaceConfig(file, &notes);
    CHECK(notes.empty());
    CHECK(back.layers == spec.layers);
    CHECK(back.hidden == spec.hidden);
    CHECK(back.heads == spec.heads);
    CHECK(back.ffn == spec.ffn);
    CHECK(back.vocab == spec.vocab);
    CHECK(back.padded_vocab == spec.padded_vocab);
    CHECK(back.positions == spec.positions);
    CHECK(back.layer_norm_eps == spec.layer_norm_eps);
    CHECK(back.init_std == spec.init_std);
    CHECK(back.name == folder.path().filename());
    CHECK(LoadModel(folder.path().string()).ParamCount() == spec.ParamCount());
    CHECK(LoadModel(file.string()).ParamCount() == spec.ParamCount());
  }
}

TEST_CASE("hf config: the published gpt2 config loads, with one note on dropout") {
  const ConfigFolder folder;
  std::vector<std::string> notes;
  const ModelSpec spec = ReadHuggingFaceConfig(folder.Write(R"({
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
    "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
    "task_specific_params": {"text-generation": {"do_sample": true}}, "vocab_size": 50257})"),
                                               &notes);
  CHECK(spec.ParamCount() == 124'475'904);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].find("dropout is not trained with") != std::string::npos);
  // GPT2Config's defaults, and no list for the notes.
  CHECK(ReadHuggingFaceConfig(folder.Write(R"({"model_type": "gpt2"})"), nullptr).ParamCount() ==
        124'475'904);
  const ModelSpec apart = ReadHuggingFaceConfig(
      folder.Write(R"({"model_type": "gpt2", "tie_word_embeddings": false})"), nullptr);
  CHECK(apart.ParamCount() == 124'475'904 + 50'304 * 768);
  CHECK_FALSE(
      ReadHuggingFaceConfig(folder.Write(WriteHuggingFaceConfig(apart)), nullptr).tied_head);
}

TEST_CASE("hf config: what zeroplan does not train is refused by key") {
  const ConfigFolder folder;
  struct Case {
    const char* member;
    const char* message;
  };
  const Case cases[] = {
      {"\"activation_function\": \"relu\"", "activation_function: \"relu\" is not allowed"},
      {"\"scale_attn_by_inverse_layer_idx\": true", "scale_attn_by_inverse_layer_idx: true"},
      {"\"scale_attn_weights\": false", "scale_attn_weights: false"},
      {"\"reorder_and_upcast_attn\": true", "reorder_and_upcast_attn: true"},
      {"\"add_cross_attention\": true", "add_cross_attention: true"},
      {"\"quantization_config\": {\"bits\": 4}", "quantization_config"},
      {"\"n_layer\": 0", "n_layer: 0 is not allowed"},
      {"\"n_layer\": 1e30", "n_layer: 1e+30 is not allowed"},
      {"\"n_layer\": 99999999", "n_layer"},
      {"\"n_embd\": 1.5", "n_embd: 1.5 is not allowed"},
      {"\"n_head\": 7", "n_head: 7 does not divide n_embd 768"},
      {"\"n_head\": \"x\"", "n_head: \"x\" is not allowed"},
      {"\"n_embd\": 768, \"hidden_size\": 64", "n_embd: 768 differs from hidden_size 64"},
      {"\"vocab_size\": -1", "vocab_size: -1 is not allowed"},
      {"\"layer_norm_epsilon\": 0", "layer_norm_epsilon: 0 is not allowed"},
      {"\"embd_pdrop\": 2", "embd_pdrop: 2 is not allowed"},
      {"\"n_inner\": []", "n_inner: [...] is not allowed"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.member);
    const auto file = folder.Write(std::string("{\"model_type\": \"gpt2\",\n") + c.member + "}");
    CHECK_THROWS_WITH_AS(ReadHuggingFaceConfig(file, nullptr), doctest::Contains(c.message), Error);
  }
  for (const char* text :
       {"{}", "[]", "{\"model_type\": \"opt\"}", "", "7", "{\"model_type\": 3}"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(ReadHuggingFaceConfig(folder.Write(text), nullptr), Error);
  }
  CHECK_THROWS_AS(ReadHuggingFaceConfig(folder.path(), nullptr), Error);
}

}  // namespace
}  // namespace zeroplan
