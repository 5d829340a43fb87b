// PyTorch's modules from a family's table and graph.
#include "planner/runtimes/torch_model.h"

#include <doctest/doctest.h>

#include "core/base/error.h"
#include "core/families/load_model.h"
#include "core/lowering/graph_builder.h"
#include "core/model/model_family.h"
#include "tests/core/families/made_up/made_up.h"
#include "tests/planner/runtimes/runtime_rows.h"

namespace zeroplan {
namespace {

// Another family with the table and graph of one that there is.
class Renamed : public ModelFamily {
 public:
  explicit Renamed(const ModelFamily& like) : like_(like) {}
  std::string_view name() const override { return "renamed"; }
  ParamRows Params(const ModelSpec& spec) const override { return like_.Params(spec); }
  std::unique_ptr<ModelGraph> MakeGraph(GraphBuilder& builder) const override {
    return like_.MakeGraph(builder);
  }
  std::string_view ConfigKey(std::string_view field) const override {
    return like_.ConfigKey(field);
  }
  ModelSpec ReadConfig(JsonSection* config, std::vector<std::string>* notes) const override {
    return like_.ReadConfig(config, notes);
  }
  std::string WriteConfig(const ModelSpec& spec) const override { return like_.WriteConfig(spec); }
  const std::vector<ModelPreset>& presets() const override { return like_.presets(); }
  ModelSpec Shape(int64_t layers, int64_t hidden, int64_t positions,
                  bool byte_level) const override {
    return like_.Shape(layers, hidden, positions, byte_level);
  }

 private:
  const ModelFamily& like_;
};

uint64_t ReservedOf(const ModelSpec& model) {
  TrainSetup setup;
  setup.zero.stage = 3;
  setup.batch.world_size = 2;
  setup.batch.seq_len = 256;
  setup.precision.dtype = Dtype::kBF16;
  return Fsdp2Footprint({model, setup}).ReservedBytes();
}

TEST_CASE("TorchModel: what a family's code is like comes from its table and graph") {
  const TorchCode gpt2 = TorchModel(LoadModel("gpt2")).code;
  CHECK(gpt2.mean_norms);
  CHECK(gpt2.learned_positions);
  CHECK(gpt2.one_qkv);
  CHECK_FALSE(gpt2.gated);
  CHECK(gpt2.all_biased);
  const TorchCode llama = TorchModel(LoadModel("llama3.2-1b")).code;
  CHECK_FALSE(llama.mean_norms);
  CHECK_FALSE(llama.learned_positions);
  CHECK_FALSE(llama.one_qkv);
  CHECK(llama.gated);
  CHECK(llama.none_biased);
  const TorchCode qwen = TorchModel(LoadModel("qwen2.5-0.5b")).code;  // queries, keys and values
  CHECK_FALSE(qwen.all_biased);
  CHECK_FALSE(qwen.none_biased);
}

TEST_CASE("TorchModel: another family is modelled by what it is, whatever it is called") {
  for (const char* preset : {"gpt2", "qwen3-0.6b"}) {
    CAPTURE(preset);
    const ModelSpec known = LoadModel(preset);
    const Renamed family(*known.family);
    ModelSpec renamed = known;
    renamed.family = &family;
    CHECK(ReservedOf(renamed) == ReservedOf(known));
  }
}

TEST_CASE("TorchModel: a family whose code is not modelled is refused by name") {
  const ModelSpec made_up = ModelFromParams(100'000'000, 1024, testing::MadeUp());
  CHECK_THROWS_WITH_AS(TorchModel{made_up}, doctest::Contains("model family made_up"), Error);
}

}  // namespace
}  // namespace zeroplan
