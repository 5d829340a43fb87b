// Launcher of fresh weights.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace zeroplan::cuda {

// dst_n = a constant.
void LaunchConstant(float* dst_n, int64_t n, float value, cudaStream_t stream);

// dst[i] = std * the normal number of element `begin + i` of a tensor, from (seed, tensor, element)
// alone.
void LaunchNormal(float* dst_n, int64_t n, uint64_t seed, uint32_t tensor, uint64_t begin,
                  float std, cudaStream_t stream);

}  // namespace zeroplan::cuda
