#include "executor/checkpoint/weight_files.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_source.h"
#include "executor/checkpoint/safetensors.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr size_t kShardDigits = 5;

// Names in the folder, in byte order; none if it cannot be listed.
std::vector<std::string> NamesIn(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Takes digits off the front.
bool TakeDigits(std::string_view& text, uint64_t& value) {
  value = 0;
  size_t count = 0;
  for (; count < text.size() && text[count] >= '0' && text[count] <= '9'; ++count) {
    value = value * 10 + static_cast<uint64_t>(text[count] - '0');
  }
  if (count != kShardDigits) return false;
  text.remove_prefix(count);
  return true;
}

bool Take(std::string_view& text, std::string_view part) {
  if (!text.starts_with(part)) return false;
  text.remove_prefix(part.size());
  return true;
}

struct ShardName {
  uint64_t number = 0, count = 0;
};
bool ParseShardName(std::string_view name, ShardName& shard) {
  return Take(name, "model-") && TakeDigits(name, shard.number) && Take(name, "-of-") &&
         TakeDigits(name, shard.count) && name == ".safetensors" && shard.number >= 1 &&
         shard.number <= shard.count;
}

// A name that stays in its folder.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         Printable(name) == name;
}

// Weights in another format: the first such file; empty: none.
std::string ForeignWeights(const fs::path& folder) {
  for (const std::string& name : NamesIn(folder)) {
    const bool is_torch = name.starts_with("pytorch_model") && name.ends_with(".bin");
    const bool is_gguf = name.ends_with(".gguf");
    const bool is_original = name.starts_with("consolidated.") &&
                             (name.ends_with(".pth") || name.ends_with(".safetensors"));
    if (is_torch || is_gguf || is_original || name == "tf_model.h5" ||
        name == "flax_model.msgpack") {
      return name;
    }
  }
  return "";
}

WeightFiles FilesOfIndex(const fs::path& index) {
  const fs::path folder = ParentFolder(index);
  WeightFiles found;
  found.index = index;
  found.file_of_tensor = ParseWeightIndex(ReadTextFile(index), index.string());
  std::set<std::string> names;
  for (const auto& [tensor, name] : found.file_of_tensor) names.insert(name);
  if (names.empty()) ThrowUsage("{}: names no files", index.string());
  std::string absent;
  size_t absent_count = 0;
  for (const std::string& name : names) {
    found.files.push_back(folder / name);
    if (Exists(found.files.back())) continue;
    if (absent_count++ == 0) absent = name;
  }
  if (absent_count > 0) {
    ThrowUsage(
        "{}: names {}, which is not in the folder ({} of {} files are missing); get it again",
        index.string(), absent, absent_count, names.size());
  }
  return found;
}

// Without an index. Nothing if there are no shards.
WeightFiles Shards(const fs::path& folder) {
  WeightFiles found;
  ShardName shard;
  uint64_t count = 0;
  for (const std::string& name : NamesIn(folder)) {
    if (!ParseShardName(name, shard)) continue;
    if (count != 0 && shard.count != count) {
      ThrowUsage(
          "{}: holds {}, of {} files, and others of {}, and no {} that says which belong "
          "together; take the ones of the other save away",
          folder.string(), name, shard.count, count, kWeightsIndexFile);
    }
    count = shard.count;
    found.files.push_back(folder / name);
  }
  for (uint64_t number = 1; number <= count; ++number) {
    const std::string name = WeightShardName(number, count);
    if (found.files.size() >= number && found.files[number - 1].filename() == name) continue;
    ThrowUsage("{}: {} is missing; get it again", folder.string(), name);
  }
  return found;
}

}  // namespace

std::string WeightShardName(uint64_t number, uint64_t count) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", number, count);
}

bool IsWeightShardName(std::string_view name) {
  ShardName ignored;
  return ParseShardName(name, ignored);
}

std::map<std::string, std::string> ParseWeightIndex(std::string_view text,
                                                    std::string_view source) {
  std::map<std::string, std::string> file_of_tensor;
  const JsonNode root = ParseJsonText(text, source);
  const JsonNode* map = root.Find("weight_map");
  if (map == nullptr || !map->is_object()) {
    ThrowUsage("{}: weight_map: an object of tensor and file names is needed", source);
  }
  for (const auto& [tensor, file] : map->members) {
    const std::string name = file.is_string() ? file.scalar.text() : std::string();
    if (!IsPlainFileName(name)) {
      ThrowUsage("{}:{}: weight_map: {} is not the name of a file in the same folder", source,
                 file.line, Printable(file.Quote()));
    }
    file_of_tensor.emplace(tensor, name);
  }
  return file_of_tensor;
}

bool HoldsWeights(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return false;
  if (Exists(folder / kWeightsFile) || Exists(folder / kWeightsIndexFile)) return true;
  const std::vector<std::string> names = NamesIn(folder);
  return std::any_of(names.begin(), names.end(), IsWeightShardName) ||
         !ForeignWeights(folder).empty();
}

WeightFiles FindWeightFiles(const fs::path& folder) {
  if (Exists(folder / kWeightsFile)) return {.files = {folder / kWeightsFile}};
  if (Exists(folder / kWeightsIndexFile)) return FilesOfIndex(folder / kWeightsIndexFile);
  WeightFiles shards = Shards(folder);
  if (!shards.files.empty()) return shards;
  const std::string foreign = ForeignWeights(folder);
  ThrowUsage(
      "{}: holds neither {} nor {}{}; weights in another format become it with transformers' "
      "save_pretrained(FOLDER, safe_serialization=True)",
      folder.string(), kWeightsFile, kWeightsIndexFile,
      foreign.empty() ? "" : fmt::format(", only {}, which is not read", foreign));
}

std::vector<HfTensor> HfTensors(std::span<const ParamTensor> table) {
  std::vector<HfTensor> tensors;
  for (size_t i = 0; i < table.size(); ++i) {
    const auto cols = static_cast<uint64_t>(table[i].shape[1]);
    for (PublishedTensor& published : PublishedTensors(table[i])) {
      const auto rows = static_cast<uint64_t>(published.end - published.begin);
      std::vector<uint64_t> shape = {rows};
      if (!table[i].is_vector) shape.push_back(cols);
      tensors.push_back({std::move(published.name), std::move(shape), i,
                         static_cast<uint64_t>(published.begin) * cols, rows * cols});
    }
  }
  return tensors;
}

}  // namespace zeroplan
