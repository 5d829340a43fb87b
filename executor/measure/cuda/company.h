// What training runs around a kernel that is timed. A GPU's clock follows the power that all of it
// draws: products timed by themselves are up to 5 % slower than in a step of Llama 3.2 1B,
// attention by itself is up to 20 % faster (H200).
#pragma once

#include <cstdint>
#include <functional>

#include "executor/measure/cuda/kernel_bench.h"

namespace zeroplan {

class Company {
 public:
  using Body = std::function<void(const StreamTimer::Company&)>;

  // On the current device, which is `device`. `dtype`: 16-bit, of products and activations.
  Company(int device, Dtype dtype, bool quick);

  // Hands `body` the kernels that move memory, in a step's proportion to a product of [m,k] and
  // [k,n].
  void BesideProduct(int64_t m, int64_t k, int64_t n, const Body& body);
  // Hands `body` a layer of `channels` channels without its attention: its products of `passes`
  // passes (1 forward, 2 backward), and what goes with them.
  void BesideAttention(int64_t tokens, int64_t channels, int passes, const Body& body);

 private:
  Dtype dtype_;
  KernelBench products_, memory_;
};

}  // namespace zeroplan
