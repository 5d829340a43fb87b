// The softmax between the matrix products of unfused attention.
//
// Legend: R = B*H*T rows, one a query; T sequence (keys). Row r is query r % T, which sees the keys
// up to itself.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/base/dtype.h"

namespace zeroplan::cuda {

// scores_RT -> softmax over the visible keys of scale * scores, 0 at the others; in place.
void CausalSoftmax(void* scores_RT, Dtype dtype, int64_t R, int64_t T, float scale,
                   cudaStream_t stream);

// dprobs_RT -> scale * probs * (dprobs - sum over keys of dprobs * probs), in place: the gradient of
// the unscaled scores. 0 at keys that are not visible, whatever is there.
void CausalSoftmaxBackward(const void* probs_RT, void* dprobs_RT, Dtype dtype, int64_t R, int64_t T,
                           float scale, cudaStream_t stream);

}  // namespace zeroplan::cuda
