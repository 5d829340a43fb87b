#include "executor/checkpoint/hf_weights.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/families/load_model.h"
#include "core/model/model_fields.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kConfigFile = "config.json";
constexpr size_t kChunkElements = size_t{1} << 20;

std::string_view WithoutPrefix(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

// The tensor's shape in a file: unpadded, and vectors with one dimension.
std::vector<uint64_t> FileShape(const ParamTensor& tensor) {
  const auto rows = static_cast<uint64_t>(tensor.unpadded_rows);
  if (tensor.is_vector) return {rows};
  return {rows, static_cast<uint64_t>(tensor.shape[1])};
}

bool IsFloat(std::string_view dtype) { return dtype == "F32" || dtype == "BF16" || dtype == "F16"; }

// The files that a sharded save's index names, each once.
std::set<std::string> ShardNames(const fs::path& index) {
  std::set<std::string> names;
  const JsonNode root = ParseJsonText(ReadTextFile(index), index.string());
  const JsonNode* map = root.Find("weight_map");
  if (map == nullptr || !map->is_object()) {
    ThrowUsage("{}: weight_map: an object of tensor and file names is needed", index.string());
  }
  for (const auto& [tensor, file] : map->members) {
    const std::string name = file.is_string() ? file.scalar.text() : std::string();
    if (name.empty() || fs::path(name).filename() != name) {
      ThrowUsage("{}:{}: weight_map: {} is not the name of a file in the same folder",
                 index.string(), file.line, Printable(file.Quote()));
    }
    names.insert(name);
  }
  return names;
}

void CheckSameModel(const fs::path& config, const ModelSpec& spec) {
  const ModelFamily* const families[] = {spec.family};
  const ModelSpec found = ReadHuggingFaceConfig(config, nullptr, families);
  ForEachField(found, spec, [&](const ModelField& field, const auto& got, const auto& expected) {
    const std::string_view key = spec.family->ConfigKey(field.key);
    if (!field.shape || key.empty() || got == expected) return;
    ThrowUsage(
        "{}: {} is {}, but the model to train has {}; train with --model {} or use weights "
        "of the same model",
        config.string(), key, FieldText(got), FieldText(expected), config.parent_path().string());
  });
}

}  // namespace

HfWeightsSource::HfWeightsSource(const fs::path& folder, const ModelSpec& spec,
                                 std::span<const ParamTensor> table)
    : places_(table.size()) {
  std::error_code ignored;
  if (fs::exists(folder / kConfigFile, ignored)) CheckSameModel(folder / kConfigFile, spec);
  OpenFiles(folder);

  NameIndex index_of, twin_of;
  for (size_t i = 0; i < table.size(); ++i) {
    index_of.emplace(WithoutPrefix(table[i].name, spec.family->optional_prefix()), i);
    if (*table[i].twin != '\0') twin_of.emplace(table[i].twin, i);
    elements_.push_back(table[i].elements());
  }
  std::vector<Place> twins(table.size());
  for (const SafetensorsFile& file : files_) {
    for (const SafetensorsEntry& entry : file.entries()) {
      if (spec.family->PassedOver(entry.name)) continue;
      if (const auto twin = twin_of.find(entry.name); twin != twin_of.end()) {
        SetPlace(file, entry, twins[twin->second]);
        continue;
      }
      const auto found = index_of.find(WithoutPrefix(entry.name, spec.family->optional_prefix()));
      if (found == index_of.end()) {
        ThrowUsage("{}: tensor '{}' is not part of the model", file.path().string(),
                   Printable(entry.name));
      }
      const auto expected = FileShape(table[found->second]);
      if (entry.shape != expected) {
        ThrowUsage("{}: tensor '{}' has shape {}, expected {}", file.path().string(),
                   Printable(entry.name), FormatShape(entry.shape), FormatShape(expected));
      }
      SetPlace(file, entry, places_[found->second]);
    }
  }
  for (size_t i = 0; i < table.size(); ++i) {
    if (places_[i].entry == nullptr) {
      ThrowUsage("{}: tensor '{}' of shape {} is missing", files_.front().path().string(),
                 table[i].name, FormatShape(FileShape(table[i])));
    }
  }
  for (size_t i = 0; i < table.size(); ++i) {
    if (twins[i].entry != nullptr) CheckTwin(twins[i], places_[i]);
  }
}

