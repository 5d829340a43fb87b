// The compiler must not contract to fused multiply-adds here (levels.cmake): each multiplication
// and addition is rounded, so all instruction sets give the same bits.
#include "executor/kernels/adamw_update.h"

#include <array>
#include <bit>
#include <cstddef>

#include "executor/kernels/convert.h"
#include "executor/kernels/stochastic_rounding.h"

namespace zeroplan {
namespace {

using simd::FromF16;
using simd::kLanes;
using simd::Sqrt;
using simd::ToF16;
using simd::VecF;
using simd::VecH;
using simd::VecI;
using simd::VecU;
using VecB = uint8_t __attribute__((vector_size(kLanes)));

template <typename V>
ZEROPLAN_INLINE V Load(const void* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(V));
  return v;
}
template <typename V>
ZEROPLAN_INLINE void Store(void* p, V v) {
  __builtin_memcpy(p, &v, sizeof(V));
}

// Operations that have other names in each instruction set. StoreHalves and StoreBytes take the
// lowest bits of integers, all others of which are lost.
#if defined(__AVX512F__)
// (The full mask avoids GCC 12's warning about the unmasked intrinsics' undefined operand.)
ZEROPLAN_INLINE VecI Whole(VecF v) { return (VecI)_mm512_maskz_cvttps_epi32(0xffff, (__m512)v); }
ZEROPLAN_INLINE VecI LoadBytes(const uint8_t* p) {
  return (VecI)_mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128((const __m128i*)p));
}
ZEROPLAN_INLINE void StoreBytes(uint8_t* p, VecI v) {
  _mm_storeu_si128((__m128i*)p, _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)v));
}
ZEROPLAN_INLINE VecU LoadHalves(const void* p) {
  return (VecU)_mm512_maskz_cvtepu16_epi32(0xffff, Load<__m256i>(p));
}
ZEROPLAN_INLINE void StoreHalves(void* p, VecU bits) {
  Store(p, _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)bits));
}
#elif defined(__AVX2__)
ZEROPLAN_INLINE VecI Whole(VecF v) { return (VecI)_mm256_cvttps_epi32((__m256)v); }
ZEROPLAN_INLINE VecI LoadBytes(const uint8_t* p) {
  return (VecI)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
}
ZEROPLAN_INLINE void StoreBytes(uint8_t* p, VecI v) {
  const __m256i lowest = _mm256_set1_epi32(0x0c080400);  // the lowest bytes
  const __m256i fours = _mm256_shuffle_epi8((__m256i)v, lowest);
  _mm_storel_epi64((__m128i*)p, _mm_unpacklo_epi32(_mm256_castsi256_si128(fours),
                                                   _mm256_extracti128_si256(fours, 1)));
}
ZEROPLAN_INLINE VecU LoadHalves(const void* p) {
  return (VecU)_mm256_cvtepu16_epi32(Load<__m128i>(p));
}
ZEROPLAN_INLINE void StoreHalves(void* p, VecU bits) {
  const __m256i lower = _mm256_set1_epi64x(0x0d0c090805040100);  // the lower halves
  const __m256i packed = _mm256_shuffle_epi8((__m256i)bits, lower);
  Store(p, _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
}
#else
ZEROPLAN_INLINE VecI Whole(VecF v) { return __builtin_convertvector(v, VecI); }
ZEROPLAN_INLINE VecI LoadBytes(const uint8_t* p) {
  return __builtin_convertvector(Load<VecB>(p), VecI);
}
ZEROPLAN_INLINE void StoreBytes(uint8_t* p, VecI v) { Store(p, __builtin_convertvector(v, VecB)); }
ZEROPLAN_INLINE VecU LoadHalves(const void* p) {
  return __builtin_convertvector(Load<VecH>(p), VecU);
}
ZEROPLAN_INLINE void StoreHalves(void* p, VecU bits) {
  Store(p, __builtin_convertvector(bits, VecH));
}
#endif

// Eight floats, of which each lane takes that which the lowest three bits of its k number.
struct Table {
#if defined(__AVX512F__)
  VecF twice;
  ZEROPLAN_INLINE explicit Table(const std::array<float, 8>& eight) {
    __builtin_memcpy(&twice, eight.data(), sizeof eight);
    __builtin_memcpy((char*)&twice + sizeof eight, eight.data(), sizeof eight);
  }
  ZEROPLAN_INLINE VecF At(VecI k) const {
    return (VecF)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)k, (__m512)twice);
  }
