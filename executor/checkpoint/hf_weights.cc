#include "executor/checkpoint/hf_weights.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <unordered_map>
#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_section.h"
#include "core/base/json_source.h"
#include "core/base/long_work.h"
#include "core/families/load_model.h"
#include "core/model/model_fields.h"
#include "executor/checkpoint/safetensors.h"
#include "text/files/mapped_file.h"

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
  std::error_code ignored;
  if (foreign.empty() && !Exists(folder / kConfigFile) && fs::is_directory(folder, ignored)) {
    ThrowUsage("{}: {}", folder.string(), WhatInsteadOfModel(folder));
  }
  ThrowUsage(
      "{}: holds neither {} nor {}{}; weights in another format become it with transformers' "
      "save_pretrained(FOLDER, safe_serialization=True)",
      folder.string(), kWeightsFile, kWeightsIndexFile,
      foreign.empty() ? "" : fmt::format(", only {}, which is not read", foreign));
}

std::string WeightsDigest(const fs::path& folder) {
  ChecksumStream digest;
  for (const fs::path& path : FindWeightFiles(folder).files) {
    const MappedFile file = MappedFile::Open(path);
    constexpr uint64_t kAtOnce = uint64_t{64} << 20;
    for (uint64_t at = 0; at < file.size(); at += kAtOnce) {
      ThrowIfInterrupted();
      digest.Add(file, at, std::min<uint64_t>(kAtOnce, file.size() - at));
    }
  }
  const Checksum sum = digest.Get();
  return fmt::format("{:016x}{:016x}", sum[0], sum[1]);
}

