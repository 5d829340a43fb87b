// What people call a model: a preset, a folder, or a name on a hub.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_source.h"
#include "core/base/log.h"
#include "core/base/strings.h"
#include "core/families/load_model.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

bool IsIn(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// "meta-llama/Llama-3.1-8B" as {"llama", "3.1", "8b"}: spellings of a name have the same words.
Words WordsOf(std::string_view name) {
  Words words;
  std::string word;
  const auto end = [&] {
    if (!word.empty()) words.push_back(std::move(word));
    word.clear();
  };
  for (const char c : name.substr(name.rfind('/') + 1)) {
    const bool between = c == '-' || c == '_' || c == ':' || c == ' ';
    // A number begins a word, but not one behind a number: "7b" and "0.3" are words.
    if (between || (IsDigit(c) && !word.empty() && !IsDigit(word[0]))) end();
    if (!between) word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  end();
  return words;
}

// Without what tells versions of one shape apart: "Meta-Llama-3.1-8B-Instruct" is "llama 3.1 8b".
Words ShapeWords(const Words& words) {
  Words shape;
  for (const std::string& word : words) {
    if (word == "meta" && shape.empty()) continue;
    if (!IsIn(word, {"instruct", "base", "hf", "it", "pt", "chat"})) shape.push_back(word);
  }
  return shape;
}

struct Match {
  const ModelPreset* preset = nullptr;
  const PublishedName* published = nullptr;  // of the preset; nullptr: the preset's own name
};

std::string_view OwnerOf(std::string_view name) {
  const size_t slash = name.find('/');
  return slash == std::string_view::npos ? "" : name.substr(0, slash);
}

// Who publishes others' weights as they are, under their own names.
bool IsMirror(const std::string& owner) { return IsIn(owner, {"unsloth", "nousresearch"}); }

// The preset whose shape is known to be that of `name`. An owner that is given must be the one who
// published it: what others call so may be anything.
Match FindPublished(const std::string& name) {
  const Words given = WordsOf(name), shape = ShapeWords(given);
  const std::string owner = LowerAscii(OwnerOf(name));
  const bool any_owner = owner.empty() || IsMirror(owner);
  Match own, by_shape;
  for (const ModelPreset& preset : ModelPresets()) {
    const Words words = WordsOf(preset.spec.name);
    if (owner.empty() && words == given) own = {&preset, nullptr};
    if (owner.empty() && by_shape.preset == nullptr && ShapeWords(words) == shape) {
      by_shape = {&preset, nullptr};
    }
    for (const PublishedName& published : preset.published) {
      if (!any_owner && owner != LowerAscii(OwnerOf(published.name))) continue;
      const Words words_there = WordsOf(published.name);
      if (words_there == given) return {&preset, &published};
      if (by_shape.preset == nullptr && ShapeWords(words_there) == shape) {
        by_shape = {&preset, &published};
      }
    }
  }
  if (own.preset != nullptr) return own;
  return by_shape;
}

bool BeginsWith(const Words& words, const Words& begin) {
  return words.size() >= begin.size() && std::equal(begin.begin(), begin.end(), words.begin());
}

// The model of another type that is published as `name`, by the rules of FindPublished, or the only
// one whose name goes on from there: "mixtral-8x7b" is Mixtral-8x7B-v0.1. Null: none.
const PublishedConfig* FindOther(const std::string& name) {
  const OtherModelReader* reader = OtherModelsReader();
  if (reader == nullptr) return nullptr;
  const Words given = WordsOf(name), shape = ShapeWords(given);
  const std::string owner = LowerAscii(OwnerOf(name));
  const bool any_owner = owner.empty() || IsMirror(owner);
  const PublishedConfig* by_shape = nullptr;
  std::vector<const PublishedConfig*> longer;
  for (const PublishedConfig& published : reader->Published()) {
    for (const char* known : published.names) {
      if (known == nullptr || (!any_owner && owner != LowerAscii(OwnerOf(known)))) continue;
      const Words words = WordsOf(known);
      if (words == given) return &published;
      if (by_shape == nullptr && ShapeWords(words) == shape) by_shape = &published;
      if (owner.empty() && shape.size() > 1 && BeginsWith(words, shape) &&
          (longer.empty() || longer.back() != &published)) {
        longer.push_back(&published);
      }
    }
  }
  return by_shape == nullptr && longer.size() == 1 ? longer.front() : by_shape;
}

// `name` as the model of a built-in config. Throws Error(kUsage) where others are not allowed.
NamedModel FromConfig(const std::string& name, const PublishedConfig& published,
                      const OtherModels& others) {
  if (!others.allowed) {
    ThrowUsage(
        "model '{}' is planned for other programs alone: use 'zeroplan plan' or 'estimate' with "
        "⟦runtime⟧ deepspeed, fsdp2 or ddp; zeroplan trains models of the types {}",
        name, QuotedNames(ModelFamilies()));
  }
  NamedModel model;
  const std::string_view known = published.names.front();
  const std::string source = fmt::format("the built-in config.json of {}", known);
  model.spec = ReadHuggingFaceConfig(ParseJsonText(published.config, source),
                                     {source, {}, name.substr(name.rfind('/') + 1)},
                                     &model.config_notes, ModelFamilies(), others);
  model.hub_name = OwnerOf(name).empty() ? known : name;
  model.note = fmt::format("Model: {} has the shape of {} as published.", name, known);
  return model;
}

// ---- Hugging Face's cache ----

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

fs::path HubCache() {
  if (const std::string cache = Variable("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = Variable("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  const std::string home = Variable("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".cache" / "huggingface" / "hub";
}

// "OWNER/NAME", as hubs have it, and no path.
bool IsHubName(std::string_view name) {
  if (name.empty() || name[0] == '.' || name[0] == '~' || name[0] == '/') return false;
  const size_t slash = name.find('/');
  return slash != std::string_view::npos && slash + 1 < name.size() &&
         name.find('/', slash + 1) == std::string_view::npos &&
         name.find("..") == std::string_view::npos && !name.ends_with(".json");
}

// The snapshot of `hub_name` that refs/main names, if it holds a config.json.
std::optional<fs::path> Snapshot(std::string_view hub_name) {
  const fs::path cache = HubCache();
  if (cache.empty()) return std::nullopt;
  const std::string_view owner = OwnerOf(hub_name);
  const fs::path model =
      cache / fmt::format("models--{}--{}", owner, hub_name.substr(owner.size() + 1));
  std::error_code ignored;
  const fs::path main = model / "refs" / "main";
  if (!fs::is_regular_file(main, ignored)) return std::nullopt;
  std::string revision = ReadTextFile(main.string());
  while (!revision.empty() && std::isspace(static_cast<unsigned char>(revision.back())) != 0) {
    revision.pop_back();
  }
  if (revision.empty() || revision.find('/') != std::string::npos) return std::nullopt;
  const fs::path folder = model / "snapshots" / revision;
  return fs::exists(folder / kConfigFile, ignored) ? std::optional(folder) : std::nullopt;
}

std::optional<NamedModel> FromCache(const std::string& hub_name, const OtherModels& others) {
  const std::optional<fs::path> folder = Snapshot(hub_name);
  if (!folder) return std::nullopt;
  NamedModel model;
  model.spec =
      ReadHuggingFaceConfig(*folder / kConfigFile, &model.config_notes, ModelFamilies(), others);
  model.spec.name = hub_name.substr(hub_name.find('/') + 1);  // the folder's is a revision
  model.folder = *folder;
  model.hub_name = hub_name;
  model.note =
      fmt::format("Model: {} as it lies in Hugging Face's cache, {}.", hub_name, folder->string());
  return model;
}

NamedModel FromPreset(const std::string& name, const Match& match) {
  NamedModel model;
  model.spec = match.preset->spec;
  std::string but;
  if (const PublishedName* published = match.published) {
    if (published->positions > 0) model.spec.positions = published->positions;
    if (published->rope_theta > 0) model.spec.rope_theta = published->rope_theta;
    model.hub_name = OwnerOf(name).empty() ? published->name : name;
    if (published->positions > 0)
      but = fmt::format(", with its own {} positions", published->positions);
  }
  model.note = fmt::format("Model: {} has the shape of the preset {}{}.", name,
                           match.preset->spec.name, but);
  return model;
}

// ---- what is none ----

bool IsCount(std::string_view word, char last) {
  return word.size() > 1 && IsDigit(word[0]) && word.back() == last;
}

// The files that a folder has to hold so that other runtimes are planned for its model.
enum class Needs { kNothing, kConfig, kWeights };

struct WhyNot {
  std::string why;      // "": the name does not say
  bool others = false;  // another model's weights would do
  Needs needs = Needs::kNothing;
};

bool HasTrainedFamily(const Words& words) {
  return std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return IsIn(word, {"qwen", "llama", "codellama", "tinyllama", "mistral"});
  });
}

// DeepSeek from V2 on; its earlier models are of the type llama.
bool HasLatentAttention(const Words& words) {
  if (std::find(words.begin(), words.end(), "deepseek") == words.end()) return false;
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "r" || (words[i] == "v" && words[i + 1] >= "2")) return true;
  }
  return false;
}

// Finds in a name why there is no preset of its shape. Words of a family that is trained outweigh
// those of other families: "DeepSeek-R1-0528-Qwen3-8B" is a qwen3.
WhyNot WhyNone(const Words& words) {
  const bool trained = HasTrainedFamily(words);
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const std::string next = i + 1 < words.size() ? words[i + 1] : "";
    const std::string two = word + next;
    if (IsIn(word, {"awq", "gptq", "gguf", "ggml", "bnb", "4bit", "8bit", "mlx"}) ||
        IsIn(two, {"int4", "int8", "fp8", "fp4", "nf4", "exl2", "w4a16", "w8a8", "nvfp4"})) {
      return {
          "it has quantized weights, which are not trained; use the model that they were made "
          "of",
          /*others=*/true};
    }
    if (word == "lora" || word == "qlora") {
      return {"it is an adapter, which is not trained; use the model below it", /*others=*/true};
    }
    if (IsIn(word, {"vl", "vision", "omni", "audio"})) {
      return {"it takes images or sound, and zeroplan trains models of text alone", false,
              Needs::kConfig};
    }
  }
  if (trained || words.empty()) return {};
  if (HasLatentAttention(words)) {
    return {"DeepSeek's attention over latents and its experts are neither trained nor planned"};
  }
  const std::string& family = words.front();
  const std::string version = words.size() > 1 ? words[1] : "";
  const bool known = (family == "gemma" && (version == "2" || version == "3")) ||
                     (family == "phi" && (version == "3" || version == "3.5" || version == "4"));
  if (known || family == "gemma") {
    return {fmt::format("by its name it is a {}, and zeroplan trains models of the types {}",
                        family, QuotedNames(ModelFamilies())),
            false, known ? Needs::kConfig : Needs::kWeights};
  }
  const bool of_llama = family == "falcon" && version == "3";
  if (!of_llama && IsIn(family, {"phi", "falcon", "opt", "pythia", "bloom"})) {
    std::string size;
    for (const std::string& word : words) {
      if (IsCount(word, 'b') || IsCount(word, 'm')) size = word;
    }
    if (!size.empty()) size.back() = static_cast<char>(std::toupper(size.back()));
    return {
        fmt::format("by its name it is a model of the type {}, which is neither trained nor "
                    "planned; for one of its size use ⟦params⟧ {} ⟦family⟧ llama",
                    family, size.empty() ? "COUNT" : size)};
  }
  return {};
}

