// Families of llama's kind: parameters and FLOPs by hand, published sizes, every setup through
// Verify.
#include "core/families/llama/llama.h"

#include <doctest/doctest.h>

#include <set>

#include "core/base/error.h"
#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "core/model/model_spec.h"
#include "core/program/verify.h"
#include "tests/core/families/llama/tiny_llama.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

TEST_CASE("llama: presets have the parameters that were published") {
  struct Published {
    const char* name;
    uint64_t parameters;
  };
  // Sums of the tensors' elements in the models' safetensors, as Hugging Face shows them.
  for (const Published& published : {Published{"llama2-7b", 6'738'415'616},
                                     Published{"llama2-13b", 13'015'864'320},
                                     Published{"llama2-70b", 68'976'648'192},
                                     Published{"llama3.1-8b", 8'030'261'248},
                                     Published{"llama3.1-70b", 70'553'706'496},
                                     Published{"llama3.1-405b", 405'853'388'800},
                                     Published{"llama3.2-1b", 1'235'814'400},
                                     Published{"llama3.2-3b", 3'212'749'824},
                                     Published{"tinyllama-1.1b", 1'100'048'384},
                                     Published{"smollm2-135m", 134'515'008},
                                     Published{"smollm2-360m", 361'821'120},
                                     Published{"smollm2-1.7b", 1'711'376'384},
                                     Published{"llama3-8b", 8'030'261'248},
                                     Published{"llama3-70b", 70'553'706'496},
                                     Published{"mistral-7b-v0.1", 7'241'732'096},
                                     Published{"mistral-7b-v0.2", 7'241'732'096},
                                     Published{"mistral-small-24b", 23'572'403'200},
                                     Published{"mistral-7b-v0.3", 7'248'023'552},
                                     Published{"mistral-nemo-12b", 12'247'782'400},
                                     Published{"qwen2.5-0.5b", 494'032'768},
                                     Published{"qwen2.5-1.5b", 1'543'714'304},
                                     Published{"deepseek-r1-distill-qwen-1.5b", 1'777'088'000},
                                     Published{"qwen2.5-3b", 3'085'938'688},
                                     Published{"qwen2.5-7b", 7'615'616'512},
                                     Published{"qwen2.5-14b", 14'770'033'664},
                                     Published{"qwen2.5-32b", 32'763'876'352},
                                     Published{"qwen2.5-72b", 72'706'203'648},
                                     Published{"qwen3-0.6b", 596'049'920},
                                     Published{"qwen3-1.7b", 1'720'574'976},
                                     Published{"qwen3-4b", 4'022'468'096},
                                     Published{"qwen3-8b", 8'190'735'360},
                                     Published{"qwen3-14b", 14'768'307'200},
                                     Published{"qwen3-32b", 32'762'123'264}}) {
    CAPTURE(published.name);
    const ModelSpec spec = LoadModel(published.name);
    ValidateModelSpec(spec, published.name);
    CHECK(spec.UnpaddedParamCount() == published.parameters);
  }
}

TEST_CASE("llama: parameters and FLOPs by hand") {
  ModelSpec spec = testing::TinyLlama(Llama());
  // C 24, H 6, G 2, D 4, F 40, V 37 of 40, 2 layers. A layer: qkv (6+2*2)*4*24, out 24*24, gate and
  // up 2*40*24, down 24*40, two norms of 24. Outside: a norm, and tokens and head, 37 rows each.
  const uint64_t products = 40 * 24 + 24 * 24 + 2 * 40 * 24 + 24 * 40;
  CHECK(spec.UnpaddedParamCount() == 2 * (products + 48) + 24 + 2 * 37 * 24);
  CHECK(spec.ParamCount() == spec.UnpaddedParamCount() + 2 * 3 * 24);
  CHECK(MatmulWeights(spec) == 2 * products + 37 * 24);
  // Attention: 6 * 2 layers * 24 * 8; sharing keys saves none of it.
  CHECK(TrainFlopsPerToken(spec, 8) == 6 * (2 * products + 37 * 24) + 6 * 2 * 24 * 8);
  // Heads of 8: 48 channels of attention in a width of 24.
  spec.head_size = 8;
  CHECK(TrainFlopsPerToken(spec, 8) - 6 * MatmulWeights(spec) == 6 * 2 * 48 * 8);
  CHECK(spec.QkvColumns() == 80);

  std::set<std::string> names;
  for (const ParamTensor& tensor : BuildParamTable(spec)) {
    for (const PublishedTensor& published : PublishedTensors(tensor)) names.insert(published.name);
  }
  CHECK(names.size() == 1 + 2 * 9 + 2);
  for (const char* name :
       {"model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight",
        "model.layers.0.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"}) {
    CHECK(names.contains(name));
  }
  // Qwen2's biases and Qwen3's norms, a tensor each.
  CHECK(testing::TinyLlama(Qwen2()).UnpaddedParamCount() ==
        testing::TinyLlama(Llama()).UnpaddedParamCount() + 2 * 40);
  CHECK(testing::TinyLlama(Qwen3()).UnpaddedParamCount() ==
        testing::TinyLlama(Llama()).UnpaddedParamCount() + 2 * 2 * 4);
}

TEST_CASE("llama: a parameter count derives a shape of the family") {
  for (const ModelFamily* family : {&Llama(), &Mistral(), &Qwen2(), &Qwen3()}) {
    CAPTURE(family->name());
    for (const uint64_t params : {uint64_t{500'000}, uint64_t{300'000'000}, uint64_t{5'000'000'000},
                                  uint64_t{200'000'000'000}}) {
      CAPTURE(params);
      const ModelSpec spec = ModelFromParams(params, 4096, *family);
      CHECK(spec.family == family);
      CHECK(spec.positions == 4096);
      const double ratio = static_cast<double>(spec.ParamCount()) / static_cast<double>(params);
      CHECK(ratio > 0.9);
      CHECK(ratio < 1.1);
    }
  }
  CHECK(ModelFromParams(8'000'000'000, 4096, Llama()).name == "llama3.1-8b");
  CHECK(ModelFromParams(1'500'000'000, 4096).family->name() == "gpt2");
}

TEST_CASE("llama: a key and value head that the query heads do not share evenly is refused") {
  ModelSpec spec = testing::TinyLlama(Llama());
  spec.kv_heads = 4;
  CHECK_THROWS_WITH_AS(
      ValidateModelSpec(spec, "here"),
      doctest::Contains("num_key_value_heads: 4 does not divide num_attention_heads 6"), Error);
}

TEST_CASE("llama: every setup lowers to a valid program") {
  for (const ModelFamily* family : {&Llama(), &Qwen2(), &Qwen3()}) {
    for (Backend backend : {Backend::kCpu, Backend::kCuda}) {
      for (const testing::Cell& cell : testing::AllCells({1, 2}, {Dtype::kBF16}, {1, 3})) {
        CAPTURE(family->name());
        CAPTURE(cell.name);
        LowerOptions options;
        options.backend = backend;
        options.flash_attention = backend == Backend::kCuda || family == &Llama();
        options.logits_chunk_bytes = 400;
        options.checkpoint_chunk_elements = 700;
        const std::vector<Violation> violations =
            Verify(Lower(testing::TinyLlama(*family), cell.setup, options), 1);
        if (!violations.empty()) {
          FAIL(violations[0].rule << " in " << SectionName(violations[0].section) << ":\n"
                                  << violations[0].message);
        }
      }
    }
  }
}

TEST_CASE("llama: a context of 128K tokens lowers without overflow") {
  TrainSetup setup;
  setup.zero.stage = 3;
  setup.batch = {2, 1, 8, 131072};
  setup.recompute = FullRecompute();
  LowerOptions options;
  options.backend = Backend::kCuda;
  for (const int64_t tile : {int64_t{0}, options.tile_rows}) {
    options.tile_rows = tile;
    const Program program = Lower(LoadModel("llama3.1-8b"), setup, options);
    uint64_t largest = 0;
    for (const Buffer& buffer : program.buffers) {
      if (buffer.role == Role::kActivation) largest = std::max(largest, buffer.bytes);
      if (buffer.role == Role::kLogits) CHECK(buffer.bytes <= options.logits_chunk_bytes);
    }
    // A layer's gate and up: 2^18 rows of 28672 numbers, more than 2^32. By tiles queries, keys and
    // values are more.
    const uint64_t gate_up = uint64_t{2} * 131072 * 28672 * 2;
    CHECK(largest == (tile == 0 ? gate_up : uint64_t{2} * 131072 * 6144 * 2));
    CHECK(Verify(program, 1).empty());
  }
}

}  // namespace
}  // namespace zeroplan