std::vector<HfTensor> HfTensors(std::span<const ParamTensor> table) {
  std::vector<HfTensor> tensors;
  for (size_t i = 0; i < table.size(); ++i) {
    if (!table[i].saved) continue;
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

namespace {

namespace fs = std::filesystem;

// Elements of two tensors that are compared at a time.
constexpr uint64_t kCompareElements = uint64_t{1} << 20;

std::string_view WithoutPrefix(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

bool IsFloat(std::string_view dtype) { return dtype == "F32" || dtype == "BF16" || dtype == "F16"; }

// The place of a published tensor: element `begin` of an entry; null while it was not seen.
struct Place {
  const SafetensorsFile* file = nullptr;
  const SafetensorsEntry* entry = nullptr;
  uint64_t begin = 0;
};

// The mean of a tensor's rows.
std::vector<float> MeanRow(const Place& place, uint64_t rows, uint64_t cols) {
  std::vector<double> sums(cols, 0.0);
  std::vector<float> row(cols);
  for (uint64_t r = 0; r < rows; ++r) {
    place.file->ReadFloats(*place.entry, r * cols, row);
    for (uint64_t c = 0; c < cols; ++c) sums[c] += row[c];
  }
  for (uint64_t c = 0; c < cols; ++c)
    row[c] = static_cast<float>(sums[c] / static_cast<double>(rows));
  return row;
}

// Whether a parameter has a row for each token.
bool HasTokenRows(const ParamTensor& param, const ModelSpec& spec) {
  return !param.is_vector && param.unpadded_rows == spec.vocab &&
         param.shape[0] == spec.padded_vocab &&
         (param.use == ParamUse::kHead || param.layer == kEmbeddingLayer);
}

void CheckSameModel(const fs::path& config, const ModelSpec& spec, bool resizes) {
  const std::string source = config.string();
  const std::string fix = fmt::format("train with ⟦model⟧ {} or use weights of the same model",
                                      config.parent_path().string());
  const JsonNode root = ParseJsonText(ReadTextFile(config), source);
  JsonSection section(&root, "", source);
  const std::string family(spec.family->name());
  if (const auto type = section.String("model_type"); type && *type != family) {
    section.Fail("model_type", "is \"{}\", but the model to train is a \"{}\"; {}",
                 Printable(*type), family, fix);
  }
  const ModelFamily* const families[] = {spec.family};
  const ModelSpec found = ReadHuggingFaceConfig(config, nullptr, families);
  std::string differences;
  ForEachField(found, spec, [&](const ModelField& field, const auto& got, const auto& expected) {
    const std::string_view key = spec.family->ConfigKey(field.key);
    if (!field.shape || IsComputed(field, spec) || key.empty() || got == expected) return;
    if (resizes && field.key == std::string_view("vocab")) return;
    differences += differences.empty() ? fmt::format("{} is {}, but the model to train has {}", key,
                                                     FieldText(got), FieldText(expected))
                                       : fmt::format(", {} is {}, not {}", key, FieldText(got),
                                                     FieldText(expected));
  });
  if (!differences.empty()) ThrowUsage("{}: {}; {}", source, differences, fix);
}

// Finds each published tensor in the files.
class Matcher {
 public:
  Matcher(const WeightFiles& weights, const ModelSpec& spec, std::span<const ParamTensor> table,
          std::span<const HfTensor> tensors, bool resizes)
      : weights_(weights),
        spec_(spec),
        table_(table),
        resizes_(resizes),
        family_(*spec.family),
        tensors_(tensors),
        places_(tensors.size()),
        twins_(tensors.size()) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      index_of_.emplace(WithoutPrefix(tensors[i].name, family_.optional_prefix()), i);
      const ParamTensor& param = table[tensors[i].param];
      const auto stem_of = [&](const char* in_layer) {
        const std::string name = NameInLayer(param, in_layer);
        return std::string(WithoutPrefix(name, family_.optional_prefix()));
      };
      if (*param.twin != '\0') twin_of_.emplace(stem_of(param.twin), i);
      if (*param.fused != '\0') fused_of_[stem_of(param.fused)].push_back(i);
    }
  }

  void Add(const SafetensorsFile& file) {
    for (const SafetensorsEntry& entry : file.entries()) {
      if (family_.PassedOver(entry.name)) continue;
      const std::string_view stem = WithoutPrefix(entry.name, family_.optional_prefix());
      if (const auto twin = twin_of_.find(std::string(stem)); twin != twin_of_.end()) {
        SetPlace(file, entry, tensors_[twin->second], twins_[twin->second]);
        continue;
      }
      if (const auto fused = fused_of_.find(std::string(stem)); fused != fused_of_.end()) {
        SetFused(file, entry, fused->second);
        continue;
      }
      const auto found = index_of_.find(stem);
      if (found == index_of_.end()) {
        ThrowUsage(
            "{}: tensor '{}' is not part of the model; use weights of the model that is trained",
            file.path().string(), Printable(entry.name));
      }
      SetPlace(file, entry, tensors_[found->second], places_[found->second]);
    }
  }

  // By tensor. Throws if one is missing, or if two names stand for different values.
  std::vector<Place> Take() {
    for (size_t i = 0; i < places_.size(); ++i) {
      if (places_[i].entry == nullptr) {
        // Under its second name alone, as some programs save it.
        if (twins_[i].entry == nullptr) ThrowMissing(tensors_[i]);
        places_[i] = twins_[i];
      } else if (twins_[i].entry != nullptr) {
        CheckTwin(twins_[i], places_[i]);
      }
    }
    return std::move(places_);
  }

 private:
  void SetPlace(const SafetensorsFile& file, const SafetensorsEntry& entry, const HfTensor& tensor,
                Place& place) const {
    const bool fewer = resizes_ && HasTokenRows(table_[tensor.param], spec_) &&
                       entry.shape.size() == 2 && entry.shape[0] > 0 &&
                       entry.shape[0] < tensor.shape[0] && entry.shape[1] == tensor.shape[1];
    if (entry.shape != tensor.shape && !fewer) ThrowShape(file, entry, tensor.shape);
    CheckNew(file, entry, place);
    place = {&file, &entry};
  }

  // All experts of a layer in one tensor; `parts` are their published tensors.
  void SetFused(const SafetensorsFile& file, const SafetensorsEntry& entry,
                const std::vector<size_t>& parts) {
    const ParamTensor& param = table_[tensors_[parts.front()].param];
    const auto experts = static_cast<uint64_t>(spec_.experts);
    const std::vector<uint64_t> shape = {experts, static_cast<uint64_t>(param.shape[0]) / experts,
                                         static_cast<uint64_t>(param.shape[1])};
    if (entry.shape != shape) ThrowShape(file, entry, shape);
    for (const size_t part : parts) {
      CheckNew(file, entry, places_[part]);
      places_[part] = {&file, &entry, tensors_[part].begin};
    }
  }

  [[noreturn]] static void ThrowShape(const SafetensorsFile& file, const SafetensorsEntry& entry,
                                      const std::vector<uint64_t>& expected) {
    ThrowUsage(
        "{}: tensor '{}' has shape {}, expected {}; use weights of the model that is trained",
        file.path().string(), Printable(entry.name), FormatShape(entry.shape),
        FormatShape(expected));
  }

  // Checks the dtype of an entry, and that its values have no place yet.
  static void CheckNew(const SafetensorsFile& file, const SafetensorsEntry& entry,
                       const Place& place) {
    if (!IsFloat(entry.dtype)) {
      ThrowUsage(
          "{}: tensor '{}' of shape {} has dtype {}, expected F32, BF16 or F16; save the weights "
          "in one of them with transformers",
          file.path().string(), Printable(entry.name), FormatShape(entry.shape), entry.dtype);
    }
    if (place.entry != nullptr) {
      ThrowUsage("{}: tensor '{}' is there twice, also as '{}' in {}; keep one of them",
                 file.path().string(), Printable(entry.name), Printable(place.entry->name),
                 place.file->path().string());
    }
  }

  [[noreturn]] void ThrowMissing(const HfTensor& tensor) const {
    // An index may know where it should be, with the prefix or without.
    const auto stem = WithoutPrefix(tensor.name, family_.optional_prefix());
    const auto named = std::find_if(
        weights_.file_of_tensor.begin(), weights_.file_of_tensor.end(), [&](const auto& entry) {
          return WithoutPrefix(entry.first, family_.optional_prefix()) == stem;
        });
    const auto missing =
        fmt::format("tensor '{}' of shape {} is missing", tensor.name, FormatShape(tensor.shape));
    if (named != weights_.file_of_tensor.end()) {
      ThrowUsage("{}: {}, which {} says is there; get both again",
                 (weights_.index.parent_path() / named->second).string(), missing,
                 weights_.index.filename().string());
    }
    const fs::path& where = weights_.index.empty() ? weights_.files.front() : weights_.index;
    if (tensor.name == "lm_head.weight" && !spec_.tied_head) {
      ThrowUsage(
          "{}: {}: the head has weights of its own unless config.json says "
          "\"tie_word_embeddings\": "
          "true, which is false where {} does not say it; add the key if the token embedding is "
          "the "
          "head, else use weights of the model that is trained, whole",
          where.string(), missing, spec_.family->name());
    }
    ThrowUsage("{}: {}; use weights of the model that is trained, whole", where.string(), missing);
  }

  void CheckTwin(const Place& twin, const Place& place) const {
    if (SameValues(twin, place)) return;
    ThrowUsage(
        "{}: '{}' differs from '{}', and the model ties the two; weights with a head of their own "
        "need a config.json that says so, where the family has such a model",
        twin.file->path().string(), Printable(twin.entry->name), Printable(place.entry->name));
  }

  // By bytes: not-a-number is equal to itself.
  static bool SameValues(const Place& a, const Place& b) {
    const bool same_dtype = a.entry->dtype == b.entry->dtype;
    std::vector<float> values_a, values_b;
    const uint64_t elements = a.entry->elements;
    for (uint64_t begin = 0; begin < elements; begin += kCompareElements) {
      const uint64_t count = std::min(kCompareElements, elements - begin);
      ThrowIfInterrupted();
      if (same_dtype) {
        if (!SameBytes(a, b, begin, count)) return false;
        continue;
      }
      values_a.resize(count);
      values_b.resize(count);
      a.file->ReadFloats(*a.entry, begin, values_a);
      b.file->ReadFloats(*b.entry, begin, values_b);
      if (std::memcmp(values_a.data(), values_b.data(), count * sizeof(float)) != 0) return false;
    }
    return true;
  }
  static bool SameBytes(const Place& a, const Place& b, uint64_t begin, uint64_t count) {
    const uint64_t size = (a.entry->end - a.entry->begin) / a.entry->elements;
    const uint64_t at = begin * size, bytes = count * size;
    for (const Place& place : {a, b}) place.file->Prefetch(*place.entry, at, bytes);
    const bool same = std::memcmp(a.file->Bytes(*a.entry).data() + at,
                                  b.file->Bytes(*b.entry).data() + at, bytes) == 0;
    for (const Place& place : {a, b}) place.file->DropResident(*place.entry, at, bytes);
    return same;
  }

  const WeightFiles& weights_;
  const ModelSpec& spec_;
  std::span<const ParamTensor> table_;
  bool resizes_;
  const ModelFamily& family_;
  std::span<const HfTensor> tensors_;
  std::unordered_map<std::string_view, size_t> index_of_;  // views of the tensors' names
  std::unordered_map<std::string, size_t> twin_of_;
  std::unordered_map<std::string, std::vector<size_t>> fused_of_;  // without the optional prefix
  std::vector<Place> places_, twins_;                              // by tensor
};

}  // namespace

HfWeightsSource::HfWeightsSource(const fs::path& folder, const ModelSpec& spec,
                                 std::span<const ParamTensor> table, bool resizes)
    : pieces_(table.size()) {
  std::error_code ignored;
  if (fs::exists(folder / kConfigFile, ignored))
    CheckSameModel(folder / kConfigFile, spec, resizes);
  const WeightFiles weights = FindWeightFiles(folder);
  for (const fs::path& file : weights.files) files_.push_back(SafetensorsFile::Open(file));
  const std::vector<HfTensor> tensors = HfTensors(table);
  Matcher matcher(weights, spec, table, tensors, resizes);
  for (const SafetensorsFile& file : files_) matcher.Add(file);
  const std::vector<Place> places = matcher.Take();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const HfTensor& tensor = tensors[i];
    Piece piece = {tensor.begin, tensor.begin + tensor.elements, places[i].file, places[i].entry,
                   places[i].begin};
    piece.mean_begin = tensor.begin + places[i].entry->elements;
    if (piece.mean_begin < piece.end) {
      const std::vector<uint64_t>& shape = places[i].entry->shape;
      piece.mean = MeanRow(places[i], shape[0], shape[1]);
    }
    pieces_[tensor.param].push_back(std::move(piece));
  }
  for (const ParamTensor& param : table) elements_.push_back(param.elements());
}

