#include "executor/checkpoint/hf_export.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/log.h"
#include "core/base/long_work.h"
#include "core/base/units.h"
#include "core/families/adapter_config.h"
#include "core/families/load_model.h"
#include "executor/checkpoint/adapter_weights.h"
#include "executor/checkpoint/hf_weights.h"
#include "executor/checkpoint/safetensors.h"
#include "text/files/mapped_file.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// tokenizer.json, tokenizer.model, tokenizer.model.v3, LICENSE.txt, USE_POLICY.md, ...
constexpr std::string_view kPrefixes[] = {"tokenizer.", "LICENSE", "LICENCE", "NOTICE",
                                          "USE_POLICY"};
constexpr const char* kGenerationConfig = "generation_config.json";
constexpr std::string_view kTemplateFolder = "additional_chat_templates";
constexpr std::string_view kNames[] = {kGenerationConfig,
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "merges.txt",
                                       "chat_template.jinja",
                                       "chat_template.json",
                                       "tekken.json"};

bool HasPrefix(std::string_view name) {
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

bool GoesAlong(std::string_view name) {
  return HasPrefix(name) ||
         std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

// Whether it goes with one tokenizer: two tokenizers' files beside one another make a third.
bool IsOfTokenizer(std::string_view name) {
  return name != kGenerationConfig && (name.starts_with("tokenizer.") || !HasPrefix(name));
}

// The files that go along, by name. Links are followed within the folder, and in Hugging Face's
// cache, whose folders are links to files beside them: what else a link leads to was not published
// with the model.
struct CompanionFiles {
  std::vector<fs::path> files;
  std::vector<fs::path> elsewhere;  // links out of the folder, left out
  uint64_t bytes = 0;               // of files
};

bool LeadsAway(const fs::path& link, const fs::path& folder) {
  std::error_code error;
  const fs::path target = fs::canonical(link, error), here = fs::canonical(folder, error);
  const auto is_in = [&](const fs::path& outer) {
    return std::mismatch(outer.begin(), outer.end(), target.begin(), target.end()).first ==
           outer.end();
  };
  const fs::path snapshots = here.parent_path();
  return !is_in(here) &&
         !(snapshots.filename() == "snapshots" && is_in(snapshots.parent_path() / "blobs"));
}

// Adds the files of `folder` that are wanted; `model`: the folder that links may stay in.
template <typename Wanted>
void FindCompanions(const fs::path& folder, const fs::path& model, Wanted is_wanted,
                    CompanionFiles* found) {
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code gone;  // a dangling link is no file
    const fs::path& path = entry->path();
    if (!is_wanted(path) || !entry->is_regular_file(gone)) continue;
    if (LeadsAway(path, model)) {
      found->elsewhere.push_back(path);
      continue;
    }
    found->files.push_back(path);
    found->bytes += fs::file_size(path, gone);
  }
  if (error) ThrowRuntime("{}: cannot list the folder: {}", folder.string(), error.message());
}

CompanionFiles Companions(const fs::path& folder) {
  CompanionFiles found;
  if (folder.empty()) return found;
  FindCompanions(
      folder, folder, [](const fs::path& path) { return GoesAlong(path.filename().native()); },
      &found);
  const fs::path templates = folder / kTemplateFolder;
  if (std::error_code ignored; fs::is_directory(templates, ignored)) {
    FindCompanions(
        templates, folder, [](const fs::path& path) { return path.extension() == ".jinja"; },
        &found);
  }
  std::sort(found.files.begin(), found.files.end());
  std::sort(found.elsewhere.begin(), found.elsewhere.end());
  return found;
}

// The folder's config of that name; an empty object if there is none that any reader of JSON takes.
Json ConfigIn(const fs::path& folder, const char* name = kConfigFile) {
  std::error_code ignored;
  if (folder.empty() || !fs::exists(folder / name, ignored)) return Json::object();
  Json config = Json::parse(ReadTextFile(folder / name), nullptr, /*allow_exceptions=*/false);
  return config.is_object() ? config : Json::object();
}

// The source's generation_config.json with `stop_tokens` behind those that it has. Without one,
// transformers takes these tokens of config.json.
std::string GenerationConfig(const fs::path& source, const std::vector<int32_t>& stop_tokens) {
  Json config = ConfigIn(source, kGenerationConfig);
  if (config.empty()) {
    std::error_code ignored;
    if (!source.empty() && fs::exists(source / kGenerationConfig, ignored)) {
      LogWarning("{}: is no JSON object that other programs read; what is saved has none of it",
                 (source / kGenerationConfig).string());
    }
    const Json model = ConfigIn(source);
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
      if (model.contains(key) && !model[key].is_null()) config[key] = model[key];
    }
  }
  // transformers pads with the first where no other token is named.
  Json& ends = config["eos_token_id"];
  if (!ends.is_array()) ends = ends.is_number() ? Json::array({ends}) : Json::array();
  for (const int32_t token : stop_tokens) {
    if (std::find(ends.begin(), ends.end(), token) == ends.end()) ends.push_back(token);
  }
  return config.dump(2) + "\n";
}

