#include "core/model/param_table.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "core/families/load_model.h"
#include "core/model/lora.h"
#include "core/model/model_family.h"
#include "tests/core/families/llama/tiny_llama.h"
#include "tests/core/model/with_lora.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/tiny_model.h"

namespace zeroplan {
namespace {

TEST_CASE("param table: holds every parameter once") {
  for (const ModelPreset& preset : ModelPresets()) {
    CAPTURE(preset.spec.name);
    const std::vector<ParamTensor> table = BuildParamTable(preset.spec);
    const ParamRows rows = preset.spec.family->Params(preset.spec);
    CHECK(table.size() == rows.before.size() + rows.after.size() +
                              rows.layer.size() * static_cast<size_t>(preset.spec.layers));
    uint64_t elements = 0, unpadded = 0, published = 0;
    std::set<std::string> names, published_names;
    size_t published_count = 0;
    for (const ParamTensor& t : table) {
      elements += t.elements();
      unpadded += static_cast<uint64_t>(t.unpadded_rows) * static_cast<uint64_t>(t.shape[1]);
      names.insert(t.name);
      int64_t next = 0;
      for (const PublishedTensor& part : PublishedTensors(t)) {
        CHECK(part.begin == next);
        next = part.end;
        published +=
            static_cast<uint64_t>(part.end - part.begin) * static_cast<uint64_t>(t.shape[1]);
        published_names.insert(part.name);
        ++published_count;
      }
      CHECK(t.decay == !t.is_vector);
      CHECK((t.init == InitKind::kNormal) == !t.is_vector);
    }
    CHECK(elements == preset.spec.ParamCount());
    CHECK(unpadded == preset.spec.UnpaddedParamCount());
    CHECK(published == unpadded);
    CHECK(names.size() == table.size());
    CHECK(published_names.size() == published_count);
  }
}

TEST_CASE("param table: forward order, names, shapes") {
  ModelSpec spec = LoadModel("gpt2");
  const std::vector<ParamTensor> table = BuildParamTable(spec);
  CHECK(table[0].name == "transformer.wte.weight");
  CHECK(table[0].shape == std::array<int64_t, 2>{50304, 768});
  CHECK(table[0].unpadded_rows == 50257);
  CHECK(table[0].layer == kEmbeddingLayer);
  CHECK(table[1].name == "transformer.wpe.weight");
  const char* names[] = {"ln_1.weight",      "ln_1.bias",          "attn.c_attn.weight",
                         "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
                         "ln_2.weight",      "ln_2.bias",          "mlp.c_fc.weight",
                         "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias"};
  for (int i = 0; i < 12; ++i) {
    const ParamTensor& t = table[2 + 12 * 11 + i];
    CHECK(t.name == std::string("transformer.h.11.") + names[i]);
    CHECK(t.layer == 11);
    CHECK(t.id == 2 + i);
  }
  CHECK(table[4].shape == std::array<int64_t, 2>{768, 2304});
  CHECK(table[5].shape == std::array<int64_t, 2>{2304, 1});
  CHECK(table[12].shape == std::array<int64_t, 2>{3072, 768});
  CHECK(table[4].init_std == 0.02f);
  CHECK(table[6].init_std == doctest::Approx(0.02 / std::sqrt(24.0)));
  CHECK(table[12].init_std == table[6].init_std);
  CHECK(table.back().name == "transformer.ln_f.bias");
  CHECK(table.back().layer == 12);
  CHECK(table[table.size() - 2].init == InitKind::kOnes);
}

TEST_CASE("param table: what is named is frozen") {
  ModelSpec llama = LoadModel("llama3.2-1b");
  llama.frozen = "model.embed_tokens.*,model.layers.[0-3].*";
  CheckFrozen(llama, "f");
  uint64_t trained = 0;
  for (const ParamTensor& tensor : BuildParamTable(llama)) {
    const bool named = tensor.layer == kEmbeddingLayer || (tensor.layer >= 0 && tensor.layer < 4);
    CHECK(tensor.trainable == !named);
    if (tensor.trainable) trained += tensor.elements();
  }
  CHECK(llama.TrainedParamCount() == trained);
  CHECK(trained < llama.ParamCount());
  // A weight that is not trained takes 2 operations less a token, and 4 in layers below all that
  // are, whose attention has no backward pass either.
  const double all = TrainFlopsPerToken(LoadModel("llama3.2-1b"), 1024);
  const double fewer = TrainFlopsPerToken(llama, 1024);
  double products = 0;
  for (const ParamTensor& tensor : BuildParamTable(llama)) {
    if (!tensor.trainable && tensor.use != ParamUse::kOther) {
      products += (tensor.layer >= 0 ? 4 : 2) * static_cast<double>(tensor.unpadded_rows) *
                  static_cast<double>(tensor.shape[1]);
    }
  }
  const double attention = 4.0 * 4 * 2048 * 1024;
  CHECK(all - fewer == doctest::Approx(products + attention));

  const auto refused = [](const char* preset, const char* frozen) {
    ModelSpec spec = LoadModel(preset);
    spec.frozen = frozen;
    return ErrorOf(ExitCode::kUsage, [&] { CheckFrozen(spec, "⟦freeze⟧"); });
  };
  CHECK(
      Has(refused("llama3.2-1b", "model.embed_tokens.*,lm_heads"), "no tensor is called lm_heads"));
  CHECK(Has(refused("llama3.2-1b", "*.q_proj.weight"), "q_proj.weight, "));
  CHECK(Has(refused("llama3.2-1b", "*.q_proj.weight"), "freeze all or none"));
  CHECK(Has(refused("gpt2", "*.c_fc.bias"), "trained together"));
  CHECK(Has(refused("gpt2", "transformer.wte.*"),
            "transformer.wte.weight and transformer.wpe.weight are trained together; freeze both"));
  CHECK(Has(refused("gpt2", "*"), "leaves nothing to train"));
}

// "2/5 -" for each layer: rank and alpha of each linear, "-" without one.
std::vector<std::string> GridText(const AdapterGrid& grid) {
  std::vector<std::string> layers;
  for (const std::vector<LinearAdapter>& layer : grid) {
    std::string text;
    for (const LinearAdapter& one : layer) {
      text += one.rank == 0 ? "- " : fmt::format("{}/{} ", one.rank, one.alpha);
    }
    layers.push_back(text.substr(0, text.size() - 1));
  }
  return layers;
}

TEST_CASE("param table: targets say which linears of which layers have adapters of which rank") {
  ModelSpec spec = testing::WithLora(testing::TinyModel(), "all-linear", 3);  // three layers
  const auto read = [&spec](const std::string& targets) {
    spec.lora_targets = targets;
    const AdapterGrid grid = ReadTargets(spec, "here");
    // What is written says the same.
    ModelSpec again = spec;
    again.lora_targets = WriteTargets(spec, grid);
    CHECK(ReadTargets(again, "here") == grid);
    return GridText(grid);
  };
  using Texts = std::vector<std::string>;
  // c_attn, attn.c_proj, c_fc, mlp.c_proj.
  CHECK(read("all-linear") == Texts(3, "3/6 3/6 3/6 3/6"));
  CHECK(read("c_proj") == Texts(3, "- 3/6 - 3/6"));
  CHECK(read("c_attn@1") == Texts{"- - - -", "3/6 - - -", "- - - -"});
  CHECK(read("c_fc:2,c_attn@0-1:4/0.5") == Texts{"4/0.5 - 2/6 -", "4/0.5 - 2/6 -", "- - 2/6 -"});
  CHECK(read("transformer.h.2.mlp.c_proj,h.0.attn.c_attn:1") ==
        Texts{"1/6 - - -", "- - - -", "- - - 3/6"});
  CHECK(read("all-linear,c_proj@2:8,attn.c_proj@2:9/1") ==
        Texts{"3/6 3/6 3/6 3/6", "3/6 3/6 3/6 3/6", "3/6 9/1 3/6 8/6"});  // the last counts
  spec.lora_saved = "mlp.c_proj";
  CHECK(read("all-linear") == Texts(3, "3/6 3/6 3/6 -"));
  spec.lora_saved.clear();
  const std::pair<const char*, const char*> refused[] = {
      {"q_proj", "here: q_proj is no linear of the model's layers; they are attn.c_attn, "},
      {"c_attn,", "here:  is no linear"},
      {"h.3.attn.c_attn", "h.3.attn.c_attn is no linear"},
      {"g.1.attn.c_attn", "is no linear"},
      {"c_attn@3", "c_attn@3: 3 are no layers; use @FIRST-LAST, from 0 to 2"},
      {"c_attn@2-1", "2-1 are no layers"},
      {"c_attn@", "are no layers"},
      {"c_attn@-1", "are no layers"},
      {"c_attn@1:0", "no rank and alpha; use :RANK or :RANK/ALPHA, of 1 to 65536"},
      {"c_attn:", "no rank and alpha"},
      {"c_attn:2/0", "no rank and alpha"},
      {"c_attn:2/nan", "no rank and alpha"},
      {"c_attn:2.5", "no rank and alpha"},
      {"c_attn/3", "is no linear"}};
  for (const auto& [targets, why] : refused) {
    CAPTURE(targets);
    spec.lora_targets = targets;
    CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { CheckAdapters(spec, "here"); }), why));
  }
}

