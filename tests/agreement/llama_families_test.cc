// Families of llama's kind, with what each has of its own, are planned and trained like GPT-2.
#include <doctest/doctest.h>

#include "core/families/load_model.h"
#include "tests/agreement/family_checks.h"
#include "tests/core/families/llama/tiny_llama.h"

namespace zeroplan {
namespace {

// Grouped heads, a head of its own; with biases of query, key and value; with norms of heads.
std::vector<ModelSpec> TinyModels() {
  std::vector<ModelSpec> models = {testing::TinyLlama(Llama()), testing::TinyLlama(Qwen2()),
                                   testing::TinyLlama(Qwen3())};
  // Biases everywhere, heads wider than the residual stream, a tied head, positions of a longer
  // context.
  ModelSpec& all = models.emplace_back(testing::TinyLlama(Llama()));
  all.name = "all";
  all.qkv_bias = all.out_bias = all.mlp_bias = all.tied_head = true;
  all.head_size = 6;
  all.rope_scaling = RotaryScaling::kLlama3;
  all.rope_factor = 8;
  all.rope_high = 4;
  all.rope_positions = 8;
  return models;
}

std::vector<ModelSpec> LargeModels() {
  return {LoadModel("llama3.2-1b"), LoadModel("qwen2.5-7b"), LoadModel("qwen3-0.6b")};
}

TEST_CASE("llama families: gradients are the slopes of the engine's own loss") {
  for (const ModelSpec& model : TinyModels()) {
    CAPTURE(model.family->name());
    CAPTURE(model.name);
    // An RMS norm of embeddings near 0 bends more than layer norm behind positions does.
    testing::CheckGradients(model, 1.0 / 64);
  }
}

TEST_CASE("llama families: stages, recompute, offload and accumulation follow stage 0") {
  for (const ModelSpec& model : TinyModels()) {
    CAPTURE(model.family->name());
    CAPTURE(model.name);
    testing::CheckStages(model);
  }
}

TEST_CASE("llama families: weights leave and come back as Hugging Face has them") {
  for (const ModelSpec& model : TinyModels()) {
    CAPTURE(model.family->name());
    CAPTURE(model.name);
    testing::CheckWeights(model);
  }
}

TEST_CASE("llama families: every choice is estimated, and its classes add up") {
  for (const ModelSpec& model : LargeModels()) {
    CAPTURE(model.name);
    testing::CheckEstimates(model);
  }
}

TEST_CASE("llama families: the planner's bounds hold") {
  for (const ModelSpec& model : LargeModels()) {
    CAPTURE(model.name);
    testing::CheckBounds(model);
  }
}

}  // namespace
}  // namespace zeroplan