#elif defined(__AVX2__)
  VecF once;
  ZEROPLAN_INLINE explicit Table(const std::array<float, 8>& eight)
      : once(Load<VecF>(eight.data())) {}
  ZEROPLAN_INLINE VecF At(VecI k) const {
    return (VecF)_mm256_permutevar8x32_ps((__m256)once, (__m256i)k);
  }
#else
  const float* eight;
  ZEROPLAN_INLINE explicit Table(const std::array<float, 8>& floats) : eight(floats.data()) {}
  ZEROPLAN_INLINE VecF At(VecI k) const {
    VecF v;
    for (int i = 0; i < kLanes; ++i) v[i] = eight[k[i] & 7];
    return v;
  }
#endif
};

// The bits of x, and of the quiet NaN in place of any other (core/base/split_master.h).
ZEROPLAN_INLINE VecU QuietBits(VecF x) { return x == x ? (VecU)x : VecU{} + 0x7fc00000u; }

// 16 bits of such bits: halves away from zero, to even, and by random bits
// (executor/kernels/stochastic_rounding.h).
ZEROPLAN_INLINE VecU Bf16HalfAway(VecU bits) { return (bits + 0x8000u) >> 16; }
ZEROPLAN_INLINE VecU Bf16HalfEven(VecU bits) {
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
ZEROPLAN_INLINE VecU Bf16ByChance(VecU bits, VecU random16) { return (bits + random16) >> 16; }

ZEROPLAN_INLINE VecH StochasticF16(VecF x, VecU random16) {
  const VecU sign = (VecU)x & 0x80000000u, magnitude = (VecU)x & 0x7fffffffu;
  VecU normal = (magnitude + (random16 >> 3)) & ~0x1fffu;
  normal = normal > 0x477fe000u ? VecU{} + 0x477fe000u : normal;
  // Below 2^-14 alone, so that the integers below hold them.
  const VecU low = magnitude < 0x38800000u ? magnitude : VecU{};
  const VecF sum = (VecF)low * 0x1p24f + __builtin_convertvector((VecI)random16, VecF) * 0x1p-16f;
  const VecF small = __builtin_convertvector(Whole(sum), VecF) * 0x1p-24f;
  const VecU finite = magnitude < 0x38800000u ? (VecU)small : normal;
  return ToF16((VecF)(sign | (magnitude < 0x7f800000u ? finite : magnitude)));
}

// Eight bits (core/base/dynamic8.h).

ZEROPLAN_INLINE VecF Magnitude(VecF x) { return (VecF)((VecU)x & 0x7fffffffu); }
ZEROPLAN_INLINE VecF WithSign(VecF magnitude, VecF x) {
  return (VecF)((VecU)magnitude | ((VecU)x & 0x80000000u));
}

template <bool kSign>
struct Dynamic8 {
  static constexpr const Dynamic8Map& kMap = kSign ? kDynamic8Map : kUnsignedDynamic8Map;
  Table from, factor, offset, last, value_factor, value_offset;
  ZEROPLAN_INLINE Dynamic8()
      : from(kMap.from),
        factor(kMap.factor),
        offset(kMap.offset),
        last(kMap.last),
        value_factor(kMap.value_factor),
        value_offset(kMap.value_offset) {}

  // Numbers of -1 to 1.
  ZEROPLAN_INLINE VecF Decode(const uint8_t* codes) const {
    const VecF place = __builtin_convertvector(LoadBytes(codes) - kMap.zero, VecF);
    const VecF y = (kSign ? Magnitude(place) : place) + kMap.origin;
    const VecI k = (VecI)y >> 23;
    const VecF value = y * value_factor.At(k) - value_offset.At(k);
    if (!kSign) return value;
    return WithSign(value, place);
  }

  // Codes of numbers of -1 to 1, or 0 to 1 where there is no sign.
  ZEROPLAN_INLINE VecI Encode(VecF x) const {
    // A number that small is 0, and has a decade.
    constexpr int32_t kLeast = 0x33d6bf95;  // 1e-7
    const VecI bits = (VecI)(kSign ? Magnitude(x) : x);
    const VecF a = (VecF)(bits > kLeast ? bits : VecI{} + kLeast);
    // The bits as an integer are a logarithm that is at most 0.086 octaves too small. So of 7.03
    // more than its decadic one the whole part is the decade or, near the next one, that.
    constexpr float kSlope = 0.30103f / (1 << 23), kStart = 7.03f - 127 * 0.30103f;
    const VecI above = Whole(__builtin_convertvector((VecI)a, VecF) * kSlope + kStart);
    const VecI decade = above + (a < from.At(above));
    const VecI exact = (VecI)(a * factor.At(decade) - offset.At(decade));
    const VecI most = (VecI)last.At(decade);
    const VecF place = (VecF)(exact < most ? exact : most);
    if (!kSign) return Whole(place);
    const VecI code = Whole(WithSign(place, x)) + kMap.zero;
    return code > 0 ? code : VecI{};
  }
};

// The largest of numbers that are not negative.
ZEROPLAN_INLINE uint32_t MostOf(VecI v) {
  int32_t most = 0;
  for (int i = 0; i < kLanes; ++i) most = most > v[i] ? most : v[i];
  return (uint32_t)most;
}

// The bits of the largest positive number and of the largest negative one's magnitude.
struct Largest {
  VecI positive;
  VecU negative;
  ZEROPLAN_INLINE Largest() : positive{}, negative{} {}
  ZEROPLAN_INLINE void Add(VecF x) {
    positive = (VecI)x > positive ? (VecI)x : positive;
    negative = (VecU)x > negative ? (VecU)x : negative;
  }
  ZEROPLAN_INLINE void AddMagnitude(VecF x) {
    const VecI bits = (VecI)Magnitude(x);
    positive = bits > positive ? bits : positive;
  }
  ZEROPLAN_INLINE float Scale() const {
    const VecI negatives = (VecI)negative < 0 ? (VecI)negative & 0x7fffffff : VecI{};
    return std::bit_cast<float>(Dynamic8ScaleBits(MostOf(positive), MostOf(negatives)));
  }
};

template <bool kSign>
ZEROPLAN_INLINE void EncodeGroup(const Dynamic8<kSign>& map, const float* x, float scale,
                                 uint8_t* codes) {
  const float inverse = InverseDynamic8Scale(scale);
  if (inverse == 0) {
    __builtin_memset(codes, map.kMap.zero, kDynamic8Group);
    return;
  }
  for (int i = 0; i < kDynamic8Group; i += kLanes) {
    StoreBytes(codes + i, map.Encode(Load<VecF>(x + i) * inverse));
  }
}

inline void Encode(Dtype dtype, const float* x, uint8_t* codes, float* scale) {
  const bool has_sign = dtype == Dtype::kDynamic8;
  Largest largest;
  alignas(64) float magnitudes[kDynamic8Group];
  for (int i = 0; i < kDynamic8Group; i += kLanes) {
    const VecF magnitude = Magnitude(Load<VecF>(x + i));
    largest.Add(has_sign ? Load<VecF>(x + i) : magnitude);
    Store(magnitudes + i, magnitude);
  }
  *scale = largest.Scale();
  if (has_sign) {
    EncodeGroup(Dynamic8<true>(), x, *scale, codes);
  } else {
    EncodeGroup(Dynamic8<false>(), magnitudes, *scale, codes);
  }
}

inline void Decode(Dtype dtype, const uint8_t* codes, float scale, float* x) {
  const Dynamic8<true> with_sign;
  const Dynamic8<false> without;
  for (int i = 0; i < kDynamic8Group; i += kLanes) {
    const VecF value =
        dtype == Dtype::kDynamic8 ? with_sign.Decode(codes + i) : without.Decode(codes + i);
    Store(x + i, value * scale);
  }
}

// AdamW.

ZEROPLAN_INLINE void* At(void* array, Dtype dtype, int64_t i) {
  return (char*)array + (dtype == Dtype::kF32 ? 4 : 2) * i;
}
ZEROPLAN_INLINE VecF LoadFloats(const void* array, Dtype dtype, int64_t i) {
  const void* p = At((void*)array, dtype, i);
  if (dtype == Dtype::kF32) return Load<VecF>(p);
  if (dtype == Dtype::kBF16) return (VecF)(LoadHalves(p) << 16);
  return FromF16(Load<VecH>(p));
}

ZEROPLAN_INLINE VecF LoadMaster(const AdamArrays& a, int64_t i) {
  if (a.master_dtype != Dtype::kI16) return LoadFloats(a.master, a.master_dtype, i);
  const VecU rest = LoadHalves((const int16_t*)a.master + i);
  const VecU upper = LoadHalves((const uint16_t*)a.param + i);
  return (VecF)((upper << 16) + (VecU)((VecI)(rest << 16) >> 16));
}

ZEROPLAN_INLINE void StoreParam(const AdamArrays& a, int64_t i, VecF p) {
  if (a.param == nullptr) return;
  void* to = At(a.param, a.param_dtype, i);
  if (a.param_dtype == Dtype::kBF16) {
    StoreHalves(to, Bf16HalfAway(QuietBits(p)));
  } else if (a.param_dtype == Dtype::kF16) {
    Store(to, ToF16(p));
  } else {
    Store(to, p);
  }
}

ZEROPLAN_INLINE void StoreMaster(const AdamArrays& a, int64_t i, VecF p, VecU words) {
  void* to = At(a.master, a.master_dtype, i);
  if (a.master_dtype == Dtype::kF32) {
    Store(to, p);
    StoreParam(a, i, p);
  } else if (a.master_dtype == Dtype::kI16) {
    const VecU bits = QuietBits(p);
    StoreHalves(to, bits);
    StoreHalves((uint16_t*)a.param + i, Bf16HalfAway(bits));
  } else if (a.master_dtype == Dtype::kBF16) {
    const VecU rounded = Bf16ByChance(QuietBits(p), words & 0xffffu);
    StoreHalves(to, rounded);
    if (a.param != nullptr) StoreHalves((uint16_t*)a.param + i, rounded);
  } else {
    const VecH rounded = StochasticF16(p, words & 0xffffu);
    Store(to, rounded);
    if (a.param != nullptr) Store((uint16_t*)a.param + i, rounded);
  }
}

struct Moments {
  VecF m, v;
};

// AdamConstants, one in each lane.
struct Constants {
  VecF grad_factor, l2, beta1, rest1, beta2, rest2, root_factor, eps, rate, decay;
  ZEROPLAN_INLINE explicit Constants(const AdamConstants& c)
      : grad_factor(VecF{} + c.grad_factor),
        l2(VecF{} + c.l2),
        beta1(VecF{} + c.beta1),
        rest1(VecF{} + c.rest1),
        beta2(VecF{} + c.beta2),
        rest2(VecF{} + c.rest2),
        root_factor(VecF{} + c.inverse_sqrt_correction2),
        eps(VecF{} + c.eps),
        rate(VecF{} + c.lr * c.inverse_correction1),
        decay(VecF{} + c.decay) {}
};

// One vector of gradients and master weights.
ZEROPLAN_INLINE Moments UpdateMaster(const Constants& c, const AdamArrays& a, int64_t i, Moments x,
                                     VecU words) {
  VecF p = LoadMaster(a, i);
  const VecF g = LoadFloats(a.grad, a.grad_dtype, i) * c.grad_factor + p * c.l2;
  x.m = x.m * c.beta1 + g * c.rest1;
  x.v = x.v * c.beta2 + g * g * c.rest2;
  p = p - (x.m * c.rate / (Sqrt(x.v) * c.root_factor + c.eps) + p * c.decay);
  StoreMaster(a, i, p, words);
  return x;
}

// The rest of a range that no whole vector holds, copied to where one fits, and back. Moments of
// eight bits stay where they are: a group always fits.
struct Rest {
  alignas(64) char space[5][kLanes * 4] = {};
  AdamArrays arrays, from;
  int64_t first, n;
  ZEROPLAN_INLINE Rest(const AdamArrays& a, Dtype moments, int64_t begin, int64_t count)
      : arrays(a), from(a), first(begin), n(count) {
    arrays.grad = space[0];
    arrays.master = space[1];
    if (a.param != nullptr) arrays.param = space[2];
    if (moments != Dtype::kDynamic8) {
      arrays.m = space[3];
      arrays.v = space[4];
    }
    Copy(arrays.grad, from.grad, a.grad_dtype, false);
    CopyStates(moments, false);
  }
  ZEROPLAN_INLINE void CopyBack(Dtype moments) { CopyStates(moments, true); }

 private:
  ZEROPLAN_INLINE void CopyStates(Dtype moments, bool back) {
    Copy(arrays.master, from.master, from.master_dtype, back);
    if (from.param != nullptr) Copy(arrays.param, from.param, from.param_dtype, back);
    if (moments == Dtype::kDynamic8) return;
    Copy(arrays.m, from.m, moments, back);
    Copy(arrays.v, from.v, moments, back);
  }
  ZEROPLAN_INLINE void Copy(const void* here, const void* array, Dtype dtype, bool back) {
    void* there = At((void*)array, dtype, first);
    const size_t bytes = (size_t)n * (dtype == Dtype::kF32 ? 4 : 2);
    __builtin_memcpy(back ? there : (void*)here, back ? here : there, bytes);
  }
};

ZEROPLAN_INLINE VecU WordsOf(uint64_t key, VecU elements) {
  ToRoundingWords(key, elements);
  return elements;
}
ZEROPLAN_INLINE VecU FirstElements(const AdamRange& range) {
  VecU element{};
  for (uint32_t i = 0; i < kLanes; ++i) element[i] = range.element + i;
  return element;
}
ZEROPLAN_INLINE bool RoundsMaster(const AdamArrays& a) {
  return a.master_dtype == Dtype::kBF16 || a.master_dtype == Dtype::kF16;
}

template <Dtype kMoments>
ZEROPLAN_INLINE void UpdateVector(const Constants& c, const AdamArrays& a, int64_t i, VecU words) {
  const Moments old = {LoadFloats(a.m, kMoments, i), LoadFloats(a.v, kMoments, i)};
  const Moments x = UpdateMaster(c, a, i, old, words);
  void *m = At(a.m, kMoments, i), *v = At(a.v, kMoments, i);
  if (kMoments == Dtype::kF32) {
    Store(m, x.m);
    Store(v, x.v);
    return;
  }
  StoreHalves(m, Bf16HalfEven(QuietBits(x.m)));
  StoreHalves(v, Bf16ByChance(QuietBits(x.v), words >> 16));
}

template <Dtype kMoments>
void Update(const AdamConstants& constants, const AdamArrays& arrays, const AdamRange& range) {
  // Copies, which no store through a pointer changes.
  const Constants c(constants);
  const AdamArrays a = arrays;
  const bool rounds = kMoments == Dtype::kBF16 || RoundsMaster(a);
  VecU element = FirstElements(range);
  const int64_t end = range.first + range.n;
  int64_t i = range.first;
  for (; i + kLanes <= end; i += kLanes, element += kLanes) {
    UpdateVector<kMoments>(c, a, i, rounds ? WordsOf(range.key, element) : VecU{});
  }
  if (i == end) return;
  Rest rest(a, kMoments, i, end - i);
  UpdateVector<kMoments>(c, rest.arrays, 0, rounds ? WordsOf(range.key, element) : VecU{});
  rest.CopyBack(kMoments);
}

inline void UpdateDynamic8(const AdamConstants& constants, const AdamArrays& arrays,
                           const AdamRange& range) {
  const Constants c(constants);
  const AdamArrays a = arrays;
  const bool rounds = RoundsMaster(a);
  const Dynamic8<true> m_map;
  const Dynamic8<false> v_map;
  VecU element = FirstElements(range);
  const int64_t end = range.first + range.n;
  alignas(64) float m[kDynamic8Group], v[kDynamic8Group];
  for (int64_t first = range.first; first < end; first += kDynamic8Group) {
    const int64_t group = first / kDynamic8Group;
    auto& m_block = ((Dynamic8Block*)a.m)[group / kDynamic8Groups];
    auto& v_block = ((Dynamic8Block*)a.v)[group / kDynamic8Groups];
    uint8_t* m_codes = m_block.codes[group % kDynamic8Groups];
    uint8_t* v_codes = v_block.codes[group % kDynamic8Groups];
    float &m_scale = m_block.scales[group % kDynamic8Groups],
          &v_scale = v_block.scales[group % kDynamic8Groups];
    Largest m_largest, v_largest;
    const float old_m = m_scale, old_v = v_scale;
    for (int i = 0; i < kDynamic8Group; i += kLanes, element += kLanes) {
      const int64_t left = end - first - i;
      Moments x{m_map.Decode(m_codes + i) * old_m, v_map.Decode(v_codes + i) * old_v};
      const VecU words = rounds ? WordsOf(range.key, element) : VecU{};
      if (left >= kLanes) [[likely]] {
        x = UpdateMaster(c, a, first + i, x, words);
      } else if (left > 0) {
        Rest rest(a, Dtype::kDynamic8, first + i, left);
        x = UpdateMaster(c, rest.arrays, 0, x, words);
        rest.CopyBack(Dtype::kDynamic8);
        float lanes[2][kLanes] = {};
        __builtin_memcpy(lanes[0], &x.m, (size_t)left * 4);
        __builtin_memcpy(lanes[1], &x.v, (size_t)left * 4);
        x = Moments{Load<VecF>(lanes[0]), Load<VecF>(lanes[1])};
      } else {
        x = Moments{};
      }
      Store(m + i, x.m);
      Store(v + i, x.v);
      m_largest.Add(x.m);
      v_largest.AddMagnitude(x.v);
    }
    m_scale = m_largest.Scale();
    v_scale = v_largest.Scale();
    EncodeGroup(m_map, m, m_scale, m_codes);
    EncodeGroup(v_map, v, v_scale, v_codes);
  }
}

inline void WriteParam(const AdamArrays& arrays, int64_t first, int64_t n) {
  const AdamArrays a = arrays;
  int64_t i = first;
  for (; i + kLanes <= first + n; i += kLanes) StoreParam(a, i, LoadMaster(a, i));
  if (i == first + n) return;
  Rest rest(a, Dtype::kDynamic8, i, first + n - i);
  StoreParam(rest.arrays, 0, LoadMaster(rest.arrays, 0));
  rest.CopyBack(Dtype::kDynamic8);
}

}  // namespace

constinit const AdamLoops kAdamLoops = {
    Update<Dtype::kF32>, Update<Dtype::kBF16>, UpdateDynamic8, WriteParam, Encode, Decode};

}  // namespace zeroplan
