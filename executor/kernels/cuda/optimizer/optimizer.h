// Launchers of the parameter update: AdamW, fresh weights, the gradient norm's part, the step's
// scalars. Callers split ranges of a parameter unit at its tensors' borders.
#pragma once

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan {
struct StepSettings;
struct StepState;
}  // namespace zeroplan

namespace zeroplan::cuda {

// Elements [end of the piece before, end) of the arrays: of a tensor, or padding. The first piece
// begins where the launch does.
inline constexpr int kPaddingPiece = -1;
struct AdamPiece {
  int64_t end;
  int tensor;  // kPaddingPiece: none
  bool decays;
  // index in the arrays of the tensor's first element, modulo 2^32: it may be before them
  uint32_t origin;
};
struct AdamPieces {
  static constexpr int kMost = 64;
  int count = 0;
  AdamPiece all[kMost];
};

struct AdamSettings {
  float beta1, beta2, eps;
  float rest1, rest2;  // 1 - beta, rounded once
  float weight_decay;
  bool decoupled;  // AdamW; else decay is added to the gradient
  uint64_t seed;   // seed of stochastic rounding
};

// The arrays, an element each; dtypes of the states as in the row.
struct AdamArrays {
  FloatArray grad_n, master_n, m_n, v_n, param_n;
};

// Updates elements [first, pieces' last end) of the arrays; those before `first` are done. Reads
// lr, gradient factor, bias corrections, step and skip from `state`. Padding and a skipped step
// change only a param that is separate from the master (absent: nothing): it becomes master in its
// dtype. REQUIRES for moments in groups: first, the last end and the starts of tensors are
// multiples of a group's elements, and all arrays are aligned to 16 bytes.
void LaunchAdamW(const AdamArrays& arrays, const StepState* state, int64_t first,
                 const AdamPieces& pieces, const AdamSettings& settings, cudaStream_t stream);

// dst_n = a constant.
void LaunchConstant(float* dst_n, int64_t n, float value, cudaStream_t stream);

// dst[i] = bound * the uniform number in (-1, 1] of element `begin + i` of a tensor, as below.
void LaunchUniform(float* dst_n, int64_t n, uint64_t seed, uint32_t tensor, uint64_t begin,
                   float bound, cudaStream_t stream);

// dst[i] = std * the normal number of element `begin + i` of a tensor, which depends on (seed,
// tensor, element) alone.
void LaunchNormal(float* dst_n, int64_t n, uint64_t seed, uint32_t tensor, uint64_t begin,
                  float std, cudaStream_t stream);

// state->grad_norm_sq (+)= sum of squares of g_n, in double; `partials`: NormBlocks(n) doubles.
void LaunchNormSq(const FloatArray& g_n, int64_t n, StepState* state, bool add, double* partials,
                  cudaStream_t stream);

// SettleStep (executor/optimizer/step_scalars.h) by one thread of the GPU.
void LaunchStepScalars(const StepSettings& settings, StepState* state, cudaStream_t stream);

}  // namespace zeroplan::cuda
