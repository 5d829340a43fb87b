// Which products of eight bits a search may take, and what is said of them.
#include "planner/estimate/fp8_products.h"

#include <doctest/doctest.h>

#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/search/search_space.h"
#include "tests/core/model/with_lora.h"
#include "tests/has.h"

namespace zeroplan {
namespace {

using Kinds = std::vector<ProductsKind>;

TEST_CASE("products: of a model with one smaller side there is one kind") {
  // Its linears are 768 x 2304, 768 x 768, 768 x 3072 and 3072 x 768.
  const ModelSpec model = LoadModel("gpt2");
  CHECK(Fp8Kinds(model, Fp8Recipe::kTensor) == Kinds{{true, Fp8Recipe::kTensor, 0}});
  CHECK(Fp8Kinds(model, Fp8Recipe::kBlocks) == Kinds{{true, Fp8Recipe::kBlocks, 0}});
}

TEST_CASE("products: of several smaller sides each but the least is a threshold") {
  ModelSpec model = LoadModel("llama3.2-1b");
  model.ffn = 512;  // down 512 x 2048; gate and up 2048 x 1024; 2048 x 2048 and more
  CHECK(Fp8Kinds(model, Fp8Recipe::kTensor) == Kinds{{true, Fp8Recipe::kTensor, 0},
                                                     {true, Fp8Recipe::kTensor, 1024},
                                                     {true, Fp8Recipe::kTensor, 2048}});
  // A side that goes with tensors alone.
  model.ffn = 528;
  CHECK(Fp8Kinds(model, Fp8Recipe::kTensor).size() == 3);
  CHECK(Fp8Kinds(model, Fp8Recipe::kBlocks) == Kinds{{true, Fp8Recipe::kBlocks, 0}});
  for (const ProductsKind& kind : Fp8Kinds(model, Fp8Recipe::kTensor)) {
    Candidate candidate;
    candidate.products = kind;
    CHECK(CandidateOf(SetupOf(candidate, {})).products == kind);
  }
}

TEST_CASE("products: weights in NF4 and adapters have none of eight bits") {
  const ModelSpec model = LoadModel("llama3.2-1b");
  CHECK(Fp8Kinds(testing::WithQlora(model, "all-linear", 16), Fp8Recipe::kTensor).empty());
  const ModelSpec lora = testing::WithLora(model, "all-linear", 16);
  CHECK(Fp8Kinds(lora, Fp8Recipe::kTensor) == Fp8Kinds(model, Fp8Recipe::kTensor));
}

TEST_CASE("products: GPUs without them, and profiles without their peak, are named") {
  const auto lacks = [](const char* name, Fp8Recipe recipe = Fp8Recipe::kTensor) {
    return Fp8ProfileLacks(LoadProfile(name).gpu, recipe);
  };
  for (const char* name : {"hgx-h200", "dgx-h100", "rtx4090", "l40s"}) CHECK(lacks(name).empty());
  for (const char* name : {"dgx-a100-80gb", "v100", "rtx3090"}) {
    CHECK(Has(lacks(name), "compute capability 8.9"));
  }
  CHECK(Has(lacks("rtx4090", Fp8Recipe::kBlocks), "at compute capability 9.0 alone"));
  HardwareProfile other = LoadProfile("hgx-h200");
  other.gpu.dense_peaks.erase(Dtype::kE4M3);
  CHECK(Has(Fp8ProfileLacks(other.gpu, Fp8Recipe::kTensor), "no peak of FP8"));
}

TEST_CASE("products: kinds differ in how exact they are, and no figure stands that was not taken") {
  const ProductsKind tensor{true, Fp8Recipe::kTensor, 0}, blocks{true, Fp8Recipe::kBlocks, 0};
  CHECK(Inexactness(ProductsKind{}) == 0);
  CHECK(Inexactness(blocks) < Inexactness(tensor));
  CHECK(ProductsLabel({}).empty());
  CHECK(ProductsLabel(tensor) == "FP8 products");
  CHECK(ProductsLabel(blocks) == "FP8 products by blocks");
  for (const ProductsKind& kind : {tensor, blocks}) {
    const bool measured = MeasuredAccuracy(kind, Dtype::kBF16).has_value();
    CHECK(Has(AccuracyText(kind, Dtype::kBF16),
              measured ? "validation loss" : "its cost in accuracy is not measured here"));
    CHECK(AccuracyText(kind, Dtype::kF16) == "its cost in accuracy is not measured here");
  }
}

}  // namespace
}  // namespace zeroplan