constexpr size_t kCopyBytes = size_t{4} << 20;
constexpr size_t kChunkElements = size_t{1} << 20;
// What rounds to more is infinity in fp16.
constexpr float kPastF16 = 65520;

// Files that are on disk under temporary names, in the order in which they take their places.
class StagedFiles {
 public:
  StagedFiles(const fs::path& folder, IoHook* hook) : folder_(folder), hook_(hook) {}

  // The temporary name to write to.
  const fs::path& Add(const std::string& name) {
    return files_.emplace_back(std::make_unique<TemporaryFile>(folder_ / name))->path();
  }
  void AddText(const std::string& name, const std::string& text) {
    DurableFile file = DurableFile::Create(Add(name), hook_);
    file.WriteAt(0, std::as_bytes(std::span(text)));
    file.Finish();
  }
  // What goes along. "", or why not all of it is here.
  std::string AddCompanions(const HfExportOptions& options) {
    std::map<std::string, fs::path> files;
    try {
      AddFilesOf(options.source, &files);
      if (std::error_code error; fs::exists(options.second_source / "tokenizer.json", error)) {
        std::erase_if(files, [](const auto& file) { return IsOfTokenizer(file.first); });
      }
      AddFilesOf(options.second_source, &files);
      if (!options.stop_tokens.empty()) {
        files.erase(kGenerationConfig);
        AddText(kGenerationConfig, GenerationConfig(options.source, options.stop_tokens));
      }
      for (const auto& [name, file] : files) AddCopy(name, file);
    } catch (const Error& failure) {
      return failure.what();
    }
    return "";
  }
  void Commit() {
    for (const auto& file : files_) file->Commit(hook_);
    files_.clear();
  }

 private:
  void AddFilesOf(const fs::path& source, std::map<std::string, fs::path>* files) const {
    std::error_code error;
    if (source.empty() || fs::equivalent(source, folder_, error)) return;
    for (const fs::path& file : Companions(source).files) {
      (*files)[file.lexically_relative(source).string()] = file;
    }
  }
  void AddCopy(const std::string& name, const fs::path& from) {
    MakeFolders((folder_ / name).parent_path(), hook_);
    const MappedFile file = MappedFile::Open(from);
    auto temporary = std::make_unique<TemporaryFile>(folder_ / name);
    DurableFile copy = DurableFile::Create(temporary->path(), hook_);
    for (uint64_t at = 0; at < file.size(); at += kCopyBytes) {
      copy.WriteAt(at, file.bytes().subspan(at, std::min<uint64_t>(kCopyBytes, file.size() - at)));
    }
    copy.Finish();
    files_.push_back(std::move(temporary));
  }

  const fs::path& folder_;
  IoHook* hook_;
  std::vector<std::unique_ptr<TemporaryFile>> files_;
};

// The weights are in place by then, so that a companion's failure is no matter of usage.
void ThrowIfMissing(const std::string& companion) {
  if (!companion.empty()) ThrowRuntime("{}", companion);
}

void Remove(const fs::path& path, IoHook* hook) {
  std::error_code error(hook == nullptr ? 0 : hook->Before(IoStep::kRemove, path),
                        std::generic_category());
  if (!error) fs::remove(path, error);
  if (error) ThrowRuntime("{}: cannot remove: {}", path.string(), error.message());
}

// What an earlier save into several files left, index first: from then on nothing says that the
// others belong together.
void RemoveShards(const fs::path& folder, IoHook* hook) {
  std::vector<fs::path> old;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (IsWeightShardName(entry->path().filename().native())) old.push_back(entry->path());
  }
  if (fs::exists(folder / kWeightsIndexFile, error)) {
    old.insert(old.begin(), folder / kWeightsIndexFile);
  }
  for (const fs::path& path : old) Remove(path, hook);
  if (!old.empty()) SyncFolder(folder, hook);
}

// Copies tensors from `source` to files, and counts what is no number, or none that fp16 can hold.
class TensorCopier {
 public:
  TensorCopier(const StateSource& source, Dtype dtype) : source_(source), dtype_(dtype) {}

