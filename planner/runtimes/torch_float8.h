// The work that torchao's float8 training (Float8Linear) adds to compiled Llama layers: casts of
// inputs, weights and gradients of outputs, and the computation of their scales.
#pragma once

#include <cstdint>
#include <string_view>

#include "planner/runtimes/torch_kernels.h"

namespace zeroplan {

// The sides of FP8 matmuls, including the number of tokens, must be multiples of this.
inline constexpr int64_t kFloat8Multiple = 16;

// The form of the weights before they are cast.
enum class Float8Weights : uint8_t {
  k16Bit,    // weights that FSDP2 has gathered, or parameters in 16 bit
  kFp32,     // parameters in fp32, which Float8Linear casts itself
  kGathered  // already in FP8 (enable_fsdp_float8_all_gather)
};

// Bytes that kernels move, and the number of kernels, in addition to those of 16-bit layers.
// Elements (TorchElements): e hidden, q queries, k keys, f the MLP's columns, w the weight.
struct Float8Moves {
  std::string_view forward, backward;
  int forward_launches = 0, backward_launches = 0;
};
// The moves for the inputs and for the weight of the matmul `op`; nothing if `op` is no matmul of a
// layer.
Float8Moves Float8InputMoves(TorchFloat8 recipe, TorchOp op);
Float8Moves Float8WeightMoves(TorchFloat8 recipe, Float8Weights weights);

// torchao casts a shard for the gather in eager code: a multiplication with the scale, a clamp, a
// cast.
inline constexpr double kFloat8ShardMoves = 21;
inline constexpr int kFloat8ShardLaunches = 3;

}  // namespace zeroplan
