#include "core/families/load_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/base/units.h"
#include "core/families/gpt2/gpt2.h"
#include "core/families/llama/llama.h"
#include "core/families/mixtral/mixtral.h"
#include "core/families/olmoe/olmoe.h"
#include "core/families/qwen2_moe/qwen2_moe.h"
#include "core/families/qwen3_moe/qwen3_moe.h"

namespace zeroplan {

namespace {

constexpr uint64_t kMinParams = 100'000;
constexpr uint64_t kMaxParams = 1'000'000'000'000'000;
// Below this a whole vocabulary would be most of the model: byte-level tokens instead.
constexpr uint64_t kByteLevelBelow = 20'000'000;
// A published shape this close is what people mean by "10B" or "1.3B".
constexpr double kPresetTolerance = 0.03;
// How far off the nearest shape may be (long sequences need large position tables in tiny models).
constexpr double kWorstError = 0.25;

struct DepthAtWidth {
  double hidden, layers;
};
// Brown et al. 2020, table 2.1. Narrower: in proportion to the first; wider: to the last.
constexpr std::array<DepthAtWidth, 8> kDepths = {{{768, 12},
                                                  {1024, 24},
                                                  {1536, 24},
                                                  {2048, 24},
                                                  {2560, 32},
                                                  {4096, 32},
                                                  {5120, 40},
                                                  {12288, 96}}};

double UsualLayers(double hidden) {
  const auto& first = kDepths.front();
  const auto& last = kDepths.back();
  if (hidden <= first.hidden) return std::max(1.0, first.layers * hidden / first.hidden);
  if (hidden >= last.hidden) return last.layers * hidden / last.hidden;
  const auto* upper = std::find_if(kDepths.begin(), kDepths.end(),
                                   [&](const DepthAtWidth& d) { return d.hidden >= hidden; });
  const auto* lower = upper - 1;
  const double t = (hidden - lower->hidden) / (upper->hidden - lower->hidden);
  return lower->layers + t * (upper->layers - lower->layers);
}

double RelativeError(uint64_t found, uint64_t params) {
  const double wanted = static_cast<double>(params);
  return std::abs(static_cast<double>(found) - wanted) / wanted;
}

// Null: none is registered.
const OtherModelReader*& OtherReader() {
  static const OtherModelReader* reader = nullptr;
  return reader;
}

}  // namespace

bool RegisterOtherModels(const OtherModelReader* reader) {
  OtherReader() = reader;
  return true;
}

const OtherModelReader* OtherModelsReader() { return OtherReader(); }

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

ModelSpec ReadHuggingFaceConfig(const std::filesystem::path& file, std::vector<std::string>* notes,
                                FamilyList families, const OtherModels& others) {
  const std::filesystem::path folder =
      std::filesystem::absolute(file).lexically_normal().parent_path();
  const ModelSource source = {
      file.string(), folder,
      file.filename() == kConfigFile ? folder.filename().string() : file.stem().string()};
  return ReadHuggingFaceConfig(ParseJsonText(ReadTextFile(file), source.file), source, notes,
                               families, others);
}

ModelSpec ReadHuggingFaceConfig(const JsonNode& root, const ModelSource& source,
                                std::vector<std::string>* notes, FamilyList families,
                                const OtherModels& others) {
  JsonSection config(&root, "", source.file);
  const std::optional<std::string> type = config.String("model_type");
  const std::string names = QuotedNames(families);
  const char* which = families.size() == 1 ? "the only architecture" : "the architectures";
  if (!type) {
    config.Fail("model_type", "is missing; use {} ({} zeroplan trains){}", names, which,
                PlanOfItsSize(source.folder, root));
  }
  const ModelFamily* family = nullptr;
  for (const ModelFamily* known : families) {
    if (known->name() == *type) family = known;
  }
  const OtherModelReader* other = OtherReader();
  if (others.preferred && other != nullptr && other->Knows(*type)) family = nullptr;
  if (family == nullptr && (!others.allowed || other == nullptr)) {
    config.FailValue(
        "model_type",
        fmt::format("{}, {} that zeroplan trains{}{}", names, which,
                    other != nullptr && other->Knows(*type)
                        ? "; 'zeroplan plan' and 'estimate' take it with ⟦runtime⟧ deepspeed, "
                          "fsdp2 or ddp"
                        : "",
                    PlanOfItsSize(source.folder, root)));
  }
  if (const JsonNode* node = config.Value("quantization_config")) {
    if (IsSwitchedOn(*node)) {
      config.Fail("quantization_config",
                  "quantized weights are not supported; remove the key and "
                  "use the model's unquantized weights");
    }
  }
  if (family == nullptr) return other->Read(source, root, *type, others, notes);
  ModelSpec spec = family->ReadConfig(&config, notes);
  spec.family = family;
  spec.padded_vocab = PadVocab(spec.vocab);
  spec.name = source.name;
  ValidateModelSpec(spec, source.file);
  return spec;
}

std::string WriteHuggingFaceConfig(const ModelSpec& spec) { return spec.family->WriteConfig(spec); }

FamilyList ModelFamilies() {
  static const ModelFamily* const families[] = {&Gpt2(),  &Llama(),   &Mistral(),
                                                &Qwen2(), &Qwen3(),   &Qwen3Moe(),
                                                &Olmoe(), &Mixtral(), &Qwen2Moe()};
  return families;
}

const ModelFamily* FamilyNamed(std::string_view name) {
  for (const ModelFamily* family : ModelFamilies()) {
    if (family->name() == name) return family;
  }
  return nullptr;
}

std::string_view FamilyInFile(const ModelFamily& family) {
  return &family == ModelFamilies().front() ? std::string_view() : family.name();
}

const ModelFamily* FamilyFromFile(std::string_view name, std::string_view where) {
  if (name.empty()) return ModelFamilies().front();
  const ModelFamily* family = FamilyNamed(name);
  if (family == nullptr) {
    ThrowUsage("{}: {} is not allowed; use {}", where, name, QuotedNames(ModelFamilies()));
  }
  return family;
}

std::string QuotedNames(FamilyList families) {
  std::string names;
  for (const ModelFamily* family : families) {
    names += fmt::format("{}\"{}\"", names.empty() ? "" : " or ", family->name());
  }
  return names;
}

ModelSpec ModelFromParams(uint64_t params, int64_t seq_len, const ModelFamily& family) {
  if (params < kMinParams || params > kMaxParams) {
    ThrowUsage("⟦params⟧: {} is not allowed; use 100K (1e5) to 1000T (1e15)", params);
  }
  if (seq_len < 1 || seq_len > std::numeric_limits<int32_t>::max()) {
    ThrowUsage("⟦seq_len⟧: {} is not allowed; use 1 to {}", seq_len,
               std::numeric_limits<int32_t>::max());
  }
  const std::string name = fmt::format("{}-shape-{}", family.name(), FormatCount(params));
  for (const ModelPreset& preset : family.presets()) {
    ModelSpec spec = preset.spec;
    spec.positions = seq_len;
    if (RelativeError(spec.ParamCount(), params) <= kPresetTolerance) return spec;
  }
  const bool byte_level = params < kByteLevelBelow;
  const int64_t step = byte_level ? 16 : 128;
  ModelSpec best;
  uint64_t best_params = 0;
  double best_cost = std::numeric_limits<double>::infinity();
  for (int64_t hidden = step;; hidden += step) {
    const double width = static_cast<double>(hidden);
    // All layers have as many parameters.
    ModelSpec spec = family.Shape(1, hidden, seq_len, byte_level);
    const uint64_t of_one = spec.ParamCount();
    spec.layers = 2;
    const uint64_t of_layer = spec.ParamCount() - of_one;
    const double one_layer = static_cast<double>(of_layer);
    const double outside = static_cast<double>(of_one - of_layer);
    const double left = static_cast<double>(params) - outside;
    const double layers =
        std::clamp(std::round(left / one_layer), 1.0, std::max(32.0, 4 * UsualLayers(width)));
    spec.layers = static_cast<int64_t>(layers);
    const uint64_t found = of_one - of_layer + static_cast<uint64_t>(layers) * of_layer;
    // A shape twice as deep as usual must be 4 % nearer to be taken; past 2.5 %
    // the size counts most. Narrow heads waste matrix units.
    const double error = RelativeError(found, params);
    const double shape = std::abs(std::log2(layers / UsualLayers(width)));
    const double narrow = hidden % 64 == 0 ? 0 : hidden % 32 == 0 ? 0.005 : 0.015;
    const double cost = error + 15 * std::max(0.0, error - 0.025) + 0.04 * shape + narrow;
    if (cost < best_cost) {
      best_cost = cost;
      best = spec;
      best_params = found;
    }
    if (outside + one_layer > static_cast<double>(params)) break;  // wider only moves away
  }
  if (RelativeError(best_params, params) > kWorstError) {
    ThrowUsage(
        "⟦params⟧: {}: no shape near it holds {} positions; use a smaller ⟦seq_len⟧ or more "
        "parameters (the nearest has {})",
        FormatCount(params), seq_len, FormatCount(best_params));
  }
  best.name = name;
  ValidateModelSpec(best, "⟦params⟧");
  return best;
}

}  // namespace zeroplan
