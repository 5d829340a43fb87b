// Models that are planned for other programs: their tables against transformers' own tensors and
// published counts, with and without headers of weights; what is damaged names file, key and fix.
#include "planner/runtimes/planned/planned_models.h"

#include <doctest/doctest.h>

#include "core/base/error.h"
#include "core/families/load_model.h"
#include "core/model/param_table.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/planned_models.h"
#include "tests/temp_dir.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

constexpr OtherModels kOthers = {.allowed = true, .preferred = true};

// A folder with a config.json and, where there are some, headers of weights.
ModelSpec ModelIn(const std::string& folder, const Json& config, const Json& tensors = {}) {
  WriteJson(folder + "/config.json", config);
  if (!tensors.empty()) WriteSafetensors(folder + "/model.safetensors", tensors);
  return FindModel(folder, kOthers).spec;
}

std::string SaidOfModel(const std::string& folder, const Json& config, const Json& tensors = {}) {
  return ErrorOf(ExitCode::kUsage, [&] { ModelIn(folder, config, tensors); });
}

uint64_t Sum(const Json& tensors) {
  uint64_t sum = 0;
  for (const auto& [name, shape] : tensors.items()) {
    uint64_t elements = 1;
    for (const auto& side : shape) elements *= side.get<uint64_t>();
    sum += elements;
  }
  return sum;
}

// Names, shapes and uses of a table.
std::string TableText(const ModelSpec& spec) {
  std::string text;
  for (const ParamTensor& tensor : BuildParamTable(spec)) {
    text += fmt::format("{} {}x{} {} {} {}\n", tensor.name, tensor.shape[0], tensor.shape[1],
                        tensor.layer, static_cast<int>(tensor.use), tensor.token_share);
  }
  return text;
}

TEST_CASE("tables are those of transformers, from headers and from the config alone") {
  for (const Json& model : PlannedFixtures()["models"]) {
    CAPTURE(model["name"].get<std::string>());
    const TempDir bare, whole;
    const uint64_t parameters = model["parameters"].get<uint64_t>();
    REQUIRE(Sum(model["tensors"]) == parameters);
    const ModelSpec by_config = ModelIn(bare.path(), model["config"]);
    const ModelSpec by_headers = ModelIn(whole.path(), model["config"], model["tensors"]);
    CHECK(by_config.ParamCount() == parameters);
    CHECK(by_headers.ParamCount() == parameters);
    CHECK(by_headers.hidden == 96);
    CHECK(by_headers.vocab == 1000);
    CHECK(by_headers.padded_vocab == 1000);
    // Towers are renamed between versions; all else is called as published.
    if (by_config.family->planned()->vision.present()) continue;
    CHECK(TableText(by_config) == TableText(by_headers));
  }
}

TEST_CASE("models that are known by name have as many parameters as their pages say") {
  for (const PublishedConfig& model : PublishedModels()) {
    for (const char* known : model.names) {
      if (known == nullptr) continue;
      const std::string name = known;
      CAPTURE(name);
      const NamedModel found = FindModel(name, kOthers);
      CHECK(found.spec.ParamCount() == model.parameters);
      CHECK(found.spec.family->planned() != nullptr);
      CHECK(found.hub_name == name);
      const std::string own = ErrorOf(ExitCode::kUsage, [&] { FindModel(name); });
      CHECK(Has(own, "is planned for other programs alone"));
    }
  }
  for (const auto& [name, layers] : {std::pair<const char*, int64_t>{"gemma-3-27b-it", 62},
                                     {"GOOGLE/gemma-2-9b-it", 42},
                                     {"unsloth/phi-4", 40},
                                     {"qwen3-30b-a3b", 48},
                                     {"Qwen/Qwen3-30B-A3B-Instruct-2507", 48}}) {
    CAPTURE(name);
    CHECK(FindModel(name, kOthers).spec.layers == layers);
  }
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { FindModel("someone/gemma-3-27b-it", kOthers); }),
            "has no preset"));
}