void HfWeightsSource::OpenFiles(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder / kWeightsFile, ignored)) {
    files_.push_back(SafetensorsFile::Open(folder / kWeightsFile));
  } else if (fs::exists(folder / kIndexFile, ignored)) {
    for (const std::string& name : ShardNames(folder / kIndexFile)) {
      files_.push_back(SafetensorsFile::Open(folder / name));
    }
    if (files_.empty()) ThrowUsage("{}: names no files", (folder / kIndexFile).string());
  } else {
    ThrowUsage(
        "{}: holds neither {} nor {}; weights in another format become it with transformers' "
        "save_pretrained(FOLDER, safe_serialization=True)",
        folder.string(), kWeightsFile, kIndexFile);
  }
}

void HfWeightsSource::SetPlace(const SafetensorsFile& file, const SafetensorsEntry& entry,
                               Place& place) const {
  if (!IsFloat(entry.dtype)) {
    ThrowUsage("{}: tensor '{}' has dtype {}, expected F32, BF16 or F16", file.path().string(),
               Printable(entry.name), entry.dtype);
  }
  if (place.entry != nullptr) {
    ThrowUsage("{}: tensor '{}' is there twice, also as '{}' in {}", file.path().string(),
               Printable(entry.name), Printable(place.entry->name), place.file->path().string());
  }
  place = {&file, &entry};
}

void HfWeightsSource::CheckTwin(const Place& twin, const Place& place) const {
  bool same = twin.entry->shape == place.entry->shape;
  std::vector<float> a, b;
  for (uint64_t begin = 0; same && begin < place.entry->elements; begin += a.size()) {
    a.resize(std::min<uint64_t>(kChunkElements, place.entry->elements - begin));
    b.resize(a.size());
    twin.file->ReadFloats(*twin.entry, begin, a);
    place.file->ReadFloats(*place.entry, begin, b);
    // By bytes: not-a-number is equal to itself.
    same = std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
  if (!same) {
    ThrowUsage(
        "{}: '{}' differs from '{}': a model with a head of its own is not supported, "
        "the head must be tied to the token embedding",
        twin.file->path().string(), Printable(twin.entry->name), Printable(place.entry->name));
  }
}

void HfWeightsSource::Read(const TensorRange& range, std::span<float> out) const {
  const auto tensor = static_cast<size_t>(range.tensor);
  ZEROPLAN_CHECK(tensor < places_.size() && out.size() == range.count &&
                     range.begin <= elements_[tensor] &&
                     range.count <= elements_[tensor] - range.begin,
                 "tensor {}, elements {} + {}", range.tensor, range.begin, range.count);
  uint64_t stored = 0;
  if (range.state == StateKind::kMaster && range.begin < places_[tensor].entry->elements) {
    const Place& place = places_[tensor];
    stored = std::min(range.count, place.entry->elements - range.begin);
    place.file->ReadFloats(*place.entry, range.begin, out.first(stored));
  }
  std::fill(out.begin() + static_cast<ptrdiff_t>(stored), out.end(), 0.0f);
}

void WriteHfWeights(const fs::path& folder, const ModelSpec& spec,
                    std::span<const ParamTensor> table, const StateSource& source, IoHook* hook) {
  std::vector<SafetensorsPlan::Tensor> tensors;
  for (const ParamTensor& tensor : table) tensors.push_back({tensor.name, FileShape(tensor)});
  MakeFolders(folder, hook);

  TemporaryFile weights_file(folder / kWeightsFile);
  SafetensorsWriter weights(weights_file.path(), PlanSafetensors(tensors), hook);
  std::vector<float> chunk;
  for (size_t i = 0; i < table.size(); ++i) {
    const uint64_t elements = weights.plan().elements[i];
    for (uint64_t begin = 0; begin < elements; begin += chunk.size()) {
      chunk.resize(std::min<uint64_t>(kChunkElements, elements - begin));
      source.Read({static_cast<int>(i), StateKind::kMaster, begin, chunk.size()}, chunk);
      weights.WriteAt(i, begin, chunk);
    }
  }
  weights.Finish();

  TemporaryFile config_file(folder / kConfigFile);
  DurableFile config = DurableFile::Create(config_file.path(), hook);
  const std::string config_text = WriteHuggingFaceConfig(spec);
  config.WriteAt(0, std::as_bytes(std::span(config_text)));
  config.Finish();
  config_file.Commit(hook);
  weights_file.Commit(hook);
}

}  // namespace zeroplan
