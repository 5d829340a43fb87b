// The arithmetic of AdamW on fp32 arrays, for the instruction set of the machine it runs on.
#pragma once

#include <cstdint>

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

// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= lr m' / (sqrt(v') + eps) + decay p, with m',
// v' bias-corrected. An element's result does not depend on where the arrays start or end.
using AdamUpdateFn = void (*)(const AdamConstants& constants, int64_t n, const float* grad,
                              float* master, float* m, float* v);

enum class AdamIsa : uint8_t { kPortable, kAvx2, kAvx512 };
// nullptr where this processor (or this build's) lacks it.
AdamUpdateFn AdamUpdateFor(AdamIsa isa);
// The widest this processor has.
AdamUpdateFn BestAdamUpdate();

}  // namespace zeroplan