TEST_CASE("what a config says of the code") {
  const TempDir dir;
  const auto code = [&](const char* name, const Json& changes = Json::object()) {
    Json config = PlannedFixture(name)["config"];
    config.update(changes);
    return *ModelIn(dir.path(), config).family->planned();
  };
  const PlannedCode gemma2 = code("gemma2");
  CHECK(gemma2.gemma_norms);
  CHECK(gemma2.post_norms);
  CHECK(gemma2.bounded_scores);
  CHECK(gemma2.bounded_logits);
  CHECK(gemma2.window == 64);
  CHECK(gemma2.window_layers == 2);  // of 3, every second slides
  CHECK_FALSE(code("gemma2", {{"attn_logit_softcapping", nullptr}}).bounded_scores);
  CHECK(code("gemma3_text").window_layers == 3);
  CHECK_FALSE(code("gemma3_text").bounded_logits);
  CHECK(code("phi3").one_qkv);
  CHECK(code("phi3").one_gate_up);
  CHECK(code("phi3").window_layers == 0);
  const PlannedCode mixtral = code("mixtral");
  CHECK(mixtral.experts == 4);
  CHECK(mixtral.experts_per_token == 2);
  CHECK(mixtral.normalized_shares);
  CHECK(code("qwen2_moe").shared_ffn == 112);
  const VisionTower siglip = code("gemma3").vision;
  CHECK(siglip.Patches() == 16);
  CHECK(siglip.image_tokens == 4);
  CHECK(code("gemma3").masked);
  CHECK(code("llava").vision.Patches() == 17);  // and one for the image
  CHECK(code("llava").vision.quick_gelu);
  CHECK(code("qwen2_5_vl").vision.full_layers == 1);
}

TEST_CASE("experts: all are parameters, a token is multiplied with some") {
  const TempDir dir;
  const Json& model = PlannedFixture("mixtral");
  const ModelSpec spec = ModelIn(dir.path(), model["config"], model["tensors"]);
  uint64_t experts = 0;
  for (const ParamTensor& tensor : BuildParamTable(spec)) {
    if (tensor.token_share == 1) continue;
    CHECK(tensor.token_share == 0.5);
    experts += tensor.elements();
  }
  CHECK(experts == uint64_t{3} * 4 * 3 * 208 * 96);
  const double all = static_cast<double>(spec.ParamCount() - 1000 * 96);
  const double vectors = 3 * 2 * 96 + 96;
  CHECK(MatmulWeights(spec) == doctest::Approx(all - vectors - static_cast<double>(experts) / 2));
}

TEST_CASE("the same model has the same family") {
  const TempDir a, b;
  const Json& model = PlannedFixture("gemma2");
  const ModelSpec one = ModelIn(a.path(), model["config"]),
                  two = ModelIn(b.path(), model["config"]);
  CHECK(one.family == two.family);
  Json wider = model["config"];
  wider["intermediate_size"] = 224;
  CHECK(ModelIn(a.path(), wider).family != one.family);
}

TEST_CASE("images: as many as are asked for") {
  const TempDir dir;
  WriteJson(dir.path("config.json"), PlannedFixture("gemma3")["config"]);
  const auto vision = [&](int64_t tokens) {
    const OtherModels others = {.allowed = true, .image_tokens = tokens};
    return FindModel(dir.path(), others).spec.family->planned()->vision;
  };
  CHECK(vision(4).images == 1);
  CHECK(vision(9).images == 3);
  WriteJson(dir.path("config.json"), PlannedFixture("qwen2_5_vl")["config"]);
  CHECK(vision(300).Patches() == 1200);
}

TEST_CASE("zeroplan's own commands refuse such a model, and say what takes it") {
  const TempDir dir;
  WriteJson(dir.path("config.json"), PlannedFixture("gemma2")["config"]);
  const std::string said = ErrorOf(ExitCode::kUsage, [&] { FindModel(dir.path()); });
  CHECK(Has(said, wording::kModelTypeGemmaIsNot));
  CHECK(Has(said, wording::kZeroplanPlanAndEstimateTake));
}

