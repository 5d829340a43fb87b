// Which products of eight bits a search may take, and what is said of them.
#include "planner/estimate/fp8_products.h"

#include <doctest/doctest.h>

#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/runtimes/runtimes.h"
#include "tests/core/model/with_lora.h"
#include "tests/has.h"
#include "tests/planner/search_fixture.h"
#include "tests/wordings/planner.h"

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
  CHECK(Has(Fp8ProfileLacks(other.gpu, Fp8Recipe::kTensor), wording::kNoPeakOfFp));
}

TEST_CASE("products: what is allowed of them stays where states are allowed too") {
  const ProductsKind tensor{true, Fp8Recipe::kTensor, 0}, blocks{true, Fp8Recipe::kBlocks, 0};
  CHECK(AllowText({{}}, LightStates::k8Bit) == "8bit-states");
  CHECK(AllowText({{}, tensor}, LightStates::k8Bit) == "fp8,8bit-states");
  CHECK(AllowText({{}, tensor, blocks}, LightStates::kBF16) == "fp8,fp8-blocks,bf16-states");
  CHECK(AllowText({tensor}, LightStates::k8Bit) == "8bit-states");  // ⟦matmul_dtype⟧ fp8
}

TEST_CASE("products: kinds differ in how exact they are, and no figure stands that was not taken") {
  const ProductsKind tensor{true, Fp8Recipe::kTensor, 0}, blocks{true, Fp8Recipe::kBlocks, 0};
  CHECK(Inexactness(ProductsKind{}) == 0);
  CHECK(Inexactness(blocks) < Inexactness(tensor));
  CHECK(ProductsLabel({}).empty());
  CHECK(ProductsLabel(tensor) == "FP8 products");
  CHECK(ProductsLabel(blocks) == "FP8 products by blocks");
  const Fp8Config by_tensor = {.enabled = true};
  const Fp8Config by_blocks = {.enabled = true, .recipe = Fp8Recipe::kBlocks};
  for (const Fp8Config& fp8 : {by_tensor, by_blocks}) {
    CHECK(MeasuredAccuracy(fp8, Dtype::kBF16));
    CHECK(Has(AccuracyText(fp8, Dtype::kBF16), wording::kAgainstProductsInBfGpt));
    CHECK(AccuracyText(fp8, Dtype::kF16) == "its cost in accuracy is not measured here");
    Fp8Config some = fp8;
    some.least_side = 1024;
    CHECK_FALSE(MeasuredAccuracy(some, Dtype::kBF16));
  }
  Fp8Config wide = by_blocks;
  wide.gradients = Dtype::kE5M2;
  CHECK_FALSE(MeasuredAccuracy(wide, Dtype::kBF16));
  CHECK_FALSE(MeasuredAccuracy(Fp8Config{}, Dtype::kBF16));
}

// docs/performance.md, "FP8": medians, tokens/s of all GPUs.
TEST_CASE("products: runs in FP8 took as much less than predicted as is said of them") {
  struct Run {
    const char *machine, *model;
    int64_t seq_len, micro_batch, grad_accum;
    double tokens_per_second;
    double least, most;  // by how much less, as a share
    bool light = false;  // bf16 masters and moments, selective recompute
    int gpus = 1;        // several: stage 3
  };
  for (const Run& run :
       {Run{"hgx-h200", "llama3.2-1b", 2048, 8, 1, 93'910, 0, 0.025},
        {"hgx-h200", "llama3.2-3b", 2048, 4, 1, 37'330, 0, 0.025},
        {"hgx-h200", "qwen2.5-1.5b", 1024, 32, 4, 82'490, 0, 0.025},
        {"hgx-h200", "qwen2.5-7b", 1024, 16, 1, 21'310, 0, 0.025, true},
        {"dgx-h100", "gpt2", 1024, 32, 1, 602'400, 0.005, 0.075},
        {"dgx-h100", "gpt2-xl", 1024, 4, 4, 57'100, 0.005, 0.075},
        {"dgx-h100", "qwen2.5-3b", 2048, 2, 1, 30'380, 0.005, 0.075},
        {"dgx-h100", "llama3.2-1b", 512, 16, 1, 87'620, 0.005, 0.075},
        {"dgx-h100", "llama3.2-1b", 2048, 8, 1, 87'640, 0.005, 0.075},
        {"hgx-h200", "llama3.1-8b", 4096, 2, 1, 32'400, -0.075, -0.055, false, 2}}) {
    CAPTURE(std::string(run.machine));
    CAPTURE(std::string(run.model));
    SearchFixture fixture(LoadModel(run.model), run.gpus, false, run.machine);
    SearchInputs& in = fixture.inputs;
    Candidate candidate;
    candidate.gpus = run.gpus;
    candidate.stage = run.gpus > 1 ? 3 : 0;
    candidate.micro_batch = run.micro_batch;
    candidate.grad_accum = run.grad_accum;
    candidate.products.fp8 = true;
    if (run.light) {
      candidate.recompute = kSelectiveRecompute;
      candidate.states = {MasterWeights::kParam, Dtype::kBF16};
    }
    in.base.batch.seq_len = run.seq_len;
    const SearchCluster& at = in.clusters.back();
    const Program program = Lower(in.model, SetupOf(candidate, in.base), in.lower);
    const ChoiceEstimate choice = EstimateProgram(program, at.cluster, at.costs);
    const double less = 1 - *choice.time.tokens_per_second / run.tokens_per_second;
    CHECK(less > run.least);
    CHECK(less < run.most);
    const std::vector<std::string> cautions =
        OwnExecutor().Cautions(choice, at.cluster, fixture.profile);
    REQUIRE(!cautions.empty());
    CHECK(Has(cautions.back(), wording::kTookUpToLessThan));
    const double largest = OwnExecutor().LargestTimeError(choice, at.cluster, fixture.profile);
    if (run.gpus == 1 && std::string_view(run.machine) == "hgx-h200") {
      CHECK(largest >= less);
    } else {
      CHECK(largest == 0);
    }
  }
}

}  // namespace
}  // namespace zeroplan
