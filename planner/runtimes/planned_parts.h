// Parts of layers of models that zeroplan plans but does not train, as rows like those of
// torch_code.h. They are counted from transformers' modules (benchmarks/peers/count_planned.py; a
// test holds the rows to tests/data/runtimes/planned_counts.jsonl).
#pragma once

#include "core/model/model_spec.h"
#include "planner/runtimes/planned/planned_models.h"
#include "planner/runtimes/torch_code.h"

namespace zeroplan {

struct PlannedParts {
  CodePart post_norm;      // normalises the output of a matmul
  CodePart rotary;         // i holds queries, keys and values in one tensor; makes o, O; g, G, H
                           // back to d
  CodePart gated;          // i holds gate and up in one tensor
  CodePart eager_bounded;  // attention with bounded scores
  CodePart masked;         // memory-efficient attention with a mask
  CodePart bounded_loss;
  // Router and experts. The gradients are those of the second matrix, the first, and the router's.
  CodePart experts, experts_plain_shares;
  // transformers 4: what a sparse block makes around its experts, and one expert of linear modules.
  // An expert's forward pass makes the outputs c, f, k of gate, up and down; its gradients are
  // those of down, up and gate.
  CodePart router, one_expert;

  const CodePart& ExpertsOf(const PlannedCode& code) const {
    return code.normalized_shares ? experts : experts_plain_shares;
  }
};

// True if a layer's attention has a mask, so that it runs memory-efficient attention. Assumes that
// the layers with a window are the first ones.
inline bool IsMasked(const PlannedCode& code, int64_t layer, int64_t seq_len) {
  return code.masked || (layer < code.window_layers && seq_len > code.window);
}

// The largest errors against runs of planned models by transformers' Trainer on one H200, as shares
// of the prediction (tests/data/runtimes/planned_runs.jsonl; a test compares them with the runs).
struct PlannedMargins {
  int runs;
  double allocated, reserved, time;
  std::string_view models;
};
inline constexpr PlannedMargins kPlannedMargins{
    5, 0.0081, 0.0686, 0.330,
    "Gemma 2 2B and 3 1B, and shallow models like Phi-3, Mixtral and Qwen3 30B-A3B"};

// A published run of a mixture at DeepSpeed's stage 3: Qwen3-30B-A3B, all parameters, sequences of
// 8,192 tokens, on two nodes of 8 A800 (NVLink of 400 GB/s) with transformers 4's modules
// (ms-swift's guide of 2025, swift sft, ZeRO-3). Its micro-batch and recompute are not published:
// 1, and full, as in the Megatron run that it is compared with there. `times`: by how much it took
// longer than is predicted of it on A100s (a test compares them).
struct PublishedMixture {
  double seconds, times;
};
inline constexpr PublishedMixture kPublishedMixture{91.2, 1.256};

// `fp32_params`: as for StyleCodeOf. `frozen`: only adapters are trained.
const PlannedParts& PlannedPartsOf(bool fp32_params, bool frozen = false);
// `style`, adapted to a model with `code` that trains all, or, frozen, adapters.
const StyleCode& PlannedStyle(CodeStyle style, bool fp32_params, const PlannedCode& code,
                              bool frozen = false);

// Sets the elements of a model's experts, if it has any: of all, or those of one of `share` that
// have as many tokens.
void AddExpertElements(const ModelSpec& spec, int64_t tokens, TorchElements* elements,
                       int64_t share = 1);

// The activations of a vision tower, by its kind. A layer keeps bytes per patch and channel of the
// hidden states (`hidden`), per patch and channel of the MLP (`ffn`), and per patch (`patch`). The
// modules around the layers and the projection keep bytes per patch and channel (`projected`), and
// per image token and channel of the text (`text`). Counted like the models of
// tests/fixtures/planned/models.json, except for `autocast`: CUDA's autocast runs LayerNorm in fp32
// on a copy of its input, and each matmul casts the result for itself.
struct TowerBytes {
  int hidden, ffn, patch;
  int projected, text;
};
TowerBytes TowerBytesOf(const VisionTower& tower, bool autocast);

}  // namespace zeroplan