// Whether the words of `part` are in `whole`, in that order.
bool AreWithin(const Words& part, const Words& whole) {
  size_t at = 0;
  for (const std::string& word : whole) {
    if (at < part.size() && part[at] == word) ++at;
  }
  return at == part.size();
}

// The preset that was meant, or "": one whose name says more, the nearest spelling, or the longest
// that the name begins with.
std::string NearestPreset(const std::string& name, const std::vector<std::string>& presets) {
  const Words words = ShapeWords(WordsOf(name));
  std::string begins;
  size_t longest = 0;
  std::vector<std::string> joined;
  for (const std::string& preset : presets) {
    const Words known = WordsOf(preset);
    if (words.size() > 1 && AreWithin(words, known)) return preset;
    if (known.size() > longest && known.size() <= words.size() &&
        std::equal(known.begin(), known.end(), words.begin())) {
      begins = preset;
      longest = known.size();
    }
    joined.push_back(fmt::format("{}", fmt::join(known, "")));
  }
  const std::string found = NearestName(fmt::format("{}", fmt::join(words, "")), joined);
  const auto at = std::find(joined.begin(), joined.end(), found);
  return at == joined.end() ? begins : presets[static_cast<size_t>(at - joined.begin())];
}

// Presets that begin with the same word, for a name that says no size: "llama".
std::vector<std::string> SameFirstWord(const std::string& name) {
  const Words words = ShapeWords(WordsOf(name));
  std::vector<std::string> same;
  for (const ModelPreset& preset : ModelPresets()) {
    const std::string& one = preset.spec.name;
    if (!words.empty() && WordsOf(one).front() == words.front()) same.push_back(one);
  }
  return same;
}

