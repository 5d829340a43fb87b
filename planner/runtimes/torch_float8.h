// What torchao's float8 training (Float8Linear) adds to compiled Llama layers: casts of inputs,
// weights and gradients of outputs, and what finds their scales.
#pragma once

#include <cstdint>
#include <string_view>

#include "planner/runtimes/torch_kernels.h"

namespace zeroplan {

// Products of 8 bits want sides that are multiples of this, tokens among them.
inline constexpr int64_t kFloat8Multiple = 16;

// Where the weights that are cast come from.
enum class Float8Weights : uint8_t {
  k16Bit,    // what FSDP2 has gathered, or parameters in 16 bit
  kFp32,     // parameters in fp32, which Float8Linear casts by itself
  kGathered  // in 8 bits already (enable_fsdp_float8_all_gather)
};

// Bytes that kernels move beyond those of 16-bit layers, and how many kernels more there are.
// Elements (TorchElements): e hidden, q queries, k keys, f the MLP's columns, w the weight.
struct Float8Moves {
  std::string_view forward, backward;
  int forward_launches = 0, backward_launches = 0;
};
// Of what `op` multiplies; nothing of what is no product of a layer.
Float8Moves Float8InputMoves(TorchFloat8 recipe, TorchOp op);
Float8Moves Float8WeightMoves(TorchFloat8 recipe, Float8Weights weights);

// torchao casts a shard for the gather in eager code: a product with the scale, a clamp, a cast.
inline constexpr double kFloat8ShardMoves = 21;
inline constexpr int kFloat8ShardLaunches = 3;

}  // namespace zeroplan
