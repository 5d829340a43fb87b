// Families of mixtures of experts: config.json there and back, tensors, units, counts.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "core/families/load_model.h"
#include "core/families/mixtral/mixtral.h"
#include "core/families/olmoe/olmoe.h"
#include "core/families/qwen2_moe/qwen2_moe.h"
#include "core/families/qwen3_moe/qwen3_moe.h"
#include "core/program/layout.h"
#include "tests/core/families/tiny_mixture.h"
#include "tests/error_of.h"
#include "tests/has.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

ModelSpec ReadConfig(const Json& config) {
  return ReadHuggingFaceConfig(ParseJsonText(config.dump(), "config.json"),
                               {"config.json", {}, "model"}, nullptr);
}

Json ConfigOf(const char* preset) { return Json::parse(WriteHuggingFaceConfig(LoadModel(preset))); }

std::string RefusalOf(const char* preset, const Json& changes) {
  Json config = ConfigOf(preset);
  config.update(changes);
  return ErrorOf(ExitCode::kUsage, [&] { ReadConfig(config); });
}

TEST_CASE("mixtures: published models have as many parameters as their pages say") {
  struct Case {
    const char* name;
    uint64_t all, active;
  };
  // Active: with the head and the embedding.
  for (const Case& c : {Case{"Qwen/Qwen3-30B-A3B", 30532122624, 3353032704},
                        Case{"Qwen/Qwen3-235B-A22B", 235093634560, 22190763520},
                        Case{"mistralai/Mixtral-8x7B-v0.1", 46702792704, 12879925248},
                        Case{"mistralai/Mixtral-8x22B-v0.1", 140620634112, 39152031744},
                        Case{"Qwen/Qwen1.5-MoE-A2.7B", 14315784192, 2689173504},
                        Case{"allenai/OLMoE-1B-7B-0924", 6919161856, 1282017280}}) {
    CAPTURE(c.name);
    const ModelSpec model = FindModel(c.name).spec;
    CHECK(model.UnpaddedParamCount() == c.all);
    CHECK(model.ActiveParamCount() == c.active);
  }
}

TEST_CASE("mixtures: config.json there and back") {
  for (const char* name : {"qwen3-30b-a3b", "olmoe-1b-7b", "mixtral-8x7b", "qwen1.5-moe-a2.7b"}) {
    CAPTURE(name);
    const ModelSpec model = LoadModel(name);
    const ModelSpec back = ReadConfig(ConfigOf(name));
    CHECK(WriteHuggingFaceConfig(back) == WriteHuggingFaceConfig(model));
    CHECK(back.experts == model.experts);
    CHECK(back.expert_ffn == model.expert_ffn);
    CHECK(back.shared_ffn == model.shared_ffn);
    CHECK(back.normalized_gates == model.normalized_gates);
    CHECK(back.router_aux_loss == model.router_aux_loss);
  }
  Json config = ConfigOf("qwen3-30b-a3b");
  config["num_hidden_layers"] = 6;
  config["decoder_sparse_step"] = 2;
  config["mlp_only_layers"] = {3, 1};
  const ModelSpec mixed = ReadConfig(config);
  CHECK(mixed.dense_layers == "0-4");
  CHECK(ExpertLayers(mixed) == 1);
  CHECK(mixed.HasExperts(5));
  const Json written = Json::parse(WriteHuggingFaceConfig(mixed));
  CHECK(written["decoder_sparse_step"] == 1);
  CHECK(written["mlp_only_layers"] == Json({0, 1, 2, 3, 4}));
  // transformers 5 writes this key.
  config = ConfigOf("olmoe-1b-7b");
  config["num_local_experts"] = config["num_experts"];
  config.erase("num_experts");
  CHECK(ReadConfig(config).experts == 64);
  // Mixtral has no window unless its config names one.
  config = ConfigOf("mixtral-8x7b");
  CHECK(config["sliding_window"].is_null());
  config.erase("sliding_window");
  CHECK(ReadConfig(config).window == 0);
  config["sliding_window"] = 4096;
  CHECK(ReadConfig(config).window == 4096);
  CHECK(Json::parse(WriteHuggingFaceConfig(ReadConfig(config)))["sliding_window"] == 4096);
}

