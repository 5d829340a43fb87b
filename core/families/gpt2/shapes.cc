// Published GPT-2 shapes, and what shapes between them look like.
#include "core/families/gpt2/gpt2.h"

namespace zeroplan {
namespace {

constexpr const char* kGpt2 = "Radford et al. 2019, as published on Hugging Face";
constexpr const char* kGpt3 =
    "Brown et al. 2020, table 2.1; positions 1024 and the GPT-2 architecture";

int64_t HeadsFor(int64_t hidden) {
  // Heads of 128 from GPT-3's 1.3B on, of 64 below; byte-level models may be too narrow for either.
  if (hidden >= 2048 && hidden % 128 == 0) return hidden / 128;
  if (hidden % 64 == 0) return hidden / 64;
  return hidden % 32 == 0 ? hidden / 32 : hidden / 16;
}

ModelPreset Preset(const char* name, int64_t layers, int64_t hidden, int64_t heads,
                   const char* source) {
  ModelSpec spec = Gpt2Shape(layers, hidden, 1024, false);
  spec.name = name;
  spec.heads = heads;
  return {std::move(spec), source};
}

}  // namespace

ModelSpec Gpt2Shape(int64_t layers, int64_t hidden, int64_t positions, bool byte_level) {
  ModelSpec spec;
  spec.family = &Gpt2();
  spec.layers = layers;
  spec.hidden = hidden;
  spec.heads = HeadsFor(hidden);
  spec.ffn = 4 * hidden;
  spec.vocab = byte_level ? 256 : 50257;
  spec.padded_vocab = PadVocab(spec.vocab);
  spec.positions = positions;
  return spec;
}

const std::vector<ModelPreset>& Gpt2Presets() {
  static const std::vector<ModelPreset> presets = {
      Preset("gpt2", 12, 768, 12, kGpt2),
      Preset("gpt2-medium", 24, 1024, 16, kGpt2),
      Preset("gpt2-large", 36, 1280, 20, kGpt2),
      Preset("gpt2-xl", 48, 1600, 25, kGpt2),
      // The table prints 24 heads of 128 for a width of 2048; 16 of them make that width.
      Preset("gpt3-1.3b", 24, 2048, 16, kGpt3),
      Preset("gpt3-2.7b", 32, 2560, 32, kGpt3),
      Preset("gpt3-6.7b", 32, 4096, 32, kGpt3),
      // The table prints a width of 5140, which 40 heads of 128 do not make; 5120 they do.
      Preset("gpt3-13b", 40, 5120, 40, kGpt3),
      Preset("gpt2-10b", 50, 4096, 32, "Rajbhandari et al. 2020 (ZeRO), appendix: 10B, 50 x 4096"),
  };
  return presets;
}

}  // namespace zeroplan
