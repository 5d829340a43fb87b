#include "executor/checkpoint/hf_companions.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/families/load_model.h"
#include "text/files/mapped_file.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kCopyBytes = size_t{4} << 20;

// tokenizer.json, tokenizer.model, tokenizer.model.v3, LICENSE.txt, USE_POLICY.md, ...
constexpr std::string_view kPrefixes[] = {"tokenizer.", "LICENSE", "LICENCE", "NOTICE",
                                          "USE_POLICY"};
constexpr std::string_view kNames[] = {"generation_config.json",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "merges.txt",
                                       "chat_template.jinja",
                                       "chat_template.json",
                                       "tekken.json"};

bool GoesAlong(std::string_view name) {
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
         std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

const char* TorchName(Dtype dtype) {
  return dtype == Dtype::kBF16 ? "bfloat16" : dtype == Dtype::kF16 ? "float16" : "float32";
}

// An empty object if there is none that any reader of JSON takes.
Json ConfigIn(const fs::path& folder) {
  std::error_code ignored;
  if (folder.empty() || !fs::exists(folder / kConfigFile, ignored)) return Json::object();
  Json config =
      Json::parse(ReadTextFile(folder / kConfigFile), nullptr, /*allow_exceptions=*/false);
  return config.is_object() ? config : Json::object();
}

void CopyFile(const fs::path& from, const fs::path& to, IoHook* hook) {
  const MappedFile file = MappedFile::Open(from);
  TemporaryFile temporary(to);
  DurableFile copy = DurableFile::Create(temporary.path(), hook);
  for (uint64_t at = 0; at < file.size(); at += kCopyBytes) {
    copy.WriteAt(at, file.bytes().subspan(at, std::min<uint64_t>(kCopyBytes, file.size() - at)));
  }
  copy.Finish();
  temporary.Commit(hook);
}

}  // namespace

std::string CompanionConfig(const ModelSpec& spec, const fs::path& source, Dtype dtype) {
  Json config = ConfigIn(source);
  if (config.empty()) config = Json::parse(WriteHuggingFaceConfig(spec));
  // transformers 4 writes "torch_dtype", 5 "dtype"; both read the first.
  if (config.contains("dtype")) config["dtype"] = TorchName(dtype);
  if (config.contains("torch_dtype") || !config.contains("dtype")) {
    config["torch_dtype"] = TorchName(dtype);
  }
  return config.dump(2) + "\n";
}

void CopyCompanions(const fs::path& source, const fs::path& target, IoHook* hook) {
  std::error_code error;
  if (fs::equivalent(source, target, error)) return;
  std::vector<fs::path> files;
  for (auto entry = fs::directory_iterator(source, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code gone;  // a dangling link is no file
    if (GoesAlong(entry->path().filename().native()) && entry->is_regular_file(gone)) {
      files.push_back(entry->path());
    }
  }
  if (error) ThrowRuntime("{}: cannot list the folder: {}", source.string(), error.message());
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    try {
      CopyFile(file, target / file.filename(), hook);
    } catch (const Error& failure) {
      ThrowRuntime("{}", failure.what());  // the weights are in place: it is no matter of usage
    }
  }
}

}  // namespace zeroplan
