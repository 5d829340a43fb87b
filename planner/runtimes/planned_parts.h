// Parts of layers that only models have that zeroplan plans and does not train, as rows like those
// of torch_code.h. Counted from transformers' modules (benchmarks/peers/count_planned.py; a test
// holds the rows to tests/data/runtimes/planned_counts.jsonl).
#pragma once

#include "core/model/model_spec.h"
#include "planner/runtimes/planned/planned_models.h"
#include "planner/runtimes/torch_code.h"

namespace zeroplan {

struct PlannedParts {
  CodePart post_norm;      // of what a product made
  CodePart rotary;         // i queries, keys and values in one; makes o, O; g, G, H back to d
  CodePart gated;          // i gate and up in one
  CodePart eager_bounded;  // attention with bounded scores
  CodePart masked;         // memory-efficient attention with a mask
  CodePart bounded_loss;
  // Router and experts: gradients of the second matrix, the first, the router's.
  CodePart experts, experts_plain_shares;

  const CodePart& ExpertsOf(const PlannedCode& code) const {
    return code.normalized_shares ? experts : experts_plain_shares;
  }
};

// Whether a layer's attention has a mask, so that it is memory-efficient attention. Layers with a
// window are taken to be the first ones.
inline bool IsMasked(const PlannedCode& code, int64_t layer, int64_t seq_len) {
  return code.masked || (layer < code.window_layers && seq_len > code.window);
}

// Largest errors beside runs of such models by transformers' Trainer on one H200, as shares
// (tests/data/runtimes/planned_runs.jsonl; a test holds them to the runs).
struct PlannedMargins {
  int runs;
  double allocated, reserved, time;
  std::string_view models;
};
inline constexpr PlannedMargins kPlannedMargins{
    5, 0.009, 0.08, 0.3,
    "Gemma 2 2B and 3 1B, and shallow models like Phi-3, Mixtral and Qwen3 30B-A3B"};

// `fp32_params`: as of StyleCodeOf.
const PlannedParts& PlannedPartsOf(bool fp32_params);
// `style` as it is for such a model.
const StyleCode& PlannedStyle(CodeStyle style, bool fp32_params, const PlannedCode& code);

// Elements of a model's experts, where it has some.
void AddExpertElements(const ModelSpec& spec, int64_t tokens, TorchElements* elements);

// What is kept for backward of a vision tower's layer, by its kind: bytes of a patch for each
// channel of the hidden states and of the MLP, and for each patch; and by what is around the layers
// and projects their results: of a patch for each channel, of an image's token for each channel of
// the text. Counted like the models of tests/fixtures/planned/models.json, but for `autocast`:
// CUDA's has LayerNorm in fp32, of a copy of its input, whose result each product casts for itself.
struct TowerBytes {
  int hidden, ffn, patch;
  int projected, text;
};
TowerBytes TowerBytesOf(const VisionTower& tower, bool autocast);

}  // namespace zeroplan
