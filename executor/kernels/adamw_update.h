// The loops of AdamW and of 8-bit moments, of which all instruction sets make the same bits.
#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "core/base/dynamic8.h"

namespace zeroplan {

// One step's constants. With decoupled decay (AdamW) `decay` is lr * weight_decay and `l2` 0; with
// decay added to the gradient (Adam) the other way round.
struct AdamConstants {
  float lr, beta1, beta2, eps;
  float rest1, rest2;  // 1 - beta, rounded once: in fp32 1 - 0.999 would be off by 1e-5 of it
  float grad_factor;   // unscaling and clipping of the gradient
  float inverse_correction1;       // 1 / (1 - beta1^t)
  float inverse_sqrt_correction2;  // 1 / sqrt(1 - beta2^t)
  float decay, l2;
};

// The arrays that a launch of the kAdamW row updates, in the dtypes that the row allows. param:
// nullptr if there is none.
struct AdamArrays {
  Dtype grad_dtype = Dtype::kF32, master_dtype = Dtype::kF32, param_dtype = Dtype::kF32;
  const void* grad = nullptr;
  void *master = nullptr, *m = nullptr, *v = nullptr, *param = nullptr;
};

// Elements [first, first + n) of the arrays: elements of their tensor from `element` on.
struct AdamRange {
  int64_t first = 0, n = 0;
  uint32_t element = 0;
  uint64_t key = 0;  // RoundingKey
};

// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= lr m' / (sqrt(v') + eps) + decay p, with m',
// v' bias-corrected. An element's result does not depend on the bounds of ranges. With 8-bit
// moments `first` is a group's first element, and elements of the last group after the range count
// as 0.
using AdamUpdateFn = void (*)(const AdamConstants& constants, const AdamArrays& arrays,
                              const AdamRange& range);

struct AdamLoops {
  AdamUpdateFn f32, bf16, dynamic8;  // by the moments' dtype
  // Converts master weights to the parameters alone, as the update would.
  void (*write_param)(const AdamArrays& arrays, int64_t first, int64_t n);
  // Converts a group's numbers to codes and scale, and back.
  void (*encode)(Dtype dtype, const float* x, uint8_t* codes, float* scale);
  void (*decode)(Dtype dtype, const uint8_t* codes, float scale, float* x);

  AdamUpdateFn UpdateOf(Dtype moments) const {
    return IsDynamic8(moments) ? dynamic8 : moments == Dtype::kBF16 ? bf16 : f32;
  }
};

// The loops of the instruction set that the file which uses them is compiled for. Outside of
// executor/kernels: BestCpuKernels().adam (cpu_levels.h).
extern const AdamLoops kAdamLoops;

}  // namespace zeroplan
