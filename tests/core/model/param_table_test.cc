#include "core/model/param_table.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "core/families/load_model.h"
#include "core/model/model_family.h"
#include "tests/error_of.h"
#include "tests/has.h"

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

}  // namespace
}  // namespace zeroplan
