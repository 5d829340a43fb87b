// Launcher of AdamW and of fresh weights: ranges of a parameter unit, cut at its tensors' borders.
#pragma once

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan {
struct StepState;
}

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

}  // namespace zeroplan::cuda
