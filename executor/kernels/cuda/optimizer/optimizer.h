// Launchers of what updates parameters: AdamW, fresh weights, the gradient norm's part, the step's
// scalars. Ranges of a parameter unit are cut at its tensors' borders before they come here.
#pragma once

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan {
struct StepSettings;
struct StepState;
}  // namespace zeroplan

namespace zeroplan::cuda {

// Kinds of elements for AdamW.
enum class AdamPiece : int32_t { kPadding, kPlain, kDecayed };

// Elements [end of the piece before, end) of the arrays. The first piece begins where the launch
// does.
struct AdamPieces {
  static constexpr int kMost = 64;
  int count = 0;
  AdamPiece kinds[kMost];
  int64_t ends[kMost];
};

struct AdamSettings {
  float beta1, beta2, eps;
  float rest1, rest2;  // 1 - beta, rounded once
  float weight_decay;
  bool decoupled;  // AdamW; else decay is added to the gradient
};

// Elements [first, pieces' last end) of the arrays; those before `first` have been worked on.
// Reads lr, gradient factor, bias corrections and skip from `state`. Padding and a skipped step
// change only param (absent: nothing), which becomes master in its dtype.
void LaunchAdamW(const FloatArray& grad_n, const StepState* state, float* master_n, float* m_n,
                 float* v_n, const FloatArray& param_n, int64_t first, const AdamPieces& pieces,
                 const AdamSettings& settings, cudaStream_t stream);

// dst_n = a constant.
void LaunchConstant(float* dst_n, int64_t n, float value, cudaStream_t stream);

// dst[i] = bound * the uniform number in (-1, 1] of element `begin + i` of a tensor, as above.
void LaunchUniform(float* dst_n, int64_t n, uint64_t seed, uint32_t tensor, uint64_t begin,
                   float bound, cudaStream_t stream);

// dst[i] = std * the normal number of element `begin + i` of a tensor, from (seed, tensor, element)
// alone.
void LaunchNormal(float* dst_n, int64_t n, uint64_t seed, uint32_t tensor, uint64_t begin,
                  float std, cudaStream_t stream);

// state->grad_norm_sq (+)= sum of squares of g_n, in double; `partials`: NormBlocks(n) doubles.
void LaunchNormSq(const FloatArray& g_n, int64_t n, StepState* state, bool add, double* partials,
                  cudaStream_t stream);

// SettleStep (executor/optimizer/step_scalars.h) by one thread of the GPU.
void LaunchStepScalars(const StepSettings& settings, StepState* state, cudaStream_t stream);

}  // namespace zeroplan::cuda
