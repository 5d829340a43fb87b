// Causal attention on CUDA cores in fp32: for fp32, and where there is no cuDNN. The kernels and
// their launchers.
// Legend: B micro-batch, T sequence, C hidden, H heads, D = C/H head size.
#pragma once

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan {
struct KernelCall;
}

namespace zeroplan::cuda {

// Arguments as AttentionForward's and AttentionBackward's. Heads of at most kMostHeadSize channels;
// the workspace is not touched.
void PlainAttentionForward(const KernelCall& call);
void PlainAttentionBackward(const KernelCall& call);

inline constexpr int64_t kMostHeadSize = 256;

struct PlainAttentionDims {
  int64_t B, T, C, H;
};

// Any T and float dtypes. REQUIRES: D <= kMostHeadSize. No scratch.
cudaError_t LaunchPlainAttentionForward(const PlainAttentionDims& dims, const FloatArray& qkv_BT3C,
                                        const FloatArray& out_BTC, float* lse_BHT,
                                        cudaStream_t stream);

// The gradient of queries by tiles of queries, that of keys and values by tiles of keys: no sum has
// two writers, so results are the same at every run.
cudaError_t LaunchPlainAttentionBackward(const PlainAttentionDims& dims, const FloatArray& dout_BTC,
                                         const FloatArray& qkv_BT3C, const FloatArray& out_BTC,
                                         const float* lse_BHT, const FloatArray& dqkv_BT3C,
                                         cudaStream_t stream);

}  // namespace zeroplan::cuda
