#include "executor/checkpoint/hf_weights.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "core/base/error.h"
#include "core/base/json_source.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "transformer.";
constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kConfigFile = "config.json";
constexpr size_t kChunkElements = size_t{1} << 20;

std::string_view WithoutPrefix(std::string_view name) {
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

// The tensor's shape in a file: unpadded, and vectors with one dimension.
std::vector<uint64_t> FileShape(const ParamTensor& tensor) {
  const auto rows = static_cast<uint64_t>(tensor.unpadded_rows);
  if (tensor.is_vector) return {rows};
  return {rows, static_cast<uint64_t>(tensor.shape[1])};
}

bool IsFloat(std::string_view dtype) { return dtype == "F32" || dtype == "BF16" || dtype == "F16"; }

bool IsMask(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

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
  std::vector<std::string> notes;
  const ModelSpec found = ReadHuggingFaceConfig(config, &notes);
  const auto check = [&](const char* key, auto got, auto expected) {
    if (got != expected) {
      ThrowUsage(
          "{}: {} is {}, but the model to train has {}; train with --model {} or use weights "
          "of the same model",
          config.string(), key, got, expected, config.parent_path().string());
    }
  };
  check("n_layer", found.layers, spec.layers);
  check("n_embd", found.hidden, spec.hidden);
  check("n_head", found.heads, spec.heads);
  check("n_inner", found.ffn, spec.ffn);
  check("vocab_size", found.vocab, spec.vocab);
  check("n_positions", found.positions, spec.positions);
  check("layer_norm_epsilon", found.layer_norm_eps, spec.layer_norm_eps);
}

}  // namespace

HfWeightsSource::HfWeightsSource(const fs::path& folder, const ModelSpec& spec,
                                 std::span<const ParamTensor> table)
    : places_(table.size()) {
  std::error_code ignored;
  if (fs::exists(folder / kConfigFile, ignored)) CheckSameModel(folder / kConfigFile, spec);
  OpenFiles(folder);

  std::unordered_map<std::string_view, size_t> index_of;
  for (size_t i = 0; i < table.size(); ++i) {
    index_of.emplace(WithoutPrefix(table[i].name), i);
    elements_.push_back(table[i].elements());
  }
  for (const SafetensorsFile& file : files_) {
    for (const SafetensorsEntry& entry : file.entries()) AddEntry(file, entry, index_of, table);
  }
  Place wte;
  for (size_t i = 0; i < table.size(); ++i) {
    if (places_[i].entry == nullptr) {
      ThrowUsage("{}: tensor '{}' of shape {} is missing", files_.front().path().string(),
                 table[i].name, FormatShape(FileShape(table[i])));
    }
    if (table[i].role == TensorRole::kWte) wte = places_[i];
  }
  if (head_.entry != nullptr) CheckTiedHead(head_, wte);
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

void HfWeightsSource::AddEntry(const SafetensorsFile& file, const SafetensorsEntry& entry,
                               const std::unordered_map<std::string_view, size_t>& index_of,
                               std::span<const ParamTensor> table) {
  if (IsMask(entry.name)) return;
  Place* place = &head_;
  if (entry.name != "lm_head.weight") {
    const auto found = index_of.find(WithoutPrefix(entry.name));
    if (found == index_of.end()) {
      ThrowUsage("{}: tensor '{}' is not part of the model", file.path().string(),
                 Printable(entry.name));
    }
    place = &places_[found->second];
    const auto expected = FileShape(table[found->second]);
    if (entry.shape != expected) {
      ThrowUsage("{}: tensor '{}' has shape {}, expected {}", file.path().string(),
                 Printable(entry.name), FormatShape(entry.shape), FormatShape(expected));
    }
  }
  if (!IsFloat(entry.dtype)) {
    ThrowUsage("{}: tensor '{}' has dtype {}, expected F32, BF16 or F16", file.path().string(),
               Printable(entry.name), entry.dtype);
  }
  if (place->entry != nullptr) {
    ThrowUsage("{}: tensor '{}' is there twice, also as '{}' in {}", file.path().string(),
               Printable(entry.name), Printable(place->entry->name), place->file->path().string());
  }
  *place = {&file, &entry};
}

void HfWeightsSource::CheckTiedHead(const Place& head, const Place& wte) const {
  bool same = head.entry->shape == wte.entry->shape;
  std::vector<float> a, b;
  for (uint64_t begin = 0; same && begin < wte.entry->elements; begin += a.size()) {
    a.resize(std::min<uint64_t>(kChunkElements, wte.entry->elements - begin));
    b.resize(a.size());
    head.file->ReadFloats(*head.entry, begin, a);
    wte.file->ReadFloats(*wte.entry, begin, b);
    // By bytes: not-a-number is equal to itself.
    same = std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
  if (!same) {
    ThrowUsage(
        "{}: 'lm_head.weight' differs from '{}': a model with a head of its own is not supported, "
        "the head must be tied to the token embedding",
        head.file->path().string(), Printable(wte.entry->name));
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
