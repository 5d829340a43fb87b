#include "executor/checkpoint/hf_export.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/split_master.h"
#include "core/families/load_model.h"
#include "executor/checkpoint/hf_weights.h"
#include "executor/kernels/convert.h"
#include "tests/executor/checkpoint/checkpoint_fixture.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Values from -1 to 1, most of which no 16-bit number is.
class WavySource : public StateSource {
 public:
  void Read(const TensorRange& range, std::span<float> out) const override {
    for (size_t i = 0; i < out.size(); ++i) out[i] = At(range.tensor, range.begin + i);
  }
  static float At(int tensor, uint64_t element) {
    return static_cast<float>((element * 37 + static_cast<uint64_t>(tensor) * 11) % 2001) / 1000 -
           1;
  }
};

const std::vector<ParamTensor>& ExportedTable() {
  static const auto* table = new std::vector<ParamTensor>(BuildParamTable(SmallModel()));
  return *table;
}

Json ReadJson(const fs::path& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

std::string ReadBytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// Everything there is, rounded to `dtype` on the way.
void CheckValues(const fs::path& folder, Dtype dtype) {
  const HfWeightsSource source(folder, SmallModel(), ExportedTable());
  for (size_t t = 0; t < ExportedTable().size(); ++t) {
    CAPTURE(ExportedTable()[t].name);
    const auto real = static_cast<size_t>(ExportedTable()[t].unpadded_rows) *
                      static_cast<size_t>(ExportedTable()[t].shape[1]);
    std::vector<float> read(real);
    source.Read({static_cast<int>(t), StateKind::kMaster, 0, real}, read);
    size_t wrong = 0;
    for (size_t i = 0; i < real; ++i) {
      float expected = WavySource::At(static_cast<int>(t), i);
      uint32_t bits = 0;
      WriteScalar(dtype, &bits, 0, expected);
      expected = ReadScalar(dtype, &bits, 0);
      wrong += read[i] == expected ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("hf export: files of at most so many bytes, in the tensors' order") {
  using Cut = std::vector<size_t>;
  CHECK(CutIntoShards(std::vector<uint64_t>{}, 10).empty());
  CHECK(CutIntoShards(std::vector<uint64_t>{4, 6, 1, 9}, 10) == Cut{0, 2});
  CHECK(CutIntoShards(std::vector<uint64_t>{4, 7, 1, 9}, 10) == Cut{0, 1, 3});
  CHECK(CutIntoShards(std::vector<uint64_t>{40, 1, 50, 50, 1}, 10) == Cut{0, 1, 2, 3, 4});
  CHECK(CutIntoShards(std::vector<uint64_t>{~uint64_t{0} - 1, 5}, ~uint64_t{0}) == Cut{0, 1});
}

TEST_CASE("hf export: one file or several, in each dtype, come back") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    for (const uint64_t max_bytes : {uint64_t{5'000'000'000}, uint64_t{8'000}, uint64_t{1}}) {
      CAPTURE(DtypeName(dtype));
      CAPTURE(max_bytes);
      const TempDir dir;
      const fs::path folder = dir.path();
      WriteHfWeights(folder, SmallModel(), ExportedTable(), WavySource(),
                     {.dtype = dtype, .max_shard_bytes = max_bytes});
      CheckValues(folder, dtype);
      const char* names[] = {"float32", "bfloat16", "float16"};
      CHECK(ReadJson(folder / "config.json")["torch_dtype"] == names[static_cast<int>(dtype)]);
      if (max_bytes > 1'000'000) {
        CHECK(FileNames(folder) == std::vector<std::string>{"config.json", "model.safetensors"});
        continue;
      }
      const Json index = ReadJson(folder / kWeightsIndexFile);
      const size_t files = FileNames(folder).size() - 2;
      CHECK(files > 1);
      uint64_t total = 0, tensors = 0;
      for (size_t i = 1; i <= files; ++i) {
        const auto name = WeightShardName(i, files);
        const auto file = SafetensorsFile::Open(folder / name);
        CHECK(file.metadata().at("format") == "pt");
        uint64_t bytes = 0;
        for (const SafetensorsEntry& entry : file.entries()) {
          CHECK(index["weight_map"][entry.name] == name);
          bytes += entry.end - entry.begin;
          ++tensors;
        }
        CHECK((bytes <= max_bytes || file.entries().size() == 1));
        total += bytes;
      }
      CHECK(index["metadata"]["total_size"] == total);
      CHECK(index["weight_map"].size() == tensors);
      CHECK(tensors == ExportedTable().size());
      if (max_bytes == 1) CHECK(files == tensors);
    }
  }
}

TEST_CASE("hf export: bf16 weights are the parameters of a bf16 run") {
  // Every second number lies halfway between two of bf16.
  class Halfway : public StateSource {
   public:
    void Read(const TensorRange& range, std::span<float> out) const override {
      for (size_t i = 0; i < out.size(); ++i) out[i] = At(range.begin + i);
    }
    static float At(uint64_t element) {
      const auto bits = static_cast<uint32_t>(0x3f800000u + (element % 1000) * 0x8000u);
      return std::bit_cast<float>(element % 3 == 0 ? bits | 0x80000000u : bits);
    }
  };
  const TempDir dir;
  WriteHfWeights(dir.path(), SmallModel(), ExportedTable(), Halfway(), {.dtype = Dtype::kBF16});
  const auto file = SafetensorsFile::Open(fs::path(dir.path()) / kWeightsFile);
  const SafetensorsEntry& entry = file.entries().front();
  std::vector<uint16_t> stored(entry.elements);
  std::memcpy(stored.data(), file.Bytes(entry).data(), stored.size() * 2);
  size_t wrong = 0;
  for (size_t i = 0; i < stored.size(); ++i) {
    wrong += stored[i] == Split(Halfway::At(i)).param ? 0 : 1;
  }
  CHECK(wrong == 0);
  CHECK(stored[1] == 0x3f81);  // not the even one
}

TEST_CASE("hf export: over an earlier save of any number of files nothing old stays") {
  const TempDir dir;
  const fs::path folder = dir.path();
  const uint64_t sizes[] = {8'000, 5'000'000'000, 20'000, 8'000, 5'000'000'000, 1, 20'000};
  for (const uint64_t max_bytes : sizes) {
    CAPTURE(max_bytes);
    WriteHfWeights(folder, SmallModel(), ExportedTable(), WavySource(),
                   {.max_shard_bytes = max_bytes});
    CheckValues(folder, Dtype::kF32);
    const WeightFiles files = FindWeightFiles(folder);
    CHECK(FileNames(folder).size() == files.files.size() + (files.index.empty() ? 1 : 2));
  }
}

TEST_CASE("hf export: templates of their own folder go along; texts end where they are to") {
  const TempDir from, dir;
  const fs::path source = from.path(), folder = dir.path();
  fs::create_directory(source / "additional_chat_templates");
  Write(source / "chat_template.jinja", "plain");
  Write(source / "additional_chat_templates/tool_use.jinja", "tools");
  Write(source / "additional_chat_templates/notes.txt", "not one");
  Write(source / "generation_config.json", R"({"eos_token_id": 1, "top_p": 0.5})");
  HfExportOptions options{.source = source};
  WriteHfWeights(folder, SmallModel(), ExportedTable(), WavySource(), options);
  CHECK(ReadBytes(folder / "additional_chat_templates/tool_use.jinja") == "tools");
  CHECK_FALSE(fs::exists(folder / "additional_chat_templates/notes.txt"));
  CHECK(CheckCompanions(source) ==
        std::string("plaintools").size() + fs::file_size(source / "generation_config.json"));
  CHECK(ReadBytes(folder / "generation_config.json") ==
        ReadBytes(source / "generation_config.json"));
  options.stop_tokens = {1, 7};
  WriteHfWeights(folder, SmallModel(), ExportedTable(), WavySource(), options);
  const Json config = ReadJson(folder / "generation_config.json");
  CHECK(config["eos_token_id"] == Json{1, 7});
  Write(source / "generation_config.json", R"({"eos_token_id": [9, 2], "top_p": 0.5})");
  options.stop_tokens = {2, 7, 9};
  WriteHfWeights(folder, SmallModel(), ExportedTable(), WavySource(), options);
  CHECK(ReadJson(folder / "generation_config.json")["eos_token_id"] == Json{9, 2, 7});
  options.stop_tokens = {1, 7};
  CHECK(config["top_p"] == 0.5);
  // Without one, what else transformers takes of config.json stays.
  fs::remove(source / "generation_config.json");
  Json model = Json::parse(WriteHuggingFaceConfig(SmallModel()));
  model["bos_token_id"] = 3;
  Write(source / "config.json", model.dump());
  WriteHfWeights(folder, SmallModel(), ExportedTable(), WavySource(), options);
  const Json made = ReadJson(folder / "generation_config.json");
  CHECK(made == Json{{"bos_token_id", 3}, {"eos_token_id", {1, 7}}});
}

TEST_CASE("hf export: an adapter's tokenizer takes the place of all of the base's") {
  const TempDir base, adapter, dir;
  const fs::path from = base.path(), own = adapter.path(), folder = dir.path();
  fs::create_directory(from / "additional_chat_templates");
  for (const char* name : {"tokenizer.json", "chat_template.jinja", "LICENSE", "added_tokens.json",
                           "additional_chat_templates/tool_use.jinja", "generation_config.json"}) {
    Write(from / name, "base's");
  }
  Write(own / "chat_template.jinja", "own");
  const HfExportOptions options{.source = from, .second_source = own};
  const auto merge = [&] {
    fs::remove_all(folder);
    WriteHfWeights(folder, SmallModel(), ExportedTable(), WavySource(), options);
  };
  merge();
  CHECK(ReadBytes(folder / "tokenizer.json") == "base's");
  CHECK(ReadBytes(folder / "chat_template.jinja") == "own");
  CHECK(ReadBytes(folder / "added_tokens.json") == "base's");
  fs::remove(own / "chat_template.jinja");
  Write(own / "tokenizer.json", "own");
  merge();
  CHECK(ReadBytes(folder / "tokenizer.json") == "own");
  CHECK(ReadBytes(folder / "LICENSE") == "base's");
  CHECK(ReadBytes(folder / "generation_config.json") == "base's");
  for (const char* name :
       {"chat_template.jinja", "added_tokens.json", "additional_chat_templates/tool_use.jinja"}) {
    CHECK_FALSE(fs::exists(folder / name));
  }
}

TEST_CASE("hf export: what lies beside the weights that training started from goes along") {
  const TempDir from, to;
  const fs::path source = from.path(), folder = to.path();
  WriteHfWeights(source, SmallModel(), ExportedTable(), WavySource());
  Json config = ReadJson(source / "config.json");
  config.erase("torch_dtype");
  config["dtype"] = "float32";  // as transformers 5 has it
  config["eos_token_id"] = 17;
  config["attn_pdrop"] = 0.1;
  config["anything"] = {{"else", {1.5, "x"}}};
  Write(source / "config.json", config.dump());
  for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                           "special_tokens_map.json", "vocab.json", "merges.txt", "tokenizer.model",
                           "chat_template.jinja", "added_tokens.json", "LICENSE", "LICENSE.txt",
                           "NOTICE", "USE_POLICY.md"}) {
    Write(source / name, std::string(name) + std::string("\0 bytes", 7));
  }
  Write(source / "README.md", "a card of other weights");
  Write(source / "optimizer.pt", "no");
  fs::create_directory(source / "tokenizer.folder");
  fs::create_symlink("nowhere", source / "NOTICE.dangling");
  // As the hub's own cache has it.
  fs::rename(source / "tokenizer.json", source / "blob");
  fs::create_symlink("blob", source / "tokenizer.json");
  Write(folder / "vocab.json", "an older one");

  WriteHfWeights(folder, SmallModel(), ExportedTable(), WavySource(),
                 {.dtype = Dtype::kBF16, .source = source});
  CheckValues(folder, Dtype::kBF16);
  const Json written = ReadJson(folder / "config.json");
  CHECK(written["dtype"] == "bfloat16");
  CHECK_FALSE(written.contains("torch_dtype"));
  config["dtype"] = "bfloat16";
  CHECK(written == config);
  CHECK(FileNames(folder).size() == 2 + 13);
  for (const std::string& name : FileNames(folder)) {
    if (name == "config.json" || name == kWeightsFile) continue;
    CHECK(ReadBytes(folder / name) == name + std::string("\0 bytes", 7));
  }
  CHECK_FALSE(fs::is_symlink(folder / "tokenizer.json"));

  // Into the folder itself: a run that went on there.
  WriteHfWeights(folder, SmallModel(), ExportedTable(), WavySource(),
                 {.dtype = Dtype::kF16, .source = folder});
  CheckValues(folder, Dtype::kF16);
  CHECK(ReadJson(folder / "config.json")["dtype"] == "float16");
  CHECK(FileNames(folder).size() == 2 + 13);

  // A config that only zeroplan reads, and none: the family's own.
  Write(source / "config.json", "// mine\n" + config.dump());
  WriteHfWeights(folder, SmallModel(), ExportedTable(), WavySource(), {.source = source});
  CHECK(ReadJson(folder / "config.json")["torch_dtype"] == "float32");
  CHECK(LoadModel(folder.string()).layers == 2);
}

}  // namespace
}  // namespace zeroplan
