// bf16 and fp16 to fp32 and back. Widening is exact; narrowing rounds to nearest, ties to even,
// keeps NaN a (quiet) NaN, and overflows to infinity. fp16 uses the processor's instructions where
// this is compiled for them, else integer arithmetic with the same results.
#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "executor/kernels/simd.h"

namespace zeroplan {

// Outside of executor/kernels these are the baseline's: long arrays are BestCpuKernels()'s
// (cpu_levels.h).

// dst_n = src_n. REQUIRES: dtype is kF32, kBF16 or kF16, for Widen also kE4M3 or kE5M2; the ranges
// do not overlap.
void Widen(Dtype dtype, const void* src, int64_t n, float* dst);
void Narrow(Dtype dtype, const float* src, int64_t n, void* dst);
// To bf16 with halves rounded away from zero, the conversion of master weights to parameters.
void NarrowHalfAway(const float* src, int64_t n, uint16_t* dst);

// One value at `index`; for code that accesses few.
float ReadScalar(Dtype dtype, const void* data, int64_t index);
void WriteScalar(Dtype dtype, void* data, int64_t index, float value);

namespace simd {

ZEROPLAN_INLINE VecF FromBf16(VecH h) { return (VecF)(__builtin_convertvector(h, VecU) << 16); }

ZEROPLAN_INLINE VecH ToBf16(VecF f) {
  const VecU bits = (VecU)f;
  // Half a unit of the last kept bit, less one if that bit is even: the carry does the rounding.
  const VecU rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const VecU quiet_nan = (bits >> 16) | 0x40u;
  return __builtin_convertvector((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded, VecH);
}

// See core/base/split_master.h.
struct MasterHalves {
  VecH param, rest;
};
ZEROPLAN_INLINE MasterHalves SplitMaster(VecF master) {
  VecU bits = (VecU)master;
  bits = (bits & 0x7fffffffu) > 0x7f800000u ? VecU{} + 0x7fc00000u : bits;
  return {__builtin_convertvector((bits + 0x8000u) >> 16, VecH),
          __builtin_convertvector(bits, VecH)};
}
ZEROPLAN_INLINE VecF JoinMaster(MasterHalves halves) {
  const VecU upper = __builtin_convertvector(halves.param, VecU) << 16;
  const VecI rest = (VecI)(__builtin_convertvector(halves.rest, VecU) << 16) >> 16;
  return (VecF)(upper + (VecU)rest);
}

// fp16 without the processor's instructions, in vectors of any length.
template <typename F, typename U, typename H>
ZEROPLAN_INLINE F FromF16ByIntegers(H h) {
  const U w = __builtin_convertvector(h, U);
  const U sign = (w & 0x8000u) << 16;
  const U magnitude = w & 0x7fffu;
  // Normal numbers: move exponent and mantissa into place and change the exponent's bias (127 -
  // 15), by another 112 for infinity and NaN, whose exponent must become 255.
  U normal = (magnitude << 13) + (112u << 23);
  normal = magnitude >= 0x7c00u ? normal + (112u << 23) : normal;
  // Subnormal numbers are magnitude * 2^-24: let a float subtraction normalise them.
  const F small = (F)(magnitude | (126u << 23)) - 0.5f;  // (0.5 + magnitude * 2^-24) - 0.5
  return (F)((magnitude < 0x400u ? (U)small : normal) | sign);
}
template <typename H, typename U, typename F>
ZEROPLAN_INLINE H ToF16ByIntegers(F f) {
  const U bits = (U)f;
  const U sign = (bits >> 16) & 0x8000u;
  const U magnitude = bits & 0x7fffffffu;
  // Normal results: change the exponent's bias and round as for bf16; a carry may reach infinity.
  U normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  normal = normal > 0x7c00u ? U{} + 0x7c00u : normal;
  // Results below 2^-14: adding 0.5 aligns the value so that its lowest kept bit is the float's
  // lowest, and the addition rounds.
  const U subnormal = (U)((F)magnitude + 0.5f) - (126u << 23);
  U result = magnitude < (113u << 23) ? subnormal : normal;
  result = magnitude >= (143u << 23) ? U{} + 0x7c00u : result;  // 2^16 and up
  result = magnitude > 0x7f800000u ? (0x7e00u | ((bits >> 13) & 0x3ffu)) : result;
  return __builtin_convertvector(result | sign, H);
}

ZEROPLAN_INLINE VecF FromF16(VecH h) {
#if defined(__AVX512F__)
  return (VecF)_mm512_maskz_cvtph_ps(0xffff, (__m256i)h);
#elif defined(__F16C__)
  __m128i bits;
  std::memcpy(&bits, &h, sizeof(bits));
  return (VecF)_mm256_cvtph_ps(bits);
#else
  return FromF16ByIntegers<VecF, VecU>(h);
#endif
}

ZEROPLAN_INLINE VecH ToF16(VecF f) {
#if defined(__AVX512F__)
  return (VecH)_mm512_maskz_cvtps_ph(0xffff, (__m512)f,
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
  const __m128i bits = _mm256_cvtps_ph((__m256)f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  VecH h;
  std::memcpy(&h, &bits, sizeof(h));
  return h;
#else
  return ToF16ByIntegers<VecH, VecU>(f);
#endif
}

}  // namespace simd
}  // namespace zeroplan
