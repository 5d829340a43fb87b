// Blocks of int8 and int4 in the roundings of executor/kernels/int_blocks.cc: the same bytes.
//
// A warp takes a block of 1024 elements in passes. In each a lane has 8 bytes of codes and the
// elements that these are: 8 of int8, which are a run, so that a pass is a group; 16 of int4, which
// are two runs of 8 in either half of a group, so that a pass is two groups of 16 lanes.
#include "core/base/int_blocks.h"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/elementwise/elementwise.h"

namespace zeroplan::cuda {
namespace {

constexpr int kIntThreads = 256;
constexpr int kIntWarps = kIntThreads / 32;  // blocks that a block of threads takes

template <typename Block>
constexpr bool kIsInt4 = Block::kLargest == 7;
template <typename Block>
constexpr int kLaneElements = kIsInt4<Block> ? 16 : 8;
template <typename Block>
constexpr int kPasses = kIntBlock / (32 * kLaneElements<Block>);

// Where a lane's elements of a pass are: the group, and of its bytes of codes the first.
template <typename Block>
struct LanePlace {
  int group, byte;

  __device__ LanePlace(int pass, int lane)
      : group(kIsInt4<Block> ? 2 * pass + lane / 16 : pass),
        byte(8 * (kIsInt4<Block> ? lane % 16 : lane)) {}

  // Within the block, the first element of run `run`.
  __device__ int Element(int run) const { return group * kIntGroup + run * (kIntGroup / 2) + byte; }
  __device__ unsigned Lanes(int lane) const {
    return !kIsInt4<Block> ? 0xffffffffu : lane < 16 ? 0x0000ffffu : 0xffff0000u;
  }
};

template <typename Block, typename T>
__device__ inline void LoadLane(const Typed<T>& from, int64_t first, const LanePlace<Block>& at,
                                Pack<T, kVector> (&runs)[kLaneElements<Block> / kVector]) {
#pragma unroll
  for (int run = 0; run < kLaneElements<Block> / kVector; ++run) {
    runs[run] = LoadPack<T, kVector>(from.data + first + at.Element(run));
  }
}

template <typename Block>
__device__ inline uint2 LoadCodes(const Block& block, const LanePlace<Block>& at) {
  return *reinterpret_cast<const uint2*>(&block.codes[at.group][at.byte]);
}

// x[run][e]: the numbers of 8 bytes of codes.
template <typename Block>
__device__ inline void ReadCodes(uint2 codes, float scale,
                                 float (&x)[kLaneElements<Block> / kVector][kVector]) {
  const uint32_t words[2] = {codes.x, codes.y};
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    const uint32_t word = words[e / 4];
    const int up = 24 - e % 4 * 8;  // the byte's upper end to the word's
    if constexpr (kIsInt4<Block>) {
      x[0][e] = __fmul_rn(static_cast<float>(static_cast<int>(word << (up + 4)) >> 28), scale);
      x[1][e] = __fmul_rn(static_cast<float>(static_cast<int>(word << up) >> 28), scale);
    } else {
      x[0][e] = __fmul_rn(static_cast<float>(static_cast<int>(word << up) >> 24), scale);
    }
  }
}

// Writes the lane's codes, and one lane the group's scale. All lanes of the warp take part.
template <typename Block>
__device__ inline void WriteCodes(const float (&x)[kLaneElements<Block> / kVector][kVector],
                                  const LanePlace<Block>& at, int lane, Block& block) {
  unsigned most = 0;
#pragma unroll
  for (const auto& run : x) {
#pragma unroll
    for (const float v : run) most = max(most, __float_as_uint(v) & 0x7fffffffu);
  }
  most = __reduce_max_sync(at.Lanes(lane), most);
  const bool finite = most < kInfinityBits;
  const float quotient = __fdiv_rn(__uint_as_float(most), static_cast<float>(Block::kLargest));
  const float scale = finite ? fmaxf(quotient, __uint_as_float(kLeastIntScaleBits))
                             : __uint_as_float(kInfinityBits);
  const float inverse = __frcp_rn(scale);
  uint32_t words[2] = {};
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    uint32_t byte = static_cast<uint32_t>(__float2int_rn(__fmul_rn(x[0][e], inverse)));
    if constexpr (kIsInt4<Block>) {
      byte = (byte & 15) | static_cast<uint32_t>(__float2int_rn(__fmul_rn(x[1][e], inverse))) << 4;
    }
    words[e / 4] |= (byte & 255) << (e % 4 * 8);
  }
  *reinterpret_cast<uint2*>(&block.codes[at.group][at.byte]) =
      finite ? make_uint2(words[0], words[1]) : make_uint2(0, 0);
  if (at.byte == 0) block.scales[at.group] = scale;
}

// The lane's elements of block b, summed over `parts` arrays of `count` blocks that lie one behind
// the other.
template <typename Block>
__device__ inline void SumLane(const Block* parts_Pn, int parts, int64_t count, int64_t b,
                               const LanePlace<Block>& at,
                               float (&sum)[kLaneElements<Block> / kVector][kVector]) {
  constexpr int kRuns = kLaneElements<Block> / kVector;
  ReadCodes<Block>(LoadCodes(parts_Pn[b], at), parts_Pn[b].scales[at.group], sum);
#pragma unroll 4
  for (int p = 1; p < parts; ++p) {
    const Block& part = parts_Pn[p * count + b];
    float x[kRuns][kVector];
    ReadCodes<Block>(LoadCodes(part, at), part.scales[at.group], x);
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) sum[run][e] = __fadd_rn(sum[run][e], x[run][e]);
    }
  }
}

