// How a model is trained: made of core/settings/setting_rows.inc (docs/adding-a-setting.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace zeroplan::v1 {

// A choice. A value that a program lacks is unset.
struct Choice {
  // GPUs, one rank each
  int64_t gpus = 0;
  // tokens of a sequence
  int64_t seq_len = 0;
  // sequences of a micro-step of one GPU, or of GPUs that share them
  int64_t micro_batch = 0;
  // micro-steps of an optimizer step
  int64_t grad_accum = 0;
  // sequences of an optimizer step over all GPUs
  int64_t global_batch = 0;
  // precision of parameters and compute ("bf16", "fp16" or "fp32")
  std::string dtype;
  // precision in which gradients are summed over micro-steps ("bf16", "fp16" or "fp32")
  std::string grad_accum_dtype;
  // precision in which GPUs reduce gradients ("bf16", "fp16" or "fp32")
  std::string communication_dtype;
  // master weights of a run of 16 bits ("fp32", "split" or "16bit")
  std::string master_weights;
  // precision of Adam's two moments ("fp32", "bf16" or "8bit")
  std::string optimizer_states;
  // precision of the matmuls of layers' linears ("fp8", "bf16", "fp16" or "fp32")
  std::string matmul_dtype;
  // part of a matrix with a scale of its own in FP8, none without FP8 ("tensor" or "blocks")
  std::optional<std::string> fp8_recipe;
  // format of the gradients of activations in FP8 ("e4m3" or "e5m2")
  std::optional<std::string> fp8_gradients;
  // least smaller side of a linear that multiplies in FP8
  std::optional<int64_t> fp8_least_side;
  // ZeRO stage
  int64_t stage = 0;
  // GPUs that share each sequence
  int64_t sequence_ranks = 0;
  // GPUs that share what the stage shards, 1 at stage 0
  int64_t shard_group = 0;
  // states that shard groups share with each other, none with one group ("replicate", "optimizer"
  // or "gradients")
  std::optional<std::string> across_groups;
  // home of optimizer states ("none", "cpu" or "nvme")
  std::string offload_optimizer;
  // share of the optimizer that is offloaded
  double offload_ratio = 0;
  // home of parameter shards ("none", "cpu" or "nvme")
  std::string offload_param;
  // whether offloaded states are staged in page-locked memory
  bool pin_memory = false;
  // recompute of activations ("none", "selective", "products" or "full")
  std::string checkpointing;
  // layers that are recomputed together; 0 unless checkpointing is full
  int64_t checkpoint_every = 0;
  // number of layers, from the first on, that checkpointing covers; 0: all
  int64_t checkpoint_layers = 0;
  // recompute in the other layers ("none" or "selective")
  std::string checkpointing_above;
  // home of the activations that layers keep for the backward pass, none for the GPU ("none" or
  // "cpu")
  std::string offload_activations;
  // number of layers whose activations are offloaded; 0: all but the last
  int64_t offload_activation_layers = 0;
  // whether a GPU gives the same results from run to run
  bool deterministic = false;
  // whether parameters are updated in the backward pass
  bool optimizer_in_backward = false;
};

}  // namespace zeroplan::v1
