// Short fixed-width vectors of the instruction set that this file is compiled for: AVX-512, AVX or
// SSE2 (on other machines the compiler's code for 16 bytes). Written with the compiler's vector
// types, so that the hot loops do not depend on its auto-vectoriser.
//
// A loop over n elements calls its body with Full() for whole vectors and once with Part(count) for
// the rest. The rest runs the same vector code, padded, so an element's result never depends on the
// end of a chunk.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

// GCC notes that passing these vectors by value between object files of different targets would not
// work. Every function here is inlined, none crosses.
#pragma GCC diagnostic ignored "-Wpsabi"

#define ZEROPLAN_INLINE [[gnu::always_inline]] inline

namespace zeroplan::simd {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif
inline constexpr int kLanes = kVectorBytes / 4;

using VecF = float __attribute__((vector_size(kVectorBytes)));
using VecI = int32_t __attribute__((vector_size(kVectorBytes)));
using VecU = uint32_t __attribute__((vector_size(kVectorBytes)));
using VecH = uint16_t __attribute__((vector_size(kVectorBytes / 2)));  // kLanes 16-bit patterns

struct Full {
  static constexpr int count() { return kLanes; }
};
struct Part {
  int64_t n;
  int count() const { return static_cast<int>(n); }
};

template <typename Fn>
ZEROPLAN_INLINE void VectorLoop(int64_t n, Fn&& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, Full{});
  if (i < n) body(i, Part{n - i});
}

template <typename Vec, typename T>
ZEROPLAN_INLINE Vec LoadAs(const T* p, Full) {
  Vec v;
  std::memcpy(&v, p, sizeof(Vec));
  return v;
}
// Lanes past the part are 0.
template <typename Vec, typename T>
ZEROPLAN_INLINE Vec LoadAs(const T* p, Part part) {
  Vec v{};
  std::memcpy(&v, p, static_cast<size_t>(part.n) * sizeof(T));
  return v;
}
template <typename Vec, typename T>
ZEROPLAN_INLINE void StoreTo(T* p, Vec v, Full) {
  std::memcpy(p, &v, sizeof(Vec));
}
template <typename Vec, typename T>
ZEROPLAN_INLINE void StoreTo(T* p, Vec v, Part part) {
  std::memcpy(p, &v, static_cast<size_t>(part.n) * sizeof(T));
}
template <typename P = Full>
ZEROPLAN_INLINE VecF Load(const float* p, P part = {}) {
  return LoadAs<VecF>(p, part);
}
template <typename P = Full>
ZEROPLAN_INLINE void Store(float* p, VecF v, P part = {}) {
  StoreTo(p, v, part);
}

ZEROPLAN_INLINE VecF Splat(float x) { return VecF{} + x; }

// Lane i is `v` where i < count, else `other`.
ZEROPLAN_INLINE VecF FirstLanes(VecF v, int count, VecF other) {
  VecI lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return lane < count ? v : other;
}
ZEROPLAN_INLINE VecF Keep(VecF v, Full, VecF) { return v; }
ZEROPLAN_INLINE VecF Keep(VecF v, Part part, VecF other) {
  return FirstLanes(v, part.count(), other);
}

// Lane sums in a fixed tree.
ZEROPLAN_INLINE float Sum(VecF v) {
  float lanes[kLanes];
  std::memcpy(lanes, &v, sizeof(v));
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}
// May lose a NaN lane: use only if a later sum shows it.
ZEROPLAN_INLINE VecF Max(VecF a, VecF b) { return a > b ? a : b; }
ZEROPLAN_INLINE float Max(VecF v) {
  float lanes[kLanes];
  std::memcpy(lanes, &v, sizeof(v));
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    }
  }
  return lanes[0];
}

// (GCC 12 warns of the undefined operand inside the unmasked AVX-512 intrinsics; a full mask is
// free.)
ZEROPLAN_INLINE VecF Sqrt(VecF v) {
#if defined(__AVX512F__)
  return (VecF)_mm512_maskz_sqrt_ps(0xffff, (__m512)v);
#elif defined(__AVX__)
  return (VecF)_mm256_sqrt_ps((__m256)v);
#elif defined(__SSE2__)
  return (VecF)_mm_sqrt_ps((__m128)v);
#else
  for (int i = 0; i < kLanes; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#endif
}

// e^x within 2 units in the last place; 0 below the smallest normal number, infinity past the
// largest, NaN stays NaN. x = n ln2 + r with |r| <= ln2/2, then a degree 6 polynomial (minimax,
// Cephes' expf coefficients) and 2^n through the exponent bits.
ZEROPLAN_INLINE VecF Exp(VecF x) {
  constexpr float kLowest = -87.33654f, kHighest = 88.72283f;  // ln of the normal range
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  VecF t = x > kHighest ? Splat(kHighest) : x;
  t = t < kLowest ? Splat(kLowest) : t;
  const VecF shifted = t * 1.44269504f + kRound;
  const VecF n = shifted - kRound;
  // 0.693359375 has few bits, so n * it is exact; the second constant is the rest of ln2.
  const VecF r = (t - n * 0.693359375f) - n * -2.12194440e-4f;
  VecF p = Splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // In two halves, because 2^128 alone would overflow for the largest x.
  const VecI exponent = (VecI)shifted - (VecI)Splat(kRound);
  const VecI half = exponent >> 1;
  const VecF result = p * (VecF)((half + 127) << 23) * (VecF)((exponent - half + 127) << 23);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  return x < kLowest ? Splat(0) : (x > kHighest ? Splat(kInf) : result);
}

}  // namespace zeroplan::simd