template <typename Block, typename T>
__global__ void __launch_bounds__(kIntThreads)
    QuantizeIntKernel(Typed<T> src_n, Block* blocks, int64_t count) {
  constexpr int kRuns = kLaneElements<Block> / kVector;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t b = static_cast<int64_t>(blockIdx.x) * kIntWarps + threadIdx.x / 32;
  if (b >= count) return;
  Pack<T, kVector> packs[kPasses<Block>][kRuns];  // all loads before the first store
#pragma unroll
  for (int pass = 0; pass < kPasses<Block>; ++pass) {
    LoadLane<Block>(src_n, b * kIntBlock, LanePlace<Block>(pass, lane), packs[pass]);
  }
#pragma unroll
  for (int pass = 0; pass < kPasses<Block>; ++pass) {
    float x[kRuns][kVector];
#pragma unroll
    for (int run = 0; run < kRuns; ++run) Widen(packs[pass][run], x[run]);
    WriteCodes(x, LanePlace<Block>(pass, lane), lane, blocks[b]);
  }
}

// dst = the sum of the parts, or dst += it.
template <typename Block, typename T, bool kAdd>
__global__ void __launch_bounds__(kIntThreads)
    SumIntKernel(const Block* parts_Pn, int parts, Typed<T> dst_n, int64_t count) {
  constexpr int kRuns = kLaneElements<Block> / kVector;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t b = static_cast<int64_t>(blockIdx.x) * kIntWarps + threadIdx.x / 32;
  if (b >= count) return;
#pragma unroll
  for (int pass = 0; pass < kPasses<Block>; ++pass) {
    const LanePlace<Block> at(pass, lane);
    float sum[kRuns][kVector];
    SumLane(parts_Pn, parts, count, b, at, sum);
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      const int64_t i = b * kIntBlock + at.Element(run);
      if constexpr (kAdd) {
        float old[kVector];
        dst_n.Load(i, old);
#pragma unroll
        for (int e = 0; e < kVector; ++e) sum[run][e] = __fadd_rn(old[e], sum[run][e]);
      }
      dst_n.Store(i, sum[run]);
    }
  }
}

// The same to blocks.
template <typename Block>
__global__ void __launch_bounds__(kIntThreads)
    SumToIntKernel(const Block* parts_Pn, int parts, Block* dst_n, int64_t count) {
  constexpr int kRuns = kLaneElements<Block> / kVector;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t b = static_cast<int64_t>(blockIdx.x) * kIntWarps + threadIdx.x / 32;
  if (b >= count) return;
#pragma unroll
  for (int pass = 0; pass < kPasses<Block>; ++pass) {
    const LanePlace<Block> at(pass, lane);
    float sum[kRuns][kVector];
    SumLane(parts_Pn, parts, count, b, at, sum);
    WriteCodes(sum, at, lane, dst_n[b]);
  }
}

// fn(a null pointer to the kind of block that `dtype` is).
template <typename Fn>
void WithIntBlock(Dtype dtype, Fn&& fn) {
  if (dtype == Dtype::kInt8Blocks) {
    fn(static_cast<Int8Block*>(nullptr));
  } else {
    fn(static_cast<Int4Block*>(nullptr));
  }
}

unsigned GridOfBlocks(int64_t count) { return GridOf(count, kIntWarps); }

}  // namespace

void LaunchQuantizeInt(const FloatArray& src_n, void* blocks, Dtype kind, int64_t n,
                       cudaStream_t stream) {
  const int64_t count = n / kIntBlock;
  if (count == 0) return;
  WithIntBlock(kind, [&](auto* of) {
    using Block = std::remove_pointer_t<decltype(of)>;
    WithFloatType(src_n.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      QuantizeIntKernel<Block, T><<<GridOfBlocks(count), kIntThreads, 0, stream>>>(
          Typed<T>(src_n), static_cast<Block*>(blocks), count);
    });
  });
}

void LaunchSumInt(const void* parts_Pn, Dtype kind, int64_t parts, const FloatArray& dst_n,
                  int64_t n, bool add, cudaStream_t stream) {
  const int64_t count = n / kIntBlock;
  if (count == 0) return;
  WithIntBlock(kind, [&](auto* of) {
    using Block = std::remove_pointer_t<decltype(of)>;
    const auto* from = static_cast<const Block*>(parts_Pn);
    const int many = static_cast<int>(parts);
    WithFloatType(dst_n.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const Typed<T> dst(dst_n);
      if (add) {
        SumIntKernel<Block, T, true>
            <<<GridOfBlocks(count), kIntThreads, 0, stream>>>(from, many, dst, count);
      } else {
        SumIntKernel<Block, T, false>
            <<<GridOfBlocks(count), kIntThreads, 0, stream>>>(from, many, dst, count);
      }
    });
  });
}

void LaunchSumToInt(const void* parts_Pn, Dtype kind, int64_t parts, void* dst_n, int64_t n,
                    cudaStream_t stream) {
  const int64_t count = n / kIntBlock;
  if (count == 0) return;
  WithIntBlock(kind, [&](auto* of) {
    using Block = std::remove_pointer_t<decltype(of)>;
    SumToIntKernel<Block><<<GridOfBlocks(count), kIntThreads, 0, stream>>>(
        static_cast<const Block*>(parts_Pn), static_cast<int>(parts), static_cast<Block*>(dst_n),
        count);
  });
}

}  // namespace zeroplan::cuda
