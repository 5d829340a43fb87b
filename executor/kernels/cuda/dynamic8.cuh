// Groups of core/base/dynamic8.h in the roundings of Dynamic8Code: the same bytes on every backend.
// A warp takes a group, and each of its lanes 8 elements that lie side by side.
#pragma once

#include "core/base/dynamic8.h"
#include "executor/kernels/cuda/device_util.cuh"

namespace zeroplan::cuda {

static_assert(kDynamic8Group == 32 * kVector);

template <bool kHasSign>
__device__ const Dynamic8Map kDeviceDynamic8Map = MakeDynamic8Map(kHasSign);
template <bool kHasSign, int decade>
inline constexpr float kDecadeFrom = MakeDynamic8Map(kHasSign).from[decade];

// A map, where lanes look up what differs between them: in shared memory.
template <bool kHasSign>
struct Dynamic8Table {
  struct alignas(16) Decade {
    float factor, offset, last;
  };
  static constexpr int kZero = MakeDynamic8Map(kHasSign).zero;

  float value[256];  // by code
  Decade decades[8];

  // By all threads of a block of 256, which then meet in __syncthreads.
  __device__ void Fill() {
    const Dynamic8Map& map = kDeviceDynamic8Map<kHasSign>;
    const unsigned t = threadIdx.x;
    value[t] = map.value[t];
    if (t < 8) decades[t] = {map.factor[t], map.offset[t], map.last[t]};
  }

  // Dynamic8Code's.
  __device__ uint32_t Code(float x) const {
    const float a = fabsf(x);
    int d = 0;
    d += !(a < kDecadeFrom<kHasSign, 1>);
    d += !(a < kDecadeFrom<kHasSign, 2>);
    d += !(a < kDecadeFrom<kHasSign, 3>);
    d += !(a < kDecadeFrom<kHasSign, 4>);
    d += !(a < kDecadeFrom<kHasSign, 5>);
    d += !(a < kDecadeFrom<kHasSign, 6>);
    d += !(a < kDecadeFrom<kHasSign, 7>);
    const Decade decade = decades[d];
    const float exact = __fsub_rn(__fmul_rn(a, decade.factor), decade.offset);
    const int place = __float2int_rz(fminf(exact, decade.last));
    const bool up = !kHasSign || x >= 0;
    return static_cast<uint32_t>(up ? kZero + place : max(kZero - place, 0));
  }
};

// Where element i is. REQUIRES, here and below: i is a multiple of 8.
struct Dynamic8Place {
  int64_t block;
  int group, at;

  __device__ explicit Dynamic8Place(int64_t i) {
    constexpr unsigned kElements = kDynamic8Group * kDynamic8Groups;
    const auto element = static_cast<uint64_t>(i);
    block = static_cast<int64_t>(element / kElements);
    group = static_cast<int>(element / kDynamic8Group % kDynamic8Groups);
    at = static_cast<int>(element % kDynamic8Group);
  }
};

// A lane's codes of a group, with the group's scale.
struct Dynamic8Lane {
  uint2 codes;
  float scale;
};

// The lane that has elements [i, i + 8).
__device__ inline Dynamic8Lane LoadDynamic8(const Dynamic8Block* blocks, int64_t i) {
  const Dynamic8Place place(i);
  const Dynamic8Block& block = blocks[place.block];
  return {*reinterpret_cast<const uint2*>(&block.codes[place.group][place.at]),
          block.scales[place.group]};
}

template <bool kHasSign>
__device__ inline void ReadDynamic8(const Dynamic8Table<kHasSign>& table, const Dynamic8Lane& lane,
                                    float (&x)[kVector]) {
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    const uint32_t word = e < 4 ? lane.codes.x : lane.codes.y;
    x[e] = __fmul_rn(table.value[word >> (e % 4 * 8) & 255], lane.scale);
  }
}

// The scale of a group, of whose numbers a lane has x. All lanes of the warp take part and get it.
template <bool kHasSign>
__device__ inline float Dynamic8Scale(const float (&x)[kVector]) {
  // Floats are in the order of their bits: positive ones as signed numbers, negative ones by their
  // magnitude as unsigned numbers.
  int positive = 0;
  unsigned all = 0;
#pragma unroll
  for (const float v : x) {
    const int bits = __float_as_int(v);
    positive = max(positive, kHasSign ? bits : bits & 0x7fffffff);
    all = max(all, static_cast<unsigned>(bits));
  }
  positive = __reduce_max_sync(0xffffffffu, positive);
  uint32_t negative = 0;
  if constexpr (kHasSign) {
    all = __reduce_max_sync(0xffffffffu, all);
    if (all >= 0x80000000u) negative = all & 0x7fffffffu;
  }
  return __uint_as_float(Dynamic8ScaleBits(static_cast<uint32_t>(positive), negative));
}

// Writes the lane's codes, and one lane the group's scale. All lanes of the warp take part.
template <bool kHasSign>
__device__ inline void StoreDynamic8(const Dynamic8Table<kHasSign>& table,
                                     const float (&x)[kVector], Dynamic8Block* blocks, int64_t i) {
  const float scale = Dynamic8Scale<kHasSign>(x);
  const float inverse = InverseDynamic8Scale(scale);
  constexpr uint32_t kZeros = 0x01010101u * Dynamic8Table<kHasSign>::kZero;
  uint32_t words[2] = {};
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    words[e / 4] |= table.Code(__fmul_rn(x[e], inverse)) << (e % 4 * 8);
  }
  const Dynamic8Place place(i);
  Dynamic8Block& block = blocks[place.block];
  *reinterpret_cast<uint2*>(&block.codes[place.group][place.at]) =
      inverse == 0 ? make_uint2(kZeros, kZeros) : make_uint2(words[0], words[1]);
  if (place.at == 0) block.scales[place.group] = scale;
}

}  // namespace zeroplan::cuda