TEST_CASE("mixtures: what a config may not say") {
  CHECK(Has(RefusalOf("olmoe-1b-7b", {{"num_local_experts", 32}}), "32 is not num_experts 64"));
  CHECK(Has(RefusalOf("mixtral-8x7b", {{"num_experts_per_tok", 9}}), "at most the 8 experts"));
  CHECK(Has(RefusalOf("qwen3-30b-a3b", {{"num_experts_per_tok", 65}}), "num_experts_per_tok"));
  CHECK(Has(RefusalOf("qwen1.5-moe-a2.7b", {{"qkv_bias", false}}), "qkv_bias"));
  CHECK(Has(RefusalOf("olmoe-1b-7b", {{"clip_qkv", 8}}), "clip_qkv"));
  CHECK(
      Has(RefusalOf("qwen3-30b-a3b", {{"mlp_only_layers", {48}}}), "48 is no layer; use 0 to 47"));
  CHECK(Has(RefusalOf("qwen3-30b-a3b", {{"mlp_only_layers", {1.5}}}), "mlp_only_layers"));
  CHECK(Has(RefusalOf("qwen3-30b-a3b", {{"decoder_sparse_step", 100}}),
            "100 is not allowed; use a whole number from 1 to 48"));
  CHECK(Has(RefusalOf("mixtral-8x7b", {{"num_local_experts", 0}}), "num_local_experts"));
}

TEST_CASE("mixtures: tensors have published names, and a layer's experts are a unit of their own") {
  for (const ModelFamily* family : {&Qwen3Moe(), &Olmoe(), &Mixtral(), &Qwen2Moe()}) {
    CAPTURE(family->name());
    const ModelSpec model = testing::TinyMixture(*family);
    const auto table = std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model));
    std::string names;
    for (const ParamTensor& tensor : *table) {
      for (const PublishedTensor& one : PublishedTensors(tensor)) names += one.name + "\n";
    }
    const bool mixtral = family == &Mixtral();
    CHECK(Has(names, mixtral ? "model.layers.1.block_sparse_moe.experts.4.w3.weight\n"
                             : "model.layers.1.mlp.experts.4.up_proj.weight\n"));
    CHECK(Has(names, mixtral ? "model.layers.0.block_sparse_moe.gate.weight\n"
                             : "model.layers.0.mlp.gate.weight\n"));
    ZeroConfig zero;
    zero.stage = 3;
    zero.param_persistence_threshold = 1 << 20;  // all dense tensors are small
    const ParamLayout layout = BuildParamLayout(table, zero, 2);
    int units = 0;
    for (const Unit& unit : layout.units) {
      bool expert = false;
      for (const TensorSlot& slot : unit.slots) {
        expert = (*table)[static_cast<size_t>(slot.tensor)].expert;
      }
      if (!expert) continue;
      ++units;
      CHECK(unit.slots.size() == 2);
      CHECK_FALSE(unit.persistent);
      CHECK(unit.param_elements == 5u * 3 * 20 * 24);
    }
    CHECK(units == 2);
  }
}

TEST_CASE("mixtures: a token's share of the experts counts in FLOPs") {
  ModelSpec model = testing::TinyMixture(Mixtral());
  // Query, key, value and output; router; two of five experts.
  const double layer = 24.0 * (24 + 2 * 8) + 24 * 24 + 5 * 24 + 2 * 3 * 20 * 24;
  CHECK(MatmulWeights(model) == doctest::Approx(2 * layer + 37 * 24));
  model.experts_per_token = 5;
  CHECK(MatmulWeights(model) == doctest::Approx(2 * (layer + 3 * 3 * 20 * 24) + 37 * 24));
}

TEST_CASE("mixtures: adapters are refused") {
  ModelSpec model = testing::TinyMixture(Olmoe());
  model.lora_rank = 8;
  model.lora_alpha = 16;
  model.lora_targets = "q_proj";
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { ValidateModelSpec(model, "here"); }),
            "is a mixture of experts"));
}

}  // namespace
}  // namespace zeroplan