  void WriteFile(const fs::path& path, std::span<const HfTensor> tensors, IoHook* hook,
                 std::map<std::string, std::string> metadata = {}) {
    std::vector<SafetensorsPlan::Tensor> planned;
    for (const HfTensor& tensor : tensors) planned.push_back({tensor.name, tensor.shape, dtype_});
    SafetensorsWriter file(path, PlanSafetensors(planned, std::move(metadata)), hook);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const HfTensor& tensor = tensors[i];
      for (uint64_t begin = 0; begin < tensor.elements; begin += chunk_.size()) {
        ThrowIfInterrupted();
        chunk_.resize(std::min<uint64_t>(kChunkElements, tensor.elements - begin));
        source_.Read({static_cast<int>(tensor.param), StateKind::kMaster, tensor.begin + begin,
                      chunk_.size()},
                     chunk_);
        CountBad();
        file.WriteAt(i, begin, chunk_);
      }
    }
    file.Finish();
  }
  void WarnOfBad(const fs::path& folder) const {
    if (not_finite_ > 0) {
      LogWarning("{}: {} values are NaN or infinite", folder.string(), not_finite_);
    }
    if (overflows_ == 0) return;
    LogWarning(
        "{}: {} values past fp16's largest, 65504, are saved as infinity; ⟦save_dtype⟧ bf16 has "
        "fp32's range",
        folder.string(), overflows_);
  }

 private:
  void CountBad() {
    for (const float value : chunk_) {
      if (!std::isfinite(value)) {
        ++not_finite_;
      } else if (dtype_ == Dtype::kF16 && std::abs(value) >= kPastF16) {
        ++overflows_;
      }
    }
  }

  const StateSource& source_;
  Dtype dtype_;
  std::vector<float> chunk_;
  uint64_t not_finite_ = 0, overflows_ = 0;
};

std::string IndexText(std::span<const HfTensor> tensors, std::span<const size_t> first,
                      uint64_t element_bytes) {
  nlohmann::ordered_json index;
  uint64_t total = 0;
  auto& map = index["weight_map"] = nlohmann::ordered_json::object();
  for (size_t i = 0, file = 0; i < tensors.size(); ++i) {
    if (file + 1 < first.size() && i == first[file + 1]) ++file;
    map[tensors[i].name] = WeightShardName(file + 1, first.size());
    total += tensors[i].elements * element_bytes;
  }
  nlohmann::ordered_json out = {{"metadata", {{"total_size", total}}}};
  out.update(index);
  return out.dump(2) + "\n";
}

}  // namespace

uint64_t HfWeightsBytes(std::span<const ParamTensor> table, Dtype dtype) {
  uint64_t bytes = 0;
  for (const HfTensor& tensor : HfTensors(table)) bytes += tensor.elements * DtypeBytes(dtype);
  return bytes;
}

std::vector<size_t> CutIntoShards(std::span<const uint64_t> bytes, uint64_t max_bytes) {
  std::vector<size_t> first;
  uint64_t held = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i == 0 || bytes[i] > max_bytes - std::min(held, max_bytes)) {
      first.push_back(i);
      held = 0;
    }
    held += bytes[i];
  }
  return first;
}

void WriteHfWeights(const fs::path& folder, const ModelSpec& spec,
                    std::span<const ParamTensor> table, const StateSource& source,
                    const HfExportOptions& options) {
  const std::vector<HfTensor> tensors = HfTensors(table);
  std::vector<uint64_t> bytes;
  bytes.reserve(tensors.size());
  for (const HfTensor& tensor : tensors) {
    bytes.push_back(tensor.elements * DtypeBytes(options.dtype));
  }
  const std::vector<size_t> first = CutIntoShards(bytes, options.max_shard_bytes);
  const bool several = first.size() > 1;

  MakeFolders(folder, options.hook);
  StagedFiles staged(folder, options.hook);
  TensorCopier copier(source, options.dtype);
  for (size_t i = 0; i < first.size(); ++i) {
    const size_t end = i + 1 < first.size() ? first[i + 1] : tensors.size();
    const fs::path& file =
        staged.Add(several ? WeightShardName(i + 1, first.size()) : std::string(kWeightsFile));
    copier.WriteFile(file, std::span(tensors).subspan(first[i], end - first[i]), options.hook);
  }
  if (several) {
    staged.AddText(kWeightsIndexFile, IndexText(tensors, first, DtypeBytes(options.dtype)));
  }
  copier.WarnOfBad(folder);
  const std::string missing = staged.AddCompanions(options);
  staged.AddText(kConfigFile, CompanionConfig(spec, options.source, options.dtype));

  // model.safetensors goes before shards: it counts from the moment it is there, and until it is
  // gone.
  if (several) RemoveShards(folder, options.hook);
  staged.Commit();
  if (!several) {
    RemoveShards(folder, options.hook);
  } else if (std::error_code ignored; fs::exists(folder / kWeightsFile, ignored)) {
    Remove(folder / kWeightsFile, options.hook);
    SyncFolder(folder, options.hook);
  }
  ThrowIfMissing(missing);
}

