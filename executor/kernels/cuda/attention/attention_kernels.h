// Our own kernels of attention. Legend: B micro-batch, T sequence, H heads of queries, G of keys
// and values, D head size, N = (H+2G)*D.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/base/host_device.h"
#include "core/program/attention_path.h"
#include "executor/kernels/attention_dims.h"
#include "executor/kernels/cuda/float_array.h"

namespace zeroplan {
struct KernelCall;
}

namespace zeroplan::cuda {

// Causal attention on CUDA cores in fp32: for fp32, and for machines without cuDNN. The kernels and
// their launchers.

// Same arguments as AttentionForward and AttentionBackward. Heads of at most kMostPlainHead
// channels; the workspace is unused.
void PlainAttentionForward(const KernelCall& call);
void PlainAttentionBackward(const KernelCall& call);

// Any T and float dtypes. REQUIRES: D <= kMostPlainHead. No scratch. `starts_BT`: as in
// kernel_rows.inc; null: rows are whole texts.
cudaError_t LaunchPlainAttentionForward(const AttentionDims& dims, const FloatArray& qkv_BTN,
                                        const int32_t* starts_BT, const FloatArray& out_BTHD,
                                        float* lse_BHT, cudaStream_t stream);

// Computes the gradient of queries by tiles of queries, that of keys and values by tiles of keys:
// no sum has two writers, so results are the same in every run.
cudaError_t LaunchPlainAttentionBackward(const AttentionDims& dims, const FloatArray& dout_BTHD,
                                         const FloatArray& qkv_BTN, const FloatArray& out_BTHD,
                                         const float* lse_BHT, const int32_t* starts_BT,
                                         const FloatArray& dqkv_BTN, cudaStream_t stream);

// Our own fused kernels in the manner of FlashAttention 2: bf16 and fp16, compute capability 8.0
// and later, heads of at most kMostOwnHead channels in multiples of 8.

// Same arguments as AttentionForward and AttentionBackward, all of one such dtype but lse.
// REQUIRES: OwnGapOf the launch is kNone.
void OwnAttentionForward(const KernelCall& call);
void OwnAttentionBackward(const KernelCall& call);

struct OwnAttention {
  AttentionDims dims{};
  Dtype dtype = Dtype::kBF16;          // lse, sinks and their gradients are fp32
  const void* qkv_BTN = nullptr;       // at a multiple of 16 bytes
  const int32_t* starts_BT = nullptr;  // as in kernel_rows.inc; null: rows are whole texts
  int64_t window = 0;                  // most keys that a query sees, itself included; 0: no limit
  float soft_cap = 0;  // scores s become soft_cap * tanh(s / soft_cap); 0: they stay
  // A score for each head that takes part in the softmax with no key and no value; null: none.
  const float* sinks_H = nullptr;
  int shared_bytes = 0;  // that a block may have on this GPU; kLeastSharedOfBlock are there anyway
};

// Shared memory that a block may have on every GPU from compute capability 8.0 on: 8.6, 8.9 and
// 12.0 have no more (CUDA programming guide, technical specifications).
inline constexpr int kLeastSharedOfBlock = 99 * 1024;
// Shared memory that a block takes for heads of D channels where it may have so much.
int OwnForwardSharedBytes(int64_t D, int shared_bytes);
int OwnBackwardSharedBytes(int64_t D, int shared_bytes);

cudaError_t LaunchOwnAttentionForward(const OwnAttention& of, void* out_BTHD, float* lse_BHT,
                                      cudaStream_t stream);

struct OwnGradients {
  const void *dout_BTHD = nullptr, *out_BTHD = nullptr;
  const float* lse_BHT = nullptr;
  void* dqkv_BTN = nullptr;
  float* dsinks_H = nullptr;  // null: not wanted
  void* workspace = nullptr;  // as OwnAttentionWorkspaceOf lays it out
  bool deterministic = false;
};
// `deterministic`: dQ of each query is added up from its last keys to its first, so that equal
// inputs give equal bits.
cudaError_t LaunchOwnAttentionBackward(const OwnAttention& of, const OwnGradients& grads,
                                       cudaStream_t stream);

// The softmax between the batched matmuls of unfused attention. Legend: rows = B*H*T, of T keys
// each; row r is query r % T, which sees the keys of its document up to its own.

// The starts of documents, starts_BT of kernel_rows.inc. Null: a sequence is one document.
struct RowBorders {
  const int32_t* starts_BT = nullptr;
  int64_t H = 1;

  // The first key that row r sees.
  ZEROPLAN_HOST_DEVICE int64_t First(int64_t r, int64_t T) const {
    return starts_BT == nullptr ? 0 : starts_BT[r / (H * T) * T + r % T];
  }
};

// In place: scores -> softmax of (scale * scores) over the visible keys, 0 for the others.
void LaunchCausalSoftmax(const FloatArray& scores, const RowBorders& borders, int64_t rows,
                         int64_t T, float scale, cudaStream_t stream);

// dprobs -> gradient of the scores before scaling, probs * (dprobs - sum(dprobs * probs)) * scale,
// 0 where masked.
void LaunchCausalSoftmaxBackward(const FloatArray& probs, const FloatArray& dprobs, int64_t rows,
                                 int64_t T, float scale, cudaStream_t stream);

// The places of a batch's documents, in the form of cuDNN's ragged batches.

// Fills the offsets and lengths of DocumentWorkspace at `workspace` from starts_BT
// (kernel_rows.inc). More documents than `slots`, or a document of more than `longest` tokens, end
// the launch with an error.
struct DocumentTablesArgs {
  const int32_t* starts_BT = nullptr;
  AttentionDims dims{};
  int64_t slots = 0, longest = 0;
  DocumentWorkspace at;
};
void LaunchDocumentTables(const DocumentTablesArgs& args, void* workspace, cudaStream_t stream);

}  // namespace zeroplan::cuda