TEST_CASE("layers of unknown types are told by their tensors") {
  const TempDir dir;
  const Json& llama = PlannedFixture("llava");
  Json tensors;
  for (const auto& [name, shape] : llama["tensors"].items()) {
    constexpr std::string_view kPrefix = "language_model.";
    if (name.starts_with(kPrefix)) tensors[name.substr(kPrefix.size())] = shape;
  }
  Json config = {{"model_type", "unheard_of"},  {"num_hidden_layers", 3},
                 {"hidden_size", 96},           {"num_attention_heads", 6},
                 {"num_key_value_heads", 2},    {"intermediate_size", 208},
                 {"vocab_size", 1000},          {"max_position_embeddings", 256},
                 {"tie_word_embeddings", false}};
  CHECK(Has(SaidOfModel(dir.path(), config), wording::kGetTheSafetensorsBesideIt));
  const ModelSpec spec = ModelIn(dir.path(), config, tensors);
  CHECK(spec.ParamCount() == Sum(tensors));
  REQUIRE(spec.family->planned()->approximated.size() == 1);
  CHECK(Has(spec.family->planned()->approximated[0], wording::kUnheardOfIsNotKnown));
  // What has no known part is counted, and said.
  tensors["model.layers.0.self_attn.sinks"] = tensors["model.layers.1.self_attn.sinks"] =
      tensors["model.layers.2.self_attn.sinks"] = Json{6};
  tensors["audio_tower.proj.weight"] = Json{50, 96};
  const ModelSpec more = ModelIn(dir.path(), config, tensors);
  CHECK(more.ParamCount() == Sum(tensors));
  CHECK(more.family->planned()->unknown_elements == 3 * 6 + 50 * 96);
  CHECK(Has(more.family->planned()->approximated[1], wording::kParametersOfParts));
  tensors.erase("model.layers.1.self_attn.sinks");
  CHECK(Has(SaidOfModel(dir.path(), config, tensors), wording::kLayerHasOtherTensors));
  Json other;
  for (const auto& [name, shape] : tensors.items()) {
    if (name.find("gate_proj") == std::string::npos && name.find("sinks") == std::string::npos) {
      other[name] = shape;
    }
  }
  CHECK(Has(SaidOfModel(dir.path(), config, other), wording::kItsLayersHaveNoMlp));
  config.erase("hidden_size");
  CHECK(Has(SaidOfModel(dir.path(), config, tensors), wording::kHiddenSizeIsMissing));
}

TEST_CASE("damaged headers name file, tensor and what to do") {
  const TempDir dir;
  const Json& model = PlannedFixture("gemma2");
  const std::string file = dir.path("model.safetensors");
  const auto said = [&] { return SaidOfModel(dir.path(), model["config"]); };
  const auto put = [&](const std::string& text) { std::ofstream(file, std::ios::binary) << text; };
  put("abc");
  CHECK(said() == file +
                      ": is too short for a header of safetensors; the file is cut off or "
                      "damaged; get it anew");
  put(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8));
  CHECK(
      Has(said(), file + ": its header is said to have 9223372036854775807 bytes, the file has 8"));
  WriteSafetensors(file, model["tensors"]);
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 2);
  CHECK(Has(said(), wording::kBytesItsTensorsAndHeader));
  const auto header = [&](const std::string& json) {
    std::string text;
    for (int byte = 0; byte < 8; ++byte) {
      text += static_cast<char>(uint64_t{json.size()} >> 8 * byte & 0xff);
    }
    put(text + json + std::string(64, '\0'));
  };
  header("[1]");
  CHECK(Has(said(), wording::kItsHeaderIsNoJson));
  header(R"({"a": {"dtype": "BF16", "shape": [2, 2]}})");
  CHECK(Has(said(), file + ": a: has no dtype, shape and data_offsets"));
  header(R"({"a": {"dtype": "BF16", "shape": [2, -2], "data_offsets": [0, 8]}})");
  CHECK(Has(said(), wording::kShapeIsNotAllowed));
  header(R"({"a": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 6]}})");
  CHECK(Has(said(), wording::kDataOffsetsAreNotThe));
  header(R"({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}})");
  CHECK(Has(said(), wording::kDtypeIsOfQuantizedWeights));
}

