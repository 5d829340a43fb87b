// Launches of attention that the cost model is checked against.
#pragma once

#include <cstdint>

#include "core/base/dtype.h"

namespace zeroplan {

// B micro-batch, T sequence, H heads of queries, G of keys and values, D head size.
struct AttentionShape {
  int64_t B, T, H, G, D;
  Dtype dtype = Dtype::kBF16;
};

inline constexpr AttentionShape kAttentionShapes[] = {
    // Plain kernels: fp32, and heads that are no multiple of 8.
    {4, 1024, 12, 12, 64, Dtype::kF32},
    {16, 1024, 12, 12, 64, Dtype::kF32},
    {4, 2048, 32, 8, 64, Dtype::kF32},
    {2, 1024, 16, 16, 80, Dtype::kF32},
    {4, 1024, 32, 32, 128, Dtype::kF32},
    {2, 2048, 32, 8, 128, Dtype::kF32},
    {1, 2048, 16, 8, 256, Dtype::kF32},
    {16, 1024, 12, 12, 60},
    {4, 1024, 32, 32, 100},
    // cuDNN's.
    {8, 1024, 12, 12, 64},
    {8, 2048, 32, 32, 64},
    {8, 2048, 32, 8, 64},
    {8, 2048, 12, 12, 128},
    {8, 2048, 12, 2, 128},
    {2, 4096, 32, 32, 128},
    {2, 4096, 32, 8, 128},
    {8, 1000, 12, 12, 64},
    {2, 1000, 32, 8, 128},
    {2, 1025, 32, 8, 128},
    {8, 2000, 32, 8, 128},
};

}  // namespace zeroplan
