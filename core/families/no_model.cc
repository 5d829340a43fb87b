// What lies where a model's folder was looked for, or a model of an architecture that is not
// trained: what it is, and what to do.
#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <optional>
#include <system_error>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/limits.h"
#include "core/base/strings.h"
#include "core/base/units.h"
#include "core/families/adapter_config.h"
#include "core/families/load_model.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostNames = 10'000;

std::vector<std::string> NamesBelow(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end;
       !error && at != end && names.size() < kMostNames; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool NumberFollows(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) && name.size() > prefix.size() &&
         std::isdigit(static_cast<unsigned char>(name[prefix.size()])) != 0;
}

// A text of a JSON file; "" where there is none.
std::string TextIn(const fs::path& file, std::string_view key) {
  try {
    const JsonNode root = ParseJsonText(ReadTextFile(file), file.string());
    const JsonNode* node = root.Find(key);
    return node != nullptr && node->is_string() ? node->scalar.text() : "";
  } catch (const Error&) {
    return "";
  }
}

std::string AdapterText(const fs::path& folder) {
  const std::string base = TextIn(folder / kAdapterConfigFile, "base_model_name_or_path");
  const std::string below =
      base.empty() ? "the model below it" : "the model below it, " + PrintableText(base, 100);
  return fmt::format(
      "holds an adapter (LoRA), not a model; use {}, with --adapter {} beside it, or make one "
      "model of the two with 'zeroplan merge {}'",
      below, folder.string(), folder.string());
}

class FolderNames {
 public:
  explicit FolderNames(const fs::path& folder) : names_(NamesBelow(folder)) {}

  bool empty() const { return names_.empty(); }
  bool Has(std::string_view name) const {
    return std::binary_search(names_.begin(), names_.end(), name);
  }
  // The last name for which `is` holds; "": none.
  template <typename Is>
  std::string Last(Is is) const {
    const auto found = std::find_if(names_.rbegin(), names_.rend(), is);
    return found == names_.rend() ? "" : *found;
  }
  std::string Ends(std::string_view ending) const {
    return Last([&](const std::string& name) { return name.ends_with(ending); });
  }

 private:
  std::vector<std::string> names_;  // sorted
};

// Shards of PyTorch's distributed checkpoint, as FSDP and torchtitan write them.
bool HoldsShards(const FolderNames& names) {
  return names.Has(".metadata") && !names.Ends(".distcp").empty();
}

// Checkpoints of other programs.
std::string OthersText(const fs::path& folder, const FolderNames& names) {
  // A folder with a whole model is used as any other.
  if (names.Has(kConfigFile)) return "";
  const auto has = [&](std::string_view prefix) {
    return names.Last([&](const std::string& name) { return NumberFollows(name, prefix); });
  };
  if (const std::string trainer = has("checkpoint-"); !trainer.empty()) {
    return fmt::format(
        "holds checkpoints of transformers' Trainer, not a model; name one of them, such as {}",
        (folder / trainer).string());
  }
  constexpr const char* kWhereItBelongs =
      "which belong into a folder with the model's config.json and tokenizer";
  if (!has("global_step").empty() || names.Has("zero_to_fp32.py")) {
    return fmt::format(
        "holds checkpoints of DeepSpeed, not a model; its zero_to_fp32.py makes weights of them, "
        "{}",
        kWhereItBelongs);
  }
  if (!has("zero_pp_rank_").empty() || !has("mp_rank_").empty()) {
    return fmt::format(
        "is one step of DeepSpeed's checkpoints, not a model; zero_to_fp32.py in {} makes weights "
        "of "
        "it, {}",
        (folder / "..").lexically_normal().string(), kWhereItBelongs);
  }
  const std::string below = names.Last([&](const std::string& name) {
    std::error_code ignored;
    return fs::is_directory(folder / name, ignored) && HoldsShards(FolderNames(folder / name));
  });
  if (!below.empty() || HoldsShards(names)) {
    return fmt::format(
        "holds shards of PyTorch's distributed checkpoint (FSDP, torchtitan), not a model; "
        "'accelerate merge-weights {} OUT' makes weights of them, {}",
        (below.empty() ? folder : folder / below).string(), kWhereItBelongs);
  }
  if (names.Has("trainer_state.json")) {
    return "is a checkpoint of transformers' Trainer without a model's config.json and weights; "
           "name the folder that its save_model() wrote";
  }
  return "";
}

