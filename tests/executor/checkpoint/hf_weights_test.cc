#include "executor/checkpoint/hf_weights.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include "core/families/load_model.h"
#include "executor/checkpoint/hf_export.h"
#include "tests/error_of.h"
#include "tests/executor/checkpoint/checkpoint_fixture.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/temp_dir.h"

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
    for (const StateKind state : kStateKinds) {
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

std::string OpenError(const fs::path& folder, const std::vector<ParamTensor>& table = Table()) {
  return ErrorOf(ExitCode::kUsage, [&] { HfWeightsSource(folder, SmallModel(), table); });
}

std::string WriteText(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  return path.string();
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
    CHECK(
        Has(ErrorOf(ExitCode::kUsage, [&] { HfWeightsSource(dir.path(), SmallModel(), Table()); }),
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
    CHECK(Has(message, path));
    return message;
  };
  CHECK(Has(error([](WeightsFile& f) { f.tensors.erase("transformer.h.1.ln_2.bias"); }),
            "tensor 'transformer.h.1.ln_2.bias' of shape [16] is missing"));
  CHECK(Has(error([](WeightsFile& f) {
              f.tensors["transformer.wpe.weight"] = {{16, 24}, std::vector<float>(384)};
            }),
            "'transformer.wpe.weight' has shape [16, 24], expected [24, 16]"));
  CHECK(Has(error([](WeightsFile& f) {
              f.tensors["transformer.wte.weight"] = {{384, 16}, std::vector<float>(6144)};
            }),
            "has shape [384, 16], expected [300, 16]"));
  CHECK(Has(error([](WeightsFile& f) {
              f.tensors["transformer.ln_f.bias"] = {{16, 1}, std::vector<float>(16)};
            }),
            "has shape [16, 1], expected [16]"));
  CHECK(Has(error([](WeightsFile& f) { f.tensors["transformer.h.2.ln_1.bias"] = {{1}, {0}}; }),
            "'transformer.h.2.ln_1.bias' is not part of the model"));
  CHECK(Has(
      error([](WeightsFile& f) { f.tensors["wpe.weight"] = f.tensors["transformer.wpe.weight"]; }),
      "is there twice"));
  fs::remove(path);
  CHECK_FALSE(HoldsWeights(dir.path()));
  CHECK(Has(OpenError(dir.path()), "is an empty folder; get the model into it, or name another"));
  WriteText(dir.path() + "/pytorch_model-00001-of-00002.bin", "x");
  CHECK(HoldsWeights(dir.path()));
  CHECK(Has(OpenError(dir.path()), "only pytorch_model-00001-of-00002.bin, which is not read"));
}

TEST_CASE("hf weights: a tied head under its second name alone is the embedding") {
  const TempDir dir;
  WeightsFile file(true);
  file.tensors["lm_head.weight"] = file.tensors["transformer.wte.weight"];
  file.tensors.erase("transformer.wte.weight");
  file.Write(dir.path() + "/model.safetensors");
  CheckValues(HfWeightsSource(dir.path(), SmallModel(), Table()));
}

TEST_CASE("hf weights: tensors of a dtype that is not read, and files cut short") {
  const TempDir dir;
  const fs::path path = fs::path(dir.path()) / "model.safetensors";
  const std::string header =
      R"({"transformer.ln_f.bias":{"dtype":"F8_E4M3","shape":[16],"data_offsets":[0,16]}})";
  uint64_t length = header.size();
  std::string text(reinterpret_cast<const char*>(&length), 8);
  WriteText(path, text + header + std::string(16, '\0'));
  CHECK(Has(OpenError(dir.path()),
            "tensor 'transformer.ln_f.bias' of shape [16] has dtype F8_E4M3, expected F32, "
            "BF16 or F16"));
  WeightsFile(true).Write(path);
  const uint64_t whole = fs::file_size(path);
  fs::resize_file(path, whole - 5);
  CHECK(Has(OpenError(dir.path()), "outside the file; is it cut short? Get it again"));
  fs::resize_file(path, 100);
  CHECK(Has(OpenError(dir.path()), "but the file ends after 92; get it again"));
  WriteText(path, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n");
  CHECK(Has(OpenError(dir.path()), "is a Git LFS pointer"));
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
  CHECK(Has(
      ErrorOf(ExitCode::kUsage, [&] { HfWeightsSource(dir.path(), spec, Table()); }),
      "config.json: n_head is 2, but the model to train has 4; train with ⟦model⟧ " + dir.path()));
  spec.layers = 3;
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { HfWeightsSource(dir.path(), spec, Table()); }),
            "n_layer is 2, but the model to train has 3, n_head is 2, not 4; train with"));
  WriteText(dir.path() + "/config.json", "{\"model_type\":\"llama9\"}");
  CHECK(Has(OpenError(dir.path()),
            "model_type: is \"llama9\", but the model to train is a \"gpt2\""));
}