void WriteAdapter(const fs::path& folder, const ModelSpec& spec, std::span<const ParamTensor> table,
                  const StateSource& source, const std::string& base,
                  const std::string& base_digest, const HfExportOptions& options) {
  std::vector<HfTensor> tensors = AdapterTensors(table);
  for (HfTensor& tensor : tensors) tensor.name.insert(0, kAdapterPrefix);
  MakeFolders(folder, options.hook);
  StagedFiles staged(folder, options.hook);
  TensorCopier copier(source, options.dtype);
  std::map<std::string, std::string> metadata;
  if (!base_digest.empty()) metadata.emplace(kBaseDigestKey, base_digest);
  copier.WriteFile(staged.Add(kAdapterWeightsFile), tensors, options.hook, std::move(metadata));
  copier.WarnOfBad(folder);
  const std::string missing = staged.AddCompanions(options);
  staged.AddText(kAdapterConfigFile, WriteAdapterConfig(spec, base));
  staged.Commit();
  ThrowIfMissing(missing);
}

namespace {

const char* TorchName(Dtype dtype) {
  return dtype == Dtype::kBF16 ? "bfloat16" : dtype == Dtype::kF16 ? "float16" : "float32";
}

}  // namespace

std::string CompanionConfig(const ModelSpec& spec, const fs::path& source, Dtype dtype) {
  Json config = ConfigIn(source);
  if (config.empty()) config = Json::parse(WriteHuggingFaceConfig(spec));
  // transformers 4 writes "torch_dtype", 5 "dtype"; both read the first.
  // What --resize-embeddings changed.
  if (const std::string_view vocab = spec.family->ConfigKey("vocab"); !vocab.empty()) {
    config[std::string(vocab)] = spec.vocab;
  }
  // An adapter that trained embedding and head apart unties the two.
  const std::string tied(spec.family->ConfigKey("tied_head"));
  if (!spec.tied_head && !tied.empty() && config.contains(tied)) config[tied] = false;
  // What a longer ⟦seq_len⟧ did. YaRN may count its frequencies by them.
  const std::string positions(spec.family->ConfigKey("positions"));
  if (!positions.empty() && spec.rope_scaling != RotaryScaling::kYarn) {
    config[positions] = spec.positions;
  }
  if (config.contains("dtype")) config["dtype"] = TorchName(dtype);
  if (config.contains("torch_dtype") || !config.contains("dtype")) {
    config["torch_dtype"] = TorchName(dtype);
  }
  return config.dump(2) + "\n";
}

uint64_t CheckCompanions(const fs::path& source) {
  constexpr uint64_t kMostBytes = uint64_t{1} << 30;
  const CompanionFiles companions = Companions(source);
  for (const fs::path& file : companions.files) {
    std::error_code ignored;
    const uint64_t bytes = fs::file_size(file, ignored);
    if (bytes <= kMostBytes) continue;
    ThrowUsage(
        "{}: has {}, and goes along with the saved weights, as files of tokenizers and licences "
        "do, which have at most {}; get the file again, or remove it",
        file.string(), FormatBytes(bytes), FormatBytes(kMostBytes));
  }
  for (const fs::path& link : companions.elsewhere) {
    LogWarning(
        "{}: leads out of the folder, so it does not go along with the saved weights; put a copy "
        "in its place if it belongs to the model",
        link.string());
  }
  return companions.bytes;
}

void CheckExportFolder(const fs::path& folder, const fs::path& source, std::string_view option) {
  std::vector<std::string> names = {kConfigFile, kWeightsFile, kWeightsIndexFile};
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (IsWeightShardName(name)) names.push_back(name);
  }
  names.push_back(kGenerationConfig);
  for (const fs::path& file : Companions(source).files) {
    names.push_back(file.lexically_relative(source).string());
  }
  // A folder with a config under its temporary name alone is what a write left that was killed.
  if (!fs::exists(folder / kConfigFile, error) &&
      fs::exists(TemporaryPath(folder / kConfigFile), error)) {
    return;
  }
  for (const std::string& name : names) {
    if (!fs::exists(folder / name, error)) continue;
    ThrowUsage(
        "{} {}: holds {}, and no checkpoints of a run: it would be replaced; name another folder, "
        "or move it away",
        option, folder.string(), name);
  }
}

}  // namespace zeroplan