TEST_CASE("weights of another model than the config's") {
  const TempDir dir;
  const Json& model = PlannedFixture("qwen3_moe");
  Json config = model["config"];
  config["moe_intermediate_size"] = 64;
  CHECK(Has(SaidOfModel(dir.path(), config, model["tensors"]),
            "mlp.experts.gate_up_proj: shape: [768, 96] is not [1024, 96], which"));
  config = model["config"];
  config["num_hidden_layers"] = 100000;
  CHECK(Has(SaidOfModel(dir.path(), config), wording::kNumHiddenLayersIsNot));
  config["num_hidden_layers"] = 4;
  CHECK(Has(SaidOfModel(dir.path(), config, model["tensors"]),
            "num_hidden_layers: 4 are not the 3 layers that the weights beside it hold"));
  config = model["config"];
  config["tie_word_embeddings"] = true;
  CHECK(ModelIn(dir.path(), config, model["tensors"]).ParamCount() ==
        model["parameters"].get<uint64_t>() - 1000 * 96);
  config["num_experts_per_tok"] = 9;
  CHECK(Has(SaidOfModel(dir.path(), config), wording::kNumExpertsPerTokIs));
  Json tensors = model["tensors"];
  tensors.erase("model.layers.2.mlp.gate.weight");
  CHECK(Has(SaidOfModel(dir.path(), model["config"], tensors), "layer 2 has other tensors"));
  for (int layer = 0; layer < 3; ++layer) {
    tensors.erase(fmt::format("model.layers.{}.mlp.gate.weight", layer));
  }
  CHECK(Has(SaidOfModel(dir.path(), model["config"], tensors),
            "has no tensor model.layers.N.mlp.gate.weight, which"));
}

TEST_CASE("sizes whose products no number holds") {
  const TempDir dir;
  Json config = PlannedFixture("mixtral")["config"];
  config["num_local_experts"] = 2147483647;
  const std::string experts = SaidOfModel(dir.path(), config);
  CHECK(Has(experts, wording::kNumLocalExpertsIsNot));
  CHECK(Has(experts, dir.path("config.json")));
  CHECK(Has(experts, wording::kUseWholeNumberFromTo));
  config["num_local_experts"] = 4096;
  config["intermediate_size"] = 2147483647;
  CHECK(Has(SaidOfModel(dir.path(), config), wording::kIntermediateSizeIsNotAllowed));
  config["intermediate_size"] = 1 << 20;
  config["num_hidden_layers"] = 2048;
  config["hidden_size"] = 1 << 20;
  config["num_attention_heads"] = config["num_key_value_heads"] = 1024;
  CHECK(Has(SaidOfModel(dir.path(), config), wording::kHiddenSizeComesWithThe));
}

TEST_CASE("files of weights that an index names") {
  const TempDir dir;
  const Json& model = PlannedFixture("gemma2");
  const std::string index = dir.path("model.safetensors.index.json");
  Json first, second, map;
  for (const auto& [name, shape] : model["tensors"].items()) {
    const bool early = first.size() < 10;
    (early ? first : second)[name] = shape;
    map[name] = early ? "a.safetensors" : "b.safetensors";
  }
  const auto said = [&] { return SaidOfModel(dir.path(), model["config"]); };
  const uint64_t parameters = model["parameters"].get<uint64_t>();
  // Without the files the config says all; an index of another size is noted.
  WriteJson(index, {{"metadata", {{"total_size", 2 * parameters}}}, {"weight_map", map}});
  WriteJson(dir.path("config.json"), model["config"]);
  CHECK(FindModel(dir.path(), kOthers).config_notes.empty());
  WriteJson(index, {{"metadata", {{"total_size", 3 * parameters}}}, {"weight_map", map}});
  const NamedModel other = FindModel(dir.path(), kOthers);
  REQUIRE(other.config_notes.size() == 1);
  CHECK(Has(other.config_notes[0], wording::kAreNotOrForEach));
  WriteSafetensors(dir.path("a.safetensors"), first);
  WriteSafetensors(dir.path("b.safetensors"), second);
  CHECK(ModelIn(dir.path(), model["config"]).ParamCount() == parameters);
  map["lost"] = "b.safetensors";
  WriteJson(index, {{"weight_map", map}});
  CHECK(Has(said(), wording::kWeightMapLostIsNot));
  map["lost"] = "../b.safetensors";
  WriteJson(index, {{"weight_map", map}});
  CHECK(Has(said(), wording::kWeightMapLostSafetensorsIs));
  WriteJson(index, {{"metadata", 1}});
  CHECK(Has(said(), wording::kWeightMapIsMissing));
}

}  // namespace
}  // namespace zeroplan
