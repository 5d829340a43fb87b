#include "executor/checkpoint/hf_weights.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>

#include "core/families/load_model.h"
#include "tests/executor/checkpoint/checkpoint_fixture.h"
#include "tests/executor/device/temp_dir.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// Every element as StateValue has it, padding included: what must not be exported.
class FixtureSource : public StateSource {
 public:
  void Read(const TensorRange& range, std::span<float> out) const override {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = StateValue(range.tensor, range.state, range.begin + i, 5);
    }
  }
};

const std::vector<ParamTensor>& Table() {
  static const auto* table = new std::vector<ParamTensor>(BuildParamTable(SmallModel()));
  return *table;
}

// The tensors of the model as a file has them; tests change them before they write.
struct WeightsFile {
  std::map<std::string, std::pair<std::vector<uint64_t>, std::vector<float>>> tensors;

  explicit WeightsFile(bool prefix) {
    for (size_t i = 0; i < Table().size(); ++i) {
      const ParamTensor& tensor = Table()[i];
      std::vector<uint64_t> shape = {static_cast<uint64_t>(tensor.unpadded_rows)};
      if (!tensor.is_vector) shape.push_back(static_cast<uint64_t>(tensor.shape[1]));
      uint64_t elements = 1;
      for (const uint64_t extent : shape) elements *= extent;
      std::vector<float> values(elements);
      FixtureSource().Read({static_cast<int>(i), StateKind::kMaster, 0, elements}, values);
      std::string name = tensor.name;
      if (!prefix) name = name.substr(std::strlen("transformer."));
      tensors[name] = {shape, values};
    }
  }
  void Write(const fs::path& path) const {
    std::vector<SafetensorsPlan::Tensor> plan;
    for (const auto& [name, tensor] : tensors) plan.push_back({name, tensor.first});
    SafetensorsWriter writer(path, PlanSafetensors(plan));
    size_t i = 0;
    for (const auto& [name, tensor] : tensors) writer.WriteAt(i++, 0, tensor.second);
    writer.Finish();
  }
};