void HfWeightsSource::Read(const TensorRange& range, std::span<float> out) const {
  const auto tensor = static_cast<size_t>(range.tensor);
  ZEROPLAN_CHECK(tensor < pieces_.size() && out.size() == range.count &&
                     range.begin <= elements_[tensor] &&
                     range.count <= elements_[tensor] - range.begin,
                 "tensor {}, elements {} + {}", range.tensor, range.begin, range.count);
  uint64_t at = range.begin;
  if (range.state == StateKind::kMaster) {
    for (const Piece& piece : pieces_[tensor]) {
      const uint64_t end = std::min(piece.end, range.begin + range.count);
      if (at < piece.begin || at >= end) continue;
      if (const uint64_t read = std::min(end, piece.mean_begin); at < read) {
        piece.file->ReadFloats(*piece.entry, piece.entry_begin + at - piece.begin,
                               out.subspan(at - range.begin, read - at));
        at = read;
      }
      for (; at < end; ++at) {
        out[at - range.begin] = piece.mean[(at - piece.mean_begin) % piece.mean.size()];
      }
    }
  }
  std::fill(out.begin() + static_cast<ptrdiff_t>(at - range.begin), out.end(), 0.0f);
}

std::string HfWeightsSource::Describe() const {
  std::set<std::string> dtypes;
  for (const auto& pieces : pieces_) {
    for (const Piece& piece : pieces) dtypes.insert(piece.entry->dtype);
  }
  return fmt::format("{} file{}, {}", files_.size(), files_.size() == 1 ? "" : "s",
                     fmt::join(dtypes, " and "));
}

}  // namespace zeroplan
