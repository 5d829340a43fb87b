#include "core/families/load_model.h"

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/base/log.h"
#include "core/base/nearest_name.h"

namespace zeroplan {

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
  const std::string nearest = NearestName(name_or_path, names);
  ThrowUsage("--model: '{}' is neither a preset nor a file or folder with a config.json; {}use {}",
             name_or_path, nearest.empty() ? "" : fmt::format("did you mean '{}'? Else ", nearest),
             fmt::join(names, ", "));
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