void CheckValues(const StateSource& source) {
  for (size_t t = 0; t < Table().size(); ++t) {
    const ParamTensor& tensor = Table()[t];
    const auto real = static_cast<uint64_t>(tensor.unpadded_rows * tensor.shape[1]);
    for (const StateKind state : {StateKind::kMaster, StateKind::kAdamM, StateKind::kAdamV}) {
      std::vector<float> values(tensor.elements(), -1.0f);
      source.Read({static_cast<int>(t), state, 0, values.size()}, values);
      size_t wrong = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        const float expected = state == StateKind::kMaster && i < real
                                   ? StateValue(static_cast<int>(t), state, i, 5)
                                   : 0.0f;
        wrong += values[i] == expected ? 0 : 1;
      }
      CAPTURE(tensor.name);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("hf weights: what is exported is imported, padding apart") {
  const TempDir dir;
  const fs::path folder = fs::path(dir.path()) / "a/b";
  WriteHfWeights(folder, SmallModel(), Table(), FixtureSource());
  WriteHfWeights(folder, SmallModel(), Table(), FixtureSource());  // over an old one
  CHECK(std::distance(fs::directory_iterator(folder), fs::directory_iterator()) == 2);
  const SafetensorsFile file = SafetensorsFile::Open(folder / "model.safetensors");
  CHECK(file.metadata().at("format") == "pt");
  CHECK(file.Find("transformer.wte.weight")->shape == std::vector<uint64_t>{300, 16});
  CHECK(file.Find("transformer.h.1.attn.c_attn.weight")->shape == std::vector<uint64_t>{16, 48});
  CHECK(file.Find("transformer.h.1.attn.c_attn.bias")->shape == std::vector<uint64_t>{48});
  CHECK(file.Find("lm_head.weight") == nullptr);
  CHECK(file.entries().size() == Table().size());
  const HfWeightsSource source(folder, SmallModel(), Table());
  CheckValues(source);
  // Across the border of the padded rows.
  std::vector<float> border(4);
  source.Read({0, StateKind::kMaster, 300 * 16 - 2, 4}, border);
  CHECK(border[1] == StateValue(0, StateKind::kMaster, 300 * 16 - 1, 5));
  CHECK(border[2] == 0);
  source.Read({0, StateKind::kMaster, 310 * 16, 4}, border);
  CHECK(border == std::vector<float>(4));
  CHECK_THROWS_AS(source.Read({0, StateKind::kMaster, 384 * 16 - 3, 4}, border), CheckFailure);
}

TEST_CASE("hf weights: names with and without prefix, masks and the tied head") {
  for (const bool prefix : {false, true}) {
    const TempDir dir;
    WeightsFile file(prefix);
    const std::string p = prefix ? "transformer." : "";
    file.tensors[p + "h.0.attn.bias"] = {{1, 1, 4, 4}, std::vector<float>(16)};
    file.tensors[p + "h.1.attn.masked_bias"] = {{}, {1}};
    file.tensors["lm_head.weight"] = file.tensors[p + "wte.weight"];
    file.Write(dir.path() + "/model.safetensors");
    CheckValues(HfWeightsSource(dir.path(), SmallModel(), Table()));
    file.tensors["lm_head.weight"].second.back() += 1;
    file.Write(dir.path() + "/model.safetensors");
    CHECK(Contains(
        ErrorOf(ExitCode::kUsage, [&] { HfWeightsSource(dir.path(), SmallModel(), Table()); }),
        "'lm_head.weight' differs from '" + p + "wte.weight'"));
  }
}

TEST_CASE("hf weights: what does not fit the model is named") {
  const TempDir dir;
  const std::string path = dir.path() + "/model.safetensors";
  const auto error = [&](const std::function<void(WeightsFile&)>& change) {
    WeightsFile file(true);
    change(file);
    file.Write(path);
    const auto message =
        ErrorOf(ExitCode::kUsage, [&] { HfWeightsSource(dir.path(), SmallModel(), Table()); });
    CHECK(Contains(message, path));
    return message;
  };
  CHECK(Contains(error([](WeightsFile& f) { f.tensors.erase("transformer.h.1.ln_2.bias"); }),
                 "tensor 'transformer.h.1.ln_2.bias' of shape [16] is missing"));
  CHECK(Contains(error([](WeightsFile& f) {
                   f.tensors["transformer.wpe.weight"] = {{16, 24}, std::vector<float>(384)};
                 }),
                 "'transformer.wpe.weight' has shape [16, 24], expected [24, 16]"));
  CHECK(Contains(error([](WeightsFile& f) {
                   f.tensors["transformer.wte.weight"] = {{384, 16}, std::vector<float>(6144)};
                 }),
                 "has shape [384, 16], expected [300, 16]"));
  CHECK(Contains(error([](WeightsFile& f) {
                   f.tensors["transformer.ln_f.bias"] = {{16, 1}, std::vector<float>(16)};
                 }),
                 "has shape [16, 1], expected [16]"));
  CHECK(Contains(error([](WeightsFile& f) { f.tensors["transformer.h.2.ln_1.bias"] = {{1}, {0}}; }),
                 "'transformer.h.2.ln_1.bias' is not part of the model"));
  CHECK(Contains(
      error([](WeightsFile& f) { f.tensors["wpe.weight"] = f.tensors["transformer.wpe.weight"]; }),
      "is there twice"));
  fs::remove(path);
  CHECK(Contains(
      ErrorOf(ExitCode::kUsage, [&] { HfWeightsSource(dir.path(), SmallModel(), Table()); }),
      "holds neither model.safetensors nor model.safetensors.index.json"));
}

TEST_CASE("hf weights: a model that transformers saved comes through bit by bit") {
  const fs::path saved = SourcePath("tests/fixtures/gpt2_tiny");
  const TempDir dir;
  const ModelSpec spec = LoadModel(saved.string());
  const auto table = BuildParamTable(spec);
  WriteHfWeights(dir.path(), spec, table, HfWeightsSource(saved, spec, table));
  const auto before = SafetensorsFile::Open(saved / "model.safetensors");
  const auto after = SafetensorsFile::Open(fs::path(dir.path()) / "model.safetensors");
  REQUIRE(after.entries().size() == table.size());
  REQUIRE(before.entries().size() == table.size());
  for (const SafetensorsEntry& entry : before.entries()) {
    const SafetensorsEntry* other = after.Find(entry.name);
    REQUIRE(other != nullptr);
    CHECK(other->shape == entry.shape);
    const auto a = before.Bytes(entry), b = after.Bytes(*other);
    CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end()));
  }
}

TEST_CASE("hf weights: a config.json beside them must be the model's") {
  const TempDir dir;
  WriteHfWeights(dir.path(), SmallModel(), Table(), FixtureSource());
  ModelSpec spec = SmallModel();
  spec.heads = 4;  // the same shapes
  CHECK(Contains(ErrorOf(ExitCode::kUsage, [&] { HfWeightsSource(dir.path(), spec, Table()); }),
                 "config.json: n_head is 2, but the model to train has 4"));
}

TEST_CASE("hf weights: sharded saves are read through their index") {
  const TempDir dir;
  WeightsFile whole(true), a = whole, b = whole;
  std::string map;
  for (const auto& [name, tensor] : whole.tensors) {
    const bool first = name < "transformer.h.1";
    (first ? b : a).tensors.erase(name);
    map +=
        fmt::format("{}\"{}\":\"{}.safetensors\"", map.empty() ? "" : ",", name, first ? "a" : "b");
  }
  a.Write(dir.path() + "/a.safetensors");
  b.Write(dir.path() + "/b.safetensors");
  const auto index = [&](const std::string& text) {
    std::ofstream(dir.path() + "/model.safetensors.index.json") << text;
  };
  index("{\"weight_map\":{" + map + "}}");
  CheckValues(HfWeightsSource(dir.path(), SmallModel(), Table()));
  const auto error = [&] {
    return ErrorOf(ExitCode::kUsage, [&] { HfWeightsSource(dir.path(), SmallModel(), Table()); });
  };
  index(R"({"weight_map":{"x":"../a.safetensors"}})");
  CHECK(Contains(error(), "is not the name of a file in the same folder"));
  index(R"({"weight_map":{"x":1}})");
  CHECK(Contains(error(), "is not the name of a file"));
  index(R"({"weight_map":[]})");
  CHECK(Contains(error(), "weight_map"));
  index(R"({"weight_map":{}})");
  CHECK(Contains(error(), "names no files"));
}

}  // namespace
}  // namespace zeroplan
