#include "executor/kernels/adamw_update.h"

#include <cstddef>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace zeroplan {
namespace {

namespace portable {
#if defined(__SSE2__)
#define ADAM_LANES 4
#define ADAM_SQRT(v) ((Vec)_mm_sqrt_ps((__m128)(v)))
#else
#define ADAM_LANES 1
#define ADAM_SQRT(v) (Vec{__builtin_sqrtf((v)[0])})
#endif
#include "executor/kernels/adamw_update.inc"
#undef ADAM_LANES
#undef ADAM_SQRT
}  // namespace portable

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace avx2 {
#define ADAM_LANES 8
#define ADAM_SQRT(v) ((Vec)_mm256_sqrt_ps((__m256)(v)))
#include "executor/kernels/adamw_update.inc"
#undef ADAM_LANES
#undef ADAM_SQRT
}  // namespace avx2
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f")
#endif
namespace avx512 {
#define ADAM_LANES 16
// The full mask avoids GCC 12's warning about the unmasked intrinsic's undefined operand.
#define ADAM_SQRT(v) ((Vec)_mm512_maskz_sqrt_ps(0xffff, (__m512)(v)))
#include "executor/kernels/adamw_update.inc"
#undef ADAM_LANES
#undef ADAM_SQRT
}  // namespace avx512
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

}  // namespace

AdamUpdateFn AdamUpdateFor(AdamIsa isa) {
  switch (isa) {
    case AdamIsa::kPortable:
      return portable::Update;
#if defined(__x86_64__)
    case AdamIsa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? avx2::Update
                                                                             : nullptr;
    case AdamIsa::kAvx512:
      return __builtin_cpu_supports("avx512f") ? avx512::Update : nullptr;
#else
    case AdamIsa::kAvx2:
    case AdamIsa::kAvx512:
      return nullptr;
#endif
  }
  return nullptr;
}

AdamUpdateFn BestAdamUpdate() {
  static const AdamUpdateFn best = [] {
    if (const AdamUpdateFn update = AdamUpdateFor(AdamIsa::kAvx512)) return update;
    if (const AdamUpdateFn update = AdamUpdateFor(AdamIsa::kAvx2)) return update;
    return AdamUpdateFor(AdamIsa::kPortable);
  }();
  return best;
}

}  // namespace zeroplan
