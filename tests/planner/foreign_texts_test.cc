// Texts that others wrote, small ones that stand for much among them, in the hands of each reader
// of configs, profiles, plans and logs: taken, or refused with a message that people can read.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/limits.h"
#include "core/config/deepspeed_reader.h"
#include "core/families/adapter_config.h"
#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/plan/plan_file.h"
#include "planner/runs/metrics_reader.h"
#include "planner/runtimes/planned/planned_models.h"
#include "planner/why/run_log.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

struct ForeignReader {
  const char* name;
  std::string sample;  // a text of its kind
  std::function<void(const std::string&)> read;
};

std::vector<ForeignReader> ForeignReaders(const TempDir& folder) {
  const auto corpus = [](const char* file) {
    return ReadTextFile(SourcePath(std::string("tests/fuzz/corpus/") + file));
  };
  const auto first_of = [](const char* kind) {
    std::vector<fs::path> files;
    for (const auto& file : fs::directory_iterator(SourcePath("tests/fuzz/corpus/") + kind)) {
      files.push_back(file.path());
    }
    std::sort(files.begin(), files.end());
    return ReadTextFile(files.at(0));
  };
  const auto config = [](const std::string& text) {
    ReadContext context;
    context.world_size = 8;
    context.seq_len = 128;
    context.layers = 2;
    ReadDeepSpeedConfig(text, "f", context);
  };
  const auto model = [path = folder.path() + "/config.json"](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
    std::vector<std::string> notes;
    ReadHuggingFaceConfig(path, &notes);
  };
  // Folders of their own, where the text is the header, the index or the adapter's config.
  const auto in = [&folder](const char* name) {
    const fs::path made = fs::path(folder.path()) / name;
    fs::create_directories(made);
    return made;
  };
  const auto header = [made = in("header")](const std::string& text) {
    const uint64_t bytes = text.size();
    std::ofstream file(made / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&bytes), sizeof bytes) << text << "12345678";
    file.close();
    ReadWeightHeaders(made);
  };
  const auto index = [made = in("index")](const std::string& text) {
    std::ofstream(made / "model.safetensors.index.json", std::ios::binary) << text;
    ReadWeightHeaders(made);
  };
  const auto adapter = [made = in("adapter")](const std::string& text) {
    std::ofstream(made / kAdapterConfigFile, std::ios::binary) << text;
    WithAdapter(LoadModel("llama3.2-1b"), made, AdapterUse::kMerge);
  };
  return {
      {"header", R"({"a.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", header},
      {"index", R"({"weight_map": {"a.weight": "model-1.safetensors"}})", index},
      {"adapter", R"({"peft_type": "LORA", "target_modules": ["q_proj"]})", adapter},
      {"text", "{}", [](const std::string& text) { ParseJsonText(text, "f"); }},
      {"config", corpus("config/auto_stage2.json"), config},
      {"model", first_of("model"), model},
      {"profile", corpus("profile/h200-141gb-sxm.json"),
       [](const std::string& text) { ParseProfile(text, "f"); }},
      {"plan", first_of("plan"), [](const std::string& text) { ReadPlan(text, "f"); }},
      {"metrics", corpus("metrics/older.jsonl"),
       [](const std::string& text) { ReadMetrics(text, "f"); }},
      {"log", "{}", [](const std::string& text) { ParseLog(text, "f"); }}};
}

// What a member is called and has.
std::vector<std::pair<std::string, std::string>> Bombs() {
  std::string members = "\"k\": 1", values = "1";
  for (int i = 0; i < 100'000; ++i) {
    members += fmt::format(", \"k{}\": 1", i);
    values += ",1";
  }
  const std::string deep(100'000, '['), close(100'000, ']');
  const std::string megabytes(4 << 20, 'x');
  return {{"bomb", deep + close},
          {"bomb", deep},
          {"bomb", "{" + members + "}"},
          {"bomb", "[" + values + "]"},
          {"bomb", '"' + megabytes + '"'},
          {"bomb", megabytes},
          {"bomb", "1e999999"},
          {"bomb", std::string(100'000, '9')},
          {"bomb", "-" + std::string(400, '9') + "." + std::string(400, '9')},
          {megabytes, "1"},
          {"a\\u0000b", "\"c\\u0000d\""},
          {"a\\u0000b", "1, \"a\\u0000b\": 2"},
          {"a\\u2028b", "1, \"c\": [\"\\u0000\"]"}};
}

// "": it is taken.
std::string MessageOf(const ForeignReader& reader, const std::string& text) {
  try {
    reader.read(text);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    const std::string message = error.what();
    CHECK(message.size() > 10);
    CHECK(message.size() < kMostMessageBytes + 100);
    return message;
  }
  return "";
}

TEST_CASE("foreign texts: what stands for much is taken within limits or refused by name") {
  const TempDir folder;
  const std::vector<std::pair<std::string, std::string>> bombs = Bombs();
  for (const ForeignReader& reader : ForeignReaders(folder)) {
    CAPTURE(reader.name);
    MessageOf(reader, reader.sample);
    for (size_t i = 0; i < bombs.size(); ++i) {
      CAPTURE(i);
      const auto& [name, value] = bombs[i];
      // Alone, and as the first member of what is read.
      MessageOf(reader, value);
      std::string text = reader.sample;
      const bool empty = text == "{}";
      text.insert(text.find('{') + 1, '"' + name + "\": " + value + (empty ? "" : ", "));
      const std::string message = MessageOf(reader, text);
      if (value.starts_with("[[") && std::string_view(reader.name) != "log") {
        CHECK(Has(message, "more than 64"));  // deep
      }
    }
  }
}

}  // namespace
}  // namespace zeroplan