// Checkpoints, by whom they are known.
std::string CheckpointText(const fs::path& folder, const FolderNames& names) {
  constexpr const char* kOwn =
      "train continues it with its own ⟦model⟧, ⟦save⟧ {0} and ⟦resume⟧, and puts the weights "
      "beside it at the end";
  const auto is_step = [](const std::string& name) { return NumberFollows(name, "step-"); };
  if (std::string text = OthersText(folder, names); !text.empty()) return text;
  if (names.Has("checkpoints") && !FolderNames(folder / "checkpoints").Last(is_step).empty()) {
    return "holds checkpoints of a run of 'zeroplan train' that has not ended, and no weights "
           "yet; " +
           fmt::format(fmt::runtime(kOwn), folder.string());
  }
  const std::string step = names.Last(is_step);
  const bool is_one = names.Has("meta.json") && names.Has("rank-0000.safetensors");
  if (!step.empty() || is_one) {
    const fs::path run = folder / (is_one ? "../.." : "..");
    return fmt::format("is {} of 'zeroplan train', not a model; ",
                       is_one ? "a checkpoint" : "a folder of checkpoints") +
           fmt::format(fmt::runtime(kOwn), run.lexically_normal().string());
  }
  return "";
}

std::string WeightsText(const FolderNames& names) {
  if (const std::string gguf = names.Ends(".gguf"); !gguf.empty()) {
    return fmt::format(
        "holds {}: GGUF, weights for llama.cpp, which are not read; use the model that it was made "
        "of",
        gguf);
  }
  if (const std::string file = names.Ends(".safetensors"); !file.empty()) {
    return fmt::format(
        "holds {} and no {}, which says the model's shape; get that file of the model, too", file,
        kConfigFile);
  }
  for (const char* ending : {".bin", ".pt", ".pth", ".ckpt"}) {
    if (const std::string file = names.Ends(ending); !file.empty()) {
      return fmt::format(
          "holds {}, weights of PyTorch, and no {}; zeroplan reads a model's {} and safetensors, "
          "which transformers' save_pretrained(FOLDER) writes",
          file, kConfigFile, kConfigFile);
    }
  }
  return "";
}

}  // namespace

std::string CheckpointOfOthers(const fs::path& folder) {
  const FolderNames names(folder);
  if (std::string text = OthersText(folder, names); !text.empty()) return text;
  if (!names.Has("trainer_state.json")) return "";
  return fmt::format(
      "is a checkpoint of transformers' Trainer, whose states and counters are not read; start "
      "from "
      "its weights with ⟦model⟧ {}, and ⟦save⟧ to another folder",
      folder.string());
}

std::string WhatInsteadOfModel(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    if (!fs::is_regular_file(path, ignored)) return "";
    std::array<char, 4> magic{};
    std::ifstream(path, std::ios::binary).read(magic.data(), magic.size());
    if (std::string_view(magic.data(), magic.size()) == "GGUF") {
      return "is a GGUF file, weights for llama.cpp, which are not read; use the folder of the "
             "model that it was made of";
    }
    const std::string ending = path.extension().string();
    for (const char* of_weights : {".safetensors", ".bin", ".pt", ".pth"}) {
      if (ending != of_weights) continue;
      return fmt::format("is a file of weights; name the folder that holds it with the model's {}",
                         kConfigFile);
    }
    return "";
  }
  const fs::path folder = path.has_filename() ? path : path.parent_path();
  const FolderNames names(folder);
  if (names.empty()) return "is an empty folder; get the model into it, or name another";
  if (names.Has(kAdapterConfigFile)) return AdapterText(folder);
  if (names.Has("model_index.json")) {
    return "holds a pipeline of diffusers, which makes images or sound; zeroplan trains models of "
           "text alone";
  }
  if (std::string text = CheckpointText(folder, names); !text.empty()) return text;
  if (names.Has("params.json") && !names.Ends(".pth").empty()) {
    return fmt::format(
        "holds a model as its makers' own code reads it (params.json); get the one for "
        "transformers, with a {}",
        kConfigFile);
  }
  if (std::string text = WeightsText(names); !text.empty()) return text;
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "tokenizer.model"}) {
    if (!names.Has(file)) continue;
    return fmt::format("holds a tokenizer ({}) and no model; get the model's {} and weights, too",
                       file, kConfigFile);
  }
  return fmt::format("is a folder without a {}, so it holds no model; name one that has it",
                     kConfigFile);
}

