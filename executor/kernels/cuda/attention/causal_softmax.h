// The softmax between the batched products of unfused attention. Legend: rows = B*H*T, of T keys
// each; row r is query r % T, which sees the keys up to its own.
#pragma once

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

// In place: scores -> softmax of (scale * scores) over the visible keys, 0 for the others.
void LaunchCausalSoftmax(const FloatArray& scores, int64_t rows, int64_t T, float scale,
                         cudaStream_t stream);

// dprobs -> gradient of the scores before scaling, probs * (dprobs - sum(dprobs * probs)) * scale,
// 0 where masked.
void LaunchCausalSoftmaxBackward(const FloatArray& probs, const FloatArray& dprobs, int64_t rows,
                                 int64_t T, float scale, cudaStream_t stream);

}  // namespace zeroplan::cuda