// The fixture's tensors in two files and an index.
class Sharded {
 public:
  Sharded() {
    WeightsFile whole(true), a = whole, b = whole;
    for (const auto& [name, tensor] : whole.tensors) {
      const bool first = name < "transformer.h.1";
      (first ? b : a).tensors.erase(name);
      file_of_[name] = first ? "a.safetensors" : "b.safetensors";
    }
    a.Write(path("a.safetensors"));
    b.Write(path("b.safetensors"));
    WriteIndex();
  }
  fs::path folder() const { return dir_.path(); }
  std::string path(const std::string& name) const { return dir_.path() + "/" + name; }
  std::map<std::string, std::string>& file_of() { return file_of_; }
  void WriteIndex() const {
    std::string map;
    for (const auto& [name, file] : file_of_) {
      map += fmt::format("{}\"{}\":\"{}\"", map.empty() ? "" : ",", name, file);
    }
    WriteIndex("{\"metadata\":{\"total_size\":1},\"weight_map\":{" + map + "}}");
  }
  void WriteIndex(const std::string& text) const {
    WriteText(path("model.safetensors.index.json"), text);
  }

 private:
  TempDir dir_;
  std::map<std::string, std::string> file_of_;
};

TEST_CASE("hf weights: sharded saves are read through their index") {
  Sharded sharded;
  const HfWeightsSource source(sharded.folder(), SmallModel(), Table());
  CheckValues(source);
  CHECK(source.Describe() == "2 files, F32");
  const auto error = [&] { return OpenError(sharded.folder()); };
  // What lies outside the folder is not opened, whatever it is.
  for (const char* name : {"../a.safetensors", "/etc/passwd", "x/../a.safetensors", "..", ".", "",
                           "a\\u0000.safetensors", "a.safetensors/"}) {
    CAPTURE(name);
    sharded.WriteIndex(fmt::format("{{\"weight_map\":{{\"x\":\"{}\"}}}}", name));
    CHECK(Has(error(), "is not the name of a file in the same folder"));
  }
  sharded.WriteIndex(R"({"weight_map":{"x":1}})");
  CHECK(Has(error(), "is not the name of a file"));
  sharded.WriteIndex(R"({"weight_map":[]})");
  CHECK(Has(error(), "weight_map"));
  sharded.WriteIndex(R"({"weight_map":{}})");
  CHECK(Has(error(), "names no files"));
  sharded.file_of()["transformer.ln_f.bias"] = "c.safetensors";
  sharded.WriteIndex();
  CHECK(Has(error(), "names c.safetensors, which is not in the folder (1 of 3 files are missing"));
  sharded.file_of()["transformer.ln_f.bias"] = "a.safetensors";
  sharded.WriteIndex();
  WeightsFile cut(true);
  std::erase_if(cut.tensors, [](const auto& t) { return t.first < "transformer.h.1"; });
  cut.tensors.erase("transformer.ln_f.bias");
  cut.Write(sharded.path("b.safetensors"));
  CHECK(Has(error(), sharded.path("a.safetensors") +
                         ": tensor 'transformer.ln_f.bias' of shape [16] is missing, which "
                         "model.safetensors.index.json says is there"));
}