void RefuseUnaskedAdapter(const fs::path& folder, const std::string& adapter) {
  if (folder.empty() || !adapter.empty()) return;
  const FolderNames names(folder);
  if (!names.Has(kAdapterConfigFile)) return;
  const bool weights =
      !names
           .Last([](const std::string& name) {
             return (name.starts_with("model") && name.ends_with(".safetensors")) ||
                    name.starts_with("pytorch_model");
           })
           .empty();
  if (!weights) ThrowUsage("{}: {}", folder.string(), AdapterText(folder));
  ThrowUsage(
      "{0}: holds a model and an adapter ({1}); train and generate take both with --adapter {0}; "
      "move {1} away to take the model alone",
      folder.string(), kAdapterConfigFile);
}

namespace {

// Elements of all tensors of a safetensors file; nullopt where it cannot be told, and where
// quantized values are packed into whole numbers.
std::optional<uint64_t> ElementsOf(const fs::path& file) {
  CheckFileName(file);
  std::error_code unknown;
  const uint64_t bytes = std::filesystem::file_size(file, unknown);
  std::ifstream in(file, std::ios::binary);
  std::array<unsigned char, 8> size_bytes{};
  if (!in.read(reinterpret_cast<char*>(size_bytes.data()), size_bytes.size())) return std::nullopt;
  uint64_t size = 0;
  for (size_t i = size_bytes.size(); i-- > 0;) size = size << 8 | size_bytes[i];
  if (size > kMostHeaderBytes || size > bytes) return std::nullopt;
  std::string header(size, '\0');
  if (!in.read(header.data(), static_cast<std::streamsize>(size))) return std::nullopt;
  const JsonNode root = ParseJsonText(header, file.string());
  uint64_t elements = 0;
  for (const auto& [name, tensor] : root.members) {
    const JsonNode *dtype = tensor.Find("dtype"), *shape = tensor.Find("shape");
    if (name == "__metadata__" || dtype == nullptr || shape == nullptr) continue;
    if (!dtype->is_string() ||
        (!dtype->scalar.text().starts_with("F") && !dtype->scalar.text().starts_with("BF"))) {
      return std::nullopt;
    }
    double product = 1;
    for (const JsonNode& side : shape->elements) {
      if (side.kind != JsonNode::Kind::kScalar || !side.scalar.is_number()) return std::nullopt;
      product *= side.scalar.number();
    }
    if (product < 0 || product > 1e15) return std::nullopt;
    elements += static_cast<uint64_t>(product);
  }
  return elements > 0 ? std::optional(elements) : std::nullopt;
}

// Of the weights beside the config: of all their headers, or, where files are missing, of the
// index, which says how many bytes they are.
std::optional<uint64_t> ParamsOfWeights(const fs::path& folder, const JsonNode& config) {
  uint64_t elements = 0;
  bool whole = true;
  std::optional<JsonNode> index;
  std::vector<std::string> files;
  const fs::path index_file = folder / "model.safetensors.index.json";
  std::error_code ignored;
  if (fs::exists(folder / "model.safetensors", ignored)) {
    files.emplace_back("model.safetensors");
  } else if (fs::exists(index_file, ignored)) {
    index = ParseJsonText(ReadTextFile(index_file), index_file.string());
    if (const JsonNode* map = index->Find("weight_map")) {
      for (const auto& [tensor, file] : map->members) {
        // A path is to no file of the model.
        const std::string name = file.is_string() ? file.scalar.text() : "/";
        if (name.find('/') != std::string::npos) return std::nullopt;
        files.push_back(name);
      }
    }
    std::sort(files.begin(), files.end());
    files.erase(std::unique(files.begin(), files.end()), files.end());
  }
  for (const std::string& file : files) {
    const std::optional<uint64_t> of_file = ElementsOf(folder / file);
    whole = whole && of_file;
    elements += of_file.value_or(0);
  }
  if (whole && elements > 0) return elements;
  const JsonNode* metadata = index ? index->Find("metadata") : nullptr;
  const JsonNode* bytes = metadata != nullptr ? metadata->Find("total_size") : nullptr;
  const JsonNode* dtype = config.Find("torch_dtype");
  if (dtype == nullptr) dtype = config.Find("dtype");
  if (bytes == nullptr || !bytes->scalar.is_number() || dtype == nullptr || !dtype->is_string()) {
    return std::nullopt;
  }
  const std::string& name = dtype->scalar.text();
  const double each = name == "float32" ? 4 : name == "bfloat16" || name == "float16" ? 2 : 0;
  const double params = each > 0 ? bytes->scalar.number() / each : 0;
  return params > 0 && params < 1e15 ? std::optional(static_cast<uint64_t>(params)) : std::nullopt;
}

// The number of the first of these keys that has one; 0: none.
double FirstNumber(const JsonNode& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const JsonNode* node = config.Find(key);
    if (node != nullptr && node->kind == JsonNode::Kind::kScalar && node->scalar.is_number()) {
      return node->scalar.number();
    }
  }
  return 0;
}