TEST_CASE("param table: adapters of one rank and scale in a matrix are one pair") {
  ModelSpec spec = testing::WithLora(testing::TinyLlama(Llama()), "q_proj:2/5,k_proj@1,v_proj:2/5");
  spec.lora_rslora = true;
  std::vector<std::string> rows;
  for (const ParamTensor& tensor : BuildParamTable(spec)) {
    if (!IsAdapter(tensor)) continue;
    std::string text = fmt::format("{} {}x{} mask {} scale {:.4f}:", tensor.name, tensor.shape[0],
                                   tensor.shape[1], tensor.lora_linears, tensor.lora_scale);
    for (const PublishedTensor& part : PublishedTensors(tensor)) {
      text += fmt::format(" {}", part.name.substr(std::string("model.layers.0.self_attn.").size()));
    }
    rows.push_back(text);
  }
  const std::string a = "model.layers.0.self_attn.", b = "model.layers.1.self_attn.";
  CHECK(rows == std::vector<std::string>{
                    a + "qkv_proj.lora_A.weight 4x24 mask 5 scale 3.5355: q_proj.lora_A.weight "
                        "v_proj.lora_A.weight",
                    a + "qkv_proj.lora_B.weight 32x2 mask 5 scale 3.5355: q_proj.lora_B.weight "
                        "v_proj.lora_B.weight",
                    b + "q_proj.lora_A.weight 4x24 mask 5 scale 3.5355: q_proj.lora_A.weight "
                        "v_proj.lora_A.weight",
                    b + "q_proj.lora_B.weight 32x2 mask 5 scale 3.5355: q_proj.lora_B.weight "
                        "v_proj.lora_B.weight",
                    b + "k_proj.lora_A.weight 3x24 mask 2 scale 3.4641: k_proj.lora_A.weight",
                    b + "k_proj.lora_B.weight 8x3 mask 2 scale 3.4641: k_proj.lora_B.weight"});
  uint64_t trained = 0;
  for (const ParamTensor& tensor : BuildParamTable(spec)) {
    trained += tensor.trainable ? tensor.elements() : 0;
  }
  CHECK(spec.TrainedParamCount() == trained);
  CHECK(spec.ParamCount() == BaseModel(spec).ParamCount() + trained);
  // Layers below all adapters have no backward pass.
  spec.lora_targets = "q_proj@1";
  ModelSpec low = spec;
  low.lora_targets = "q_proj@0";
  CHECK(TrainFlopsPerToken(spec, 8) < 0.9 * TrainFlopsPerToken(low, 8));
}

}  // namespace
}  // namespace zeroplan
