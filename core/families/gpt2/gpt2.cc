#include "core/families/gpt2/gpt2.h"

#include "core/lowering/model_graph.h"

namespace zeroplan {
namespace {

class Gpt2Family : public ModelFamily {
 public:
  std::string_view name() const override { return "gpt2"; }

  ParamRows Params(const ModelSpec& spec) const override { return Gpt2Params(spec); }
  // GPT2Model, the model without its head, is saved without it.
  std::string_view optional_prefix() const override { return "transformer."; }
  // Attention masks, which old versions of transformers saved.
  bool PassedOver(std::string_view tensor) const override {
    return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias");
  }

  std::unique_ptr<ModelGraph> MakeGraph(GraphBuilder& builder) const override {
    return MakeGpt2Graph(builder);
  }

  std::string_view ConfigKey(std::string_view field) const override { return Gpt2ConfigKey(field); }
  ModelSpec ReadConfig(JsonSection* config, std::vector<std::string>* notes) const override {
    return ReadGpt2Config(config, notes);
  }
  std::string WriteConfig(const ModelSpec& spec) const override { return WriteGpt2Config(spec); }

  const std::vector<ModelPreset>& presets() const override { return Gpt2Presets(); }
  ModelSpec Shape(int64_t layers, int64_t hidden, int64_t positions,
                  bool byte_level) const override {
    return Gpt2Shape(layers, hidden, positions, byte_level);
  }
};

}  // namespace

const ModelFamily& Gpt2() {
  static const Gpt2Family family;
  return family;
}

}  // namespace zeroplan