// As a decoder with a gated MLP has them, which most are by now.
std::optional<uint64_t> ParamsOfConfig(const JsonNode& config) {
  const auto number = [&](std::initializer_list<const char*> keys) {
    return FirstNumber(config, keys);
  };
  const double hidden = number({"hidden_size", "n_embd", "d_model"});
  const double layers = number({"num_hidden_layers", "n_layer", "num_layers"});
  const double vocab = number({"vocab_size"});
  const double heads = number({"num_attention_heads", "n_head"});
  if (hidden <= 0 || layers <= 0 || vocab <= 0 || heads <= 0) return std::nullopt;
  double ffn = number({"intermediate_size", "ffn_dim", "n_inner"});
  if (ffn <= 0) ffn = 4 * hidden;
  double kv_heads = number({"num_key_value_heads"}), head_size = number({"head_dim"});
  if (kv_heads <= 0) kv_heads = heads;
  if (head_size <= 0) head_size = hidden / heads;
  const JsonNode* tied = config.Find("tie_word_embeddings");
  const double tables = tied != nullptr && tied->scalar == true ? 1 : 2;
  const double layer = 2 * hidden * head_size * (heads + kv_heads) + 3 * hidden * ffn;
  const double params = tables * vocab * hidden + layers * layer;
  return params < 1e15 ? std::optional(static_cast<uint64_t>(params)) : std::nullopt;
}

}  // namespace

std::string PlanOfItsSize(const fs::path& folder, const JsonNode& config) {
  const JsonNode* text = config.Find("text_config");  // as models with vision have it
  const JsonNode& shape = text != nullptr && text->is_object() ? *text : config;
  // The time of a dense model of a mixture's size is none of the mixture's.
  if (FirstNumber(shape, {"num_local_experts", "num_experts", "n_routed_experts"}) > 1) return "";
  std::optional<uint64_t> params;
  try {
    if (!folder.empty()) params = ParamsOfWeights(folder, config);
  } catch (const Error&) {  // of a file that is not needed
  }
  if (!params) params = ParamsOfConfig(shape);
  if (!params) return "";
  return fmt::format("; to plan for a model of its size: ⟦params⟧ {} ⟦family⟧ llama",
                     FormatCount(*params));
}

}  // namespace zeroplan