TEST_CASE("hf weights: numbered files without an index are a whole if all are there") {
  const Sharded sharded;
  fs::remove(sharded.path("model.safetensors.index.json"));
  const std::string first = sharded.path("model-00001-of-00002.safetensors");
  const std::string second = sharded.path("model-00002-of-00002.safetensors");
  fs::rename(sharded.path("a.safetensors"), first);
  CHECK(Has(OpenError(sharded.folder()), "model-00002-of-00002.safetensors is missing"));
  fs::rename(sharded.path("b.safetensors"), second);
  CHECK(HoldsWeights(sharded.folder()));
  CheckValues(HfWeightsSource(sharded.folder(), SmallModel(), Table()));
  fs::rename(second, sharded.path("model-00002-of-00003.safetensors"));
  CHECK(Has(OpenError(sharded.folder()), "which belong together"));
}

TEST_CASE("hf weights: random damage to an index is an error or an index, never worse") {
  const std::string good =
      R"({"metadata":{"total_size":12},"weight_map":{"a.b":"x.safetensors","c":"y.safetensors"}})";
  std::mt19937 random(3);
  int read = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string bad = good;
    for (uint32_t k = 1 + random() % 3; k > 0; --k) {
      const size_t at = random() % bad.size();
      if (random() % 2 == 0) {
        bad[at] = static_cast<char>(random());
      } else {
        bad.insert(at, bad.substr(random() % bad.size(), random() % 20));
      }
    }
    try {
      for (const auto& [tensor, file] : ParseWeightIndex(bad, "index")) {
        CHECK(fs::path(file).filename() == file);
      }
      ++read;
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kUsage);
      CHECK(std::string_view(error.what()).size() < 1000);
    }
  }
  CHECK(read > 100);
}

// The fixture's table, in which a matrix and a vector are published in three parts each.
std::vector<ParamTensor> TableOfParts() {
  std::vector<ParamTensor> table = Table();
  for (ParamTensor& tensor : table) {
    if (tensor.name.ends_with("mlp.c_proj.weight")) {
      tensor.parts = {{"mlp.x.weight", 30}, {"mlp.y.weight", 1}, {"mlp.z.weight", 33}};
    } else if (tensor.name.ends_with("attn.c_attn.bias")) {
      tensor.parts = {{"attn.q.bias", 16}, {"attn.kv.bias", 32}};
    }
  }
  return table;
}

TEST_CASE("hf weights: a parameter of several published tensors leaves and comes back as those") {
  const TempDir dir;
  const auto table = TableOfParts();
  WriteHfWeights(dir.path(), SmallModel(), table, FixtureSource());
  const auto file = SafetensorsFile::Open(dir.path() + "/model.safetensors");
  CHECK(file.entries().size() == table.size() + 2 * 3);
  CHECK(file.Find("transformer.h.1.mlp.c_proj.weight") == nullptr);
  CHECK(file.Find("transformer.h.1.mlp.y.weight")->shape == std::vector<uint64_t>{1, 16});
  CHECK(file.Find("transformer.h.0.attn.kv.bias")->shape == std::vector<uint64_t>{32});
  const HfWeightsSource source(dir.path(), SmallModel(), table);
  CheckValues(source);
  // Ranges across the parts' borders.
  const auto matrix = std::find_if(table.begin(), table.end(), [](const ParamTensor& t) {
    return t.name == "transformer.h.1.mlp.c_proj.weight";
  });
  const auto index = static_cast<int>(matrix - table.begin());
  for (const uint64_t begin : {0, 1, 479, 480, 481, 495, 496, 1000}) {
    for (const uint64_t count : {0, 1, 16, 17, 24}) {
      std::vector<float> values(count);
      source.Read({index, StateKind::kMaster, begin, count}, values);
      for (uint64_t i = 0; i < count; ++i) {
        CHECK(values[i] == StateValue(index, StateKind::kMaster, begin + i, 5));
      }
    }
  }
  // Each part is looked for by its own name and shape.
  const auto rewritten = [&](const std::string& name, std::vector<uint64_t> shape) {
    std::vector<SafetensorsPlan::Tensor> plan;
    for (const auto& entry : file.entries()) {
      if (entry.name != name) plan.push_back({entry.name, entry.shape});
    }
    if (!shape.empty()) plan.push_back({name, shape});
    const TempDir other;
    SafetensorsWriter(other.path() + "/model.safetensors", PlanSafetensors(plan)).Finish();
    return OpenError(other.path(), table);
  };
  CHECK(Has(rewritten("transformer.h.1.mlp.y.weight", {}),
            "tensor 'transformer.h.1.mlp.y.weight' of shape [1, 16] is missing"));
  CHECK(Has(rewritten("transformer.h.1.mlp.y.weight", {16}),
            "'transformer.h.1.mlp.y.weight' has shape [16], expected [1, 16]"));
}