// The names of other programs' models that go on where `name` ends: "gpt-oss". Not for names with
// an owner.
std::vector<std::string> OthersLike(const std::string& name) {
  std::vector<std::string> names;
  const OtherModelReader* reader = OtherModelsReader();
  const Words words = ShapeWords(WordsOf(name));
  if (reader == nullptr || words.empty() || !OwnerOf(name).empty()) return names;
  for (const PublishedConfig& published : reader->Published()) {
    for (const char* known : published.names) {
      if (known != nullptr && BeginsWith(WordsOf(known), words)) names.emplace_back(known);
    }
  }
  return names;
}

[[noreturn]] void ThrowNoModel(const std::string& name) {
  std::vector<std::string> same = SameFirstWord(name);
  const Words given = WordsOf(name);
  // A mixture is meant by its own first word or by its sizes alone: "OLMo 2 7B" is not like OLMoE.
  const auto says_sizes = [&](const std::string& one) {
    const Words words = WordsOf(one);
    return std::all_of(words.begin(), words.end(), [&](const std::string& word) {
      return word.find_first_of("0123456789") == std::string::npos ||
             std::find(given.begin(), given.end(), word) != given.end();
    });
  };
  std::vector<std::string> presets, likely;
  for (const ModelPreset& preset : ModelPresets()) {
    const std::string& one = preset.spec.name;
    presets.push_back(one);
    const bool begins = std::find(same.begin(), same.end(), one) != same.end();
    if (preset.spec.experts == 0 || begins || says_sizes(one)) likely.push_back(one);
  }
  const std::vector<std::string> others = OthersLike(name);
  if (given.size() > 1 && !others.empty()) same.clear();
  same.insert(same.begin(), others.begin(), others.end());
  const WhyNot not_there = WhyNone(given);
  if (given.size() == 1 && IsCount(given[0], 'b')) {
    ThrowUsage("⟦model⟧: {} is a size; use ⟦params⟧ {} for a shape of that size", name, name);
  }
  const std::string nearest = NearestPreset(name, likely);
  const std::string near =
      !nearest.empty() ? fmt::format("did you mean '{}'? 'zeroplan model list' names all", nearest)
                       : fmt::format("use {}", fmt::join(same.empty() ? presets : same, ", "));
  const std::string folder = name.substr(name.find('/') + 1);
  if (!not_there.why.empty()) {
    std::string fetched;
    if (not_there.needs != Needs::kNothing && IsHubName(name)) {
      fetched = fmt::format(
          "; to plan it for DeepSpeed, FSDP2 or DDP, from its shape:\n  hf download {}{}{} "
          "--local-dir {}\nand then ./{} is the model, with ⟦runtime⟧",
          ShellWord(name), not_there.needs == Needs::kConfig ? " " : "",
          not_there.needs == Needs::kConfig ? kConfigFile : "", ShellWord(folder),
          ShellWord(folder));
    } else if (not_there.needs != Needs::kNothing) {
      fetched = fmt::format(
          "; a folder with its {} is planned for DeepSpeed, FSDP2 or DDP, with "
          "⟦runtime⟧",
          not_there.needs == Needs::kConfig ? kConfigFile : "weights");
    }
    ThrowUsage("model '{}' has no preset: {}{}{}", name, not_there.why,
               nearest.empty() || !not_there.others ? "" : fmt::format(" ('{}')", nearest),
               fetched);
  }
  if (IsHubName(name)) {
    ThrowUsage(
        "model '{}' is neither a preset nor in Hugging Face's cache, and nothing is downloaded; "
        "its shape comes with\n  hf download {} {} --local-dir {}\nand then ./{} is the "
        "model{}",
        name, ShellWord(name), kConfigFile, ShellWord(folder), ShellWord(folder),
        nearest.empty() ? "" : fmt::format(" (or use the preset '{}')", nearest));
  }
  ThrowUsage("model '{}' is neither a preset nor a file or folder with a {} here; {}", name,
             kConfigFile, near);
}

}  // namespace

