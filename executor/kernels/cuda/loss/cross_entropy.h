// Launchers of the loss. Legend: R rows, V vocabulary, Vp padded vocabulary.
#pragma once

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan {
struct StepState;
}

namespace zeroplan::cuda {

// Makes loss_R, and replaces the logits by their gradient times state->grad_scale; with state ==
// nullptr makes the losses alone. A target >= V ends the launch with an error.
void LaunchCrossEntropy(const FloatArray& logits_RVp, const int32_t* targets_R,
                        const StepState* state, float* loss_R, int64_t R, int64_t V, int64_t Vp,
                        cudaStream_t stream);

// state->loss_sum (+)= mean of loss_n; one block sums in double.
void LaunchLossReduce(const float* loss_n, int64_t n, StepState* state, bool add,
                      cudaStream_t stream);

}  // namespace zeroplan::cuda
