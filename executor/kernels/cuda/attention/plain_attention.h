// Causal attention on CUDA cores in fp32: for fp32, and where there is no cuDNN. The kernels and
// their launchers.
// Legend: B micro-batch, T sequence, H heads of queries, G of keys and values, D head size,
// N = (H+2G)*D.
#pragma once

#include "executor/kernels/attention_dims.h"
#include "executor/kernels/cuda/float_array.h"

namespace zeroplan {
struct KernelCall;
}

namespace zeroplan::cuda {

// Arguments as AttentionForward's and AttentionBackward's. Heads of at most kMostPlainHead
// channels; the workspace is not touched.
void PlainAttentionForward(const KernelCall& call);
void PlainAttentionBackward(const KernelCall& call);

// Any T and float dtypes. REQUIRES: D <= kMostPlainHead. No scratch.
// `starts_BT`: kernel_rows.inc's; null: rows are whole texts.
cudaError_t LaunchPlainAttentionForward(const AttentionDims& dims, const FloatArray& qkv_BTN,
                                        const int32_t* starts_BT, const FloatArray& out_BTHD,
                                        float* lse_BHT, cudaStream_t stream);

// The gradient of queries by tiles of queries, that of keys and values by tiles of keys: no sum has
// two writers, so results are the same at every run.
cudaError_t LaunchPlainAttentionBackward(const AttentionDims& dims, const FloatArray& dout_BTHD,
                                         const FloatArray& qkv_BTN, const FloatArray& out_BTHD,
                                         const float* lse_BHT, const int32_t* starts_BT,
                                         const FloatArray& dqkv_BTN, cudaStream_t stream);

}  // namespace zeroplan::cuda
