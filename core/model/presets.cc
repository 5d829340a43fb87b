#include <filesystem>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/nearest_name.h"
#include "core/model/model_spec.h"

namespace zeroplan {
namespace {

constexpr const char* kGpt2 = "Radford et al. 2019, as published on Hugging Face";
constexpr const char* kGpt3 =
    "Brown et al. 2020, table 2.1; positions 1024 and the GPT-2 architecture";

ModelPreset Gpt2Shape(const char* name, int64_t layers, int64_t hidden, int64_t heads,
                      const char* source) {
  ModelSpec spec;
  spec.name = name;
  spec.layers = layers;
  spec.hidden = hidden;
  spec.heads = heads;
  spec.ffn = 4 * hidden;
  spec.vocab = 50257;
  spec.padded_vocab = PadVocab(spec.vocab);
  spec.positions = 1024;
  return {std::move(spec), source};
}

}  // namespace

const std::vector<ModelPreset>& ModelPresets() {
  static const std::vector<ModelPreset> presets = {
      Gpt2Shape("gpt2", 12, 768, 12, kGpt2),
      Gpt2Shape("gpt2-medium", 24, 1024, 16, kGpt2),
      Gpt2Shape("gpt2-large", 36, 1280, 20, kGpt2),
      Gpt2Shape("gpt2-xl", 48, 1600, 25, kGpt2),
      // The table prints 24 heads of 128 for a width of 2048; 16 of them make that width.
      Gpt2Shape("gpt3-1.3b", 24, 2048, 16, kGpt3),
      Gpt2Shape("gpt3-2.7b", 32, 2560, 32, kGpt3),
      Gpt2Shape("gpt3-6.7b", 32, 4096, 32, kGpt3),
      // The table prints a width of 5140, which 40 heads of 128 do not make; 5120 they do.
      Gpt2Shape("gpt3-13b", 40, 5120, 40, kGpt3),
      Gpt2Shape("gpt2-10b", 50, 4096, 32,
                "Rajbhandari et al. 2020 (ZeRO), appendix: 10B, 50 x 4096"),
  };
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
  if (std::filesystem::is_directory(path, ignored)) path /= "config.json";
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

}  // namespace zeroplan