TEST_CASE("hf weights: large reads leave nothing of the files in this process's memory") {
  const TempDir dir;
  ModelSpec spec = SmallModel();
  spec.vocab = spec.padded_vocab = 1'000'000;  // 64 MB of fp32
  const auto table = BuildParamTable(spec);
  class Zeros : public StateSource {
   public:
    void Read(const TensorRange&, std::span<float> out) const override {
      std::fill(out.begin(), out.end(), 0.5f);
    }
  };
  const auto resident = [](const char* kind) {
    std::ifstream status("/proc/self/status");
    for (std::string key; status >> key; status.ignore(256, '\n')) {
      int64_t kilobytes = 0;
      if (key == kind && status >> kilobytes) return kilobytes * 1024;
    }
    return int64_t{0};
  };
  std::vector<float> values(1 << 20);
  const int64_t before = resident("RssFile:"), own = resident("RssAnon:");
  WriteHfWeights(dir.path(), spec, table, Zeros());
  const HfWeightsSource source(dir.path(), spec, table);
  for (uint64_t begin = 0; begin + values.size() <= 16'000'000; begin += values.size()) {
    source.Read({0, StateKind::kMaster, begin, values.size()}, values);
    REQUIRE(values.back() == 0.5f);
  }
  CHECK(resident("RssFile:") - before < 8 << 20);
  CHECK(resident("RssAnon:") - own < 16 << 20);  // one chunk of the export, and `values`
}

TEST_CASE("weights: tokens that were added read as the mean of the embeddings") {
  const TempDir dir;
  WeightsFile(true).Write(fs::path(dir.path()) / "model.safetensors");
  ModelSpec larger = SmallModel();
  larger.vocab += 3;
  larger.padded_vocab = std::max(larger.padded_vocab, PadVocab(larger.vocab));
  const std::vector<ParamTensor> table = BuildParamTable(larger);
  const std::string refused =
      ErrorOf(ExitCode::kUsage, [&] { HfWeightsSource(dir.path(), larger, table); });
  CHECK(Has(refused, "transformer.wte.weight"));
  const HfWeightsSource source(dir.path(), larger, table, /*resizes=*/true);
  const auto cols = static_cast<uint64_t>(table[0].shape[1]);
  const auto known = static_cast<uint64_t>(SmallModel().vocab);
  REQUIRE(table[0].name == "transformer.wte.weight");
  // From the middle of the last known row into the padding.
  std::vector<float> all((known + 3) * cols), part(5 * cols);
  source.Read({0, StateKind::kMaster, 0, all.size()}, all);
  const uint64_t from = (known - 1) * cols + 3;
  part.resize(std::min<uint64_t>(part.size(), table[0].elements() - from));
  source.Read({0, StateKind::kMaster, from, part.size()}, part);
  for (uint64_t i = 0; i < part.size(); ++i) {
    CHECK(part[i] == (from + i < all.size() ? all[from + i] : 0.0f));
  }
  for (uint64_t c = 0; c < cols; ++c) {
    double mean = 0;
    for (uint64_t r = 0; r < known; ++r) mean += all[r * cols + c];
    for (uint64_t r = known; r < known + 3; ++r) {
      CHECK(all[r * cols + c] == doctest::Approx(mean / static_cast<double>(known)).epsilon(1e-6));
    }
  }
}

}  // namespace
}  // namespace zeroplan