ModelSpec LoadModel(const std::string& name_or_path) {
  NamedModel model = FindModel(name_or_path);
  for (const std::string& note : model.config_notes) LogInfo("{}", note);
  return std::move(model.spec);
}

ModelSpec AsPreferred(ModelSpec model, const OtherModels& others) {
  const OtherModelReader* reader = OtherModelsReader();
  const std::string type(model.family->name());
  if (model.family->planned() != nullptr) return model;
  if (!others.preferred || reader == nullptr || !reader->Knows(type)) return model;
  const std::string source = "the model " + model.name;
  return reader->Read({source, {}, model.name},
                      ParseJsonText(WriteHuggingFaceConfig(model), source), type, others, nullptr);
}

NamedModel FindModel(const std::string& name_or_path, const OtherModels& others) {
  for (const ModelPreset& preset : ModelPresets()) {
    if (preset.spec.name == name_or_path) return {.spec = AsPreferred(preset.spec, others)};
  }
  std::error_code ignored;
  const fs::path path(name_or_path);
  const bool folder = fs::is_directory(path, ignored);
  const fs::path config = folder ? path / kConfigFile : path;
  if (!name_or_path.empty() && fs::exists(config, ignored)) {
    const std::string what = folder ? "" : WhatInsteadOfModel(config);
    if (!what.empty()) ThrowUsage("{}: {}", name_or_path, what);
    NamedModel model;
    model.spec = ReadHuggingFaceConfig(config, &model.config_notes, ModelFamilies(), others);
    if (folder) model.folder = path;
    return model;
  }
  const bool hub = IsHubName(name_or_path);
  const bool is_name = hub || name_or_path.find('/') == std::string::npos;
  const Match match = is_name ? FindPublished(name_or_path) : Match{};
  std::optional<NamedModel> cached;
  if (hub) cached = FromCache(name_or_path, others);
  const bool same_weights = match.published != nullptr &&
                            !IsMirror(LowerAscii(OwnerOf(name_or_path))) &&
                            WordsOf(match.published->name) == WordsOf(name_or_path);
  if (!cached && same_weights) {
    cached = FromCache(match.published->name, others);
  }
  if (cached) return *std::move(cached);
  if (match.preset == nullptr && folder) {
    ThrowUsage("{}: {}", name_or_path, WhatInsteadOfModel(path));
  }
  if (match.preset == nullptr) {
    const PublishedConfig* other = is_name ? FindOther(name_or_path) : nullptr;
    if (other != nullptr) return FromConfig(name_or_path, *other, others);
    ThrowNoModel(name_or_path);
  }
  NamedModel named = FromPreset(name_or_path, match);
  named.spec = AsPreferred(std::move(named.spec), others);
  return named;
}

}  // namespace zeroplan
