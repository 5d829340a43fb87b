#include "tests/core/families/made_up/made_up.h"

#include <nlohmann/json.hpp>

#include "core/base/json_section.h"
#include "core/lowering/graph_builder.h"

namespace zeroplan::testing {
namespace {

struct ConfigKey {
  std::string_view field;
  const char* key;
};
constexpr ConfigKey kKeys[] = {
    {"layers", "num_hidden_layers"},  {"hidden", "hidden_size"},
    {"heads", "num_attention_heads"}, {"ffn", "intermediate_size"},
    {"vocab", "vocab_size"},          {"positions", "max_position_embeddings"},
    {"layer_norm_eps", "norm_eps"},   {"init_std", "initializer_range"}};

class MadeUpFamily : public ModelFamily {
 public:
  std::string_view name() const override { return "made_up"; }
  ParamRows Params(const ModelSpec& spec) const override { return MadeUpParams(spec); }
  std::unique_ptr<ModelGraph> MakeGraph(GraphBuilder& builder) const override {
    return MakeMadeUpGraph(builder);
  }

  std::string_view ConfigKey(std::string_view field) const override {
    for (const auto& key : kKeys) {
      if (key.field == field) return key.key;
    }
    return "";
  }
  bool learned_positions() const override { return true; }
  ModelSpec ReadConfig(JsonSection* config, std::vector<std::string>*) const override {
    const auto whole = [&](const char* key) {
      const std::optional<int64_t> value = config->Int(key, 1, 1 << 30);
      if (!value) config->Fail(key, "is missing");
      return *value;
    };
    ModelSpec spec;
    spec.layers = whole("num_hidden_layers");
    spec.hidden = whole("hidden_size");
    spec.heads = whole("num_attention_heads");
    spec.ffn = whole("intermediate_size");
    spec.vocab = whole("vocab_size");
    spec.positions = whole("max_position_embeddings");
    spec.layer_norm_eps = static_cast<float>(config->Number("norm_eps", 0, 1).value_or(1e-5));
    spec.init_std = static_cast<float>(config->Number("initializer_range", 0, 9).value_or(0.02));
    return spec;
  }
  std::string WriteConfig(const ModelSpec& spec) const override {
    const nlohmann::ordered_json out = {{"model_type", name()},
                                        {"num_hidden_layers", spec.layers},
                                        {"hidden_size", spec.hidden},
                                        {"num_attention_heads", spec.heads},
                                        {"intermediate_size", spec.ffn},
                                        {"vocab_size", spec.vocab},
                                        {"max_position_embeddings", spec.positions},
                                        {"norm_eps", spec.layer_norm_eps},
                                        {"initializer_range", spec.init_std}};
    return out.dump(2) + "\n";
  }

  const std::vector<ModelPreset>& presets() const override {
    static const std::vector<ModelPreset> none;
    return none;
  }
  ModelSpec Shape(int64_t layers, int64_t hidden, int64_t positions,
                  bool byte_level) const override {
    ModelSpec spec;
    spec.family = this;
    spec.layers = layers;
    spec.hidden = hidden;
    spec.heads = hidden / 16;
    spec.ffn = 4 * hidden;
    spec.vocab = byte_level ? 256 : 32'000;
    spec.padded_vocab = PadVocab(spec.vocab);
    spec.positions = positions;
    return spec;
  }
};

}  // namespace

const ModelFamily& MadeUp() {
  static const MadeUpFamily family;
  return family;
}

}  // namespace zeroplan::testing
