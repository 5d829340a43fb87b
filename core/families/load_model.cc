#include "core/families/load_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/base/log.h"
#include "core/base/strings.h"

namespace zeroplan {
namespace {

// "meta-llama/Llama-3.1-8B" as "llama3.18b": what spellings of a name have in common.
std::string Squashed(std::string_view name) {
  std::string text;
  for (const char c : name.substr(name.rfind('/') + 1)) {
    if (c != '-' && c != '_') {
      text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return text;
}

// The preset that was meant, or "": the nearest, else the longest whose name is within `word`
// ("...-Instruct").
std::string NearestPreset(std::string_view word, const std::vector<std::string>& presets) {
  const std::string meant = Squashed(word);
  std::vector<std::string> squashed;
  for (const std::string& name : presets) squashed.push_back(Squashed(name));
  std::string found = NearestName(meant, squashed);
  if (found.empty()) {
    for (const std::string& name : squashed) {
      if (name.size() > found.size() && meant.find(name) != std::string::npos) found = name;
    }
  }
  const auto at = std::find(squashed.begin(), squashed.end(), found);
  return at == squashed.end() ? "" : presets[static_cast<size_t>(at - squashed.begin())];
}

}  // namespace

const std::vector<ModelPreset>& ModelPresets() {
  static const std::vector<ModelPreset> presets = [] {
    std::vector<ModelPreset> all;
    for (const ModelFamily* family : ModelFamilies()) {
      all.insert(all.end(), family->presets().begin(), family->presets().end());
    }
    return all;
  }();
  return presets;
}

ModelSpec LoadModel(const std::string& name_or_path) {
  std::vector<std::string> names;
  for (const ModelPreset& preset : ModelPresets()) {
    if (preset.spec.name == name_or_path) return preset.spec;
    names.push_back(preset.spec.name);
  }
  std::error_code ignored;
  std::filesystem::path path(name_or_path);
  if (std::filesystem::is_directory(path, ignored)) path /= kConfigFile;
  if (!name_or_path.empty() && std::filesystem::exists(path, ignored)) {
    std::vector<std::string> notes;
    ModelSpec spec = ReadHuggingFaceConfig(path, &notes);
    for (const std::string& note : notes) LogInfo("{}", note);
    return spec;
  }
  const std::string nearest = NearestPreset(name_or_path, names);
  const bool hub = name_or_path.find('/') != std::string::npos && !name_or_path.starts_with('.') &&
                   !name_or_path.starts_with('/');
  ThrowUsage("model '{}' is neither a preset nor a file or folder with a config.json here{}; {}",
             name_or_path, hub ? ", and nothing is downloaded" : "",
             nearest.empty()
                 ? fmt::format("use {}", fmt::join(names, ", "))
                 : fmt::format("did you mean '{}'? 'zeroplan model list' names all", nearest));
}

ModelSpec ReadHuggingFaceConfig(const std::filesystem::path& file, std::vector<std::string>* notes,
                                FamilyList families) {
  const std::string source = file.string();
  const JsonNode root = ParseJsonText(ReadTextFile(file), source);
  JsonSection config(&root, "", source);
  const std::optional<std::string> type = config.String("model_type");
  const std::string names = QuotedNames(families);
  const char* which = families.size() == 1 ? "the only architecture" : "the architectures";
  if (!type) {
    config.Fail("model_type", "is missing; use {} ({} zeroplan trains)", names, which);
  }
  const ModelFamily* family = nullptr;
  for (const ModelFamily* known : families) {
    if (known->name() == *type) family = known;
  }
  if (family == nullptr) {
    config.FailValue("model_type", fmt::format("{}, {} that zeroplan trains", names, which));
  }
  if (const JsonNode* node = config.Value("quantization_config")) {
    if (IsSwitchedOn(*node)) {
      config.Fail("quantization_config",
                  "quantized weights are not supported; remove the key and "
                  "use the model's unquantized weights");
    }
  }
  ModelSpec spec = family->ReadConfig(&config, notes);
  spec.family = family;
  spec.padded_vocab = PadVocab(spec.vocab);
  const std::filesystem::path folder =
      std::filesystem::absolute(file).lexically_normal().parent_path();
  spec.name = file.filename() == kConfigFile ? folder.filename().string() : file.stem().string();
  ValidateModelSpec(spec, source);
  return spec;
}

std::string WriteHuggingFaceConfig(const ModelSpec& spec) { return spec.family->WriteConfig(spec); }

}  // namespace zeroplan
