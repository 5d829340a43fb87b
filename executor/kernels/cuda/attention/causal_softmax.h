// The softmax between the batched products of unfused attention. Legend: rows = B*H*T, of T keys
// each; row r is query r % T, which sees the keys of its document up to its own.
#pragma once

#include "core/base/host_device.h"
#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

// Where documents start, starts_BT of kernel_rows.inc. Null: a sequence is one document.
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

}  // namespace zeroplan::cuda
