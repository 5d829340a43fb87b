// Compiled without contraction to fused multiply-adds (CMakeLists.txt): products and sums are
// rounded one by one on every machine.
#include "executor/kernels/adamw_update.h"

#include <array>
#include <bit>
#include <cstddef>

#include "executor/kernels/convert.h"
#include "executor/kernels/stochastic_rounding.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define ADAM_INLINE ZEROPLAN_INLINE

namespace zeroplan {
namespace {

namespace portable {
#define ADAM_LANES 4
#include "executor/kernels/adamw_update.inc"
#undef ADAM_LANES
}  // namespace portable

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif
namespace avx2 {
#define ADAM_LANES 8
#include "executor/kernels/adamw_update.inc"
#undef ADAM_LANES
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
#include "executor/kernels/adamw_update.inc"
#undef ADAM_LANES
}  // namespace avx512
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

}  // namespace

const AdamLoops* AdamLoopsFor(AdamIsa isa) {
  switch (isa) {
    case AdamIsa::kPortable:
      return &portable::kLoops;
#if defined(__x86_64__)
    case AdamIsa::kAvx2:  // all that have it have F16C
      return __builtin_cpu_supports("avx2") ? &avx2::kLoops : nullptr;
    case AdamIsa::kAvx512:
      return __builtin_cpu_supports("avx512f") ? &avx512::kLoops : nullptr;
#else
    case AdamIsa::kAvx2:
    case AdamIsa::kAvx512:
      return nullptr;
#endif
  }
  return nullptr;
}

const AdamLoops& BestAdamLoops() {
  static const AdamLoops* const best = [] {
    if (const AdamLoops* loops = AdamLoopsFor(AdamIsa::kAvx512)) return loops;
    if (const AdamLoops* loops = AdamLoopsFor(AdamIsa::kAvx2)) return loops;
    return AdamLoopsFor(AdamIsa::kPortable);
  }();
  return *best;
}

}  // namespace zeroplan
