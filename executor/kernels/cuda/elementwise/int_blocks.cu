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
constexpr int kRuns = kLaneElements<Block> / kVector;
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
                                Pack<T, kVector> (&runs)[kRuns<Block>]) {
#pragma unroll
  for (int run = 0; run < kRuns<Block>; ++run) {
    runs[run] = LoadPack<T, kVector>(from.data + first + at.Element(run));
  }
}

// A float with the bits 0x4b000000 | byte is 2^23 + byte: a byte becomes a float in fewer
// instructions than a conversion takes. `bytes` are codes plus `zero`.
__device__ inline void ReadBytes(uint32_t bytes, int zero, float scale, float (&x)[kVector],
                                 int first) {
  const float offset = 8388608.0f + static_cast<float>(zero);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float sum = __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7440u + e));
    x[first + e] = __fmul_rn(__fsub_rn(sum, offset), scale);
  }
}

// A lane's codes of all passes, with their scales.
template <typename Block>
struct LaneCodes {
  uint2 codes[kPasses<Block>];
  float scales[kPasses<Block>];

  __device__ LaneCodes(const Block& block, int lane) {
#pragma unroll
    for (int pass = 0; pass < kPasses<Block>; ++pass) {
      const LanePlace<Block> at(pass, lane);
      codes[pass] = *reinterpret_cast<const uint2*>(&block.codes[at.group][at.byte]);
      scales[pass] = block.scales[at.group];
    }
  }

  // x[run][e]: the numbers of a pass.
  __device__ void Read(int pass, float (&x)[kRuns<Block>][kVector]) const {
    const uint32_t words[2] = {codes[pass].x, codes[pass].y};
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      if constexpr (kIsInt4<Block>) {
        const uint32_t low = words[w] & 0x0f0f0f0fu, high = words[w] >> 4 & 0x0f0f0f0fu;
        ReadBytes(low ^ 0x08080808u, 8, scales[pass], x[0], 4 * w);
        ReadBytes(high ^ 0x08080808u, 8, scales[pass], x[1], 4 * w);
      } else {
        ReadBytes(words[w] ^ 0x80808080u, 128, scales[pass], x[0], 4 * w);
      }
    }
  }
};

// Writes the lane's codes, and one lane the group's scale. All lanes of the warp take part.
template <typename Block>
__device__ inline void WriteCodes(const float (&x)[kRuns<Block>][kVector],
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

// A lane's elements of a block.
template <typename Block>
struct LaneSums {
  float of_pass[kPasses<Block>][kRuns<Block>][kVector];

  // Of block b of `parts` arrays of `count` blocks that lie one behind the other.
  __device__ LaneSums(const Block* parts_Pn, int parts, int64_t count, int64_t b, int lane) {
    const LaneCodes<Block> first(parts_Pn[b], lane);
#pragma unroll
    for (int pass = 0; pass < kPasses<Block>; ++pass) first.Read(pass, of_pass[pass]);
#pragma unroll 4
    for (int p = 1; p < parts; ++p) {
      const LaneCodes<Block> part(parts_Pn[p * count + b], lane);
#pragma unroll
      for (int pass = 0; pass < kPasses<Block>; ++pass) {
        float x[kRuns<Block>][kVector];
        part.Read(pass, x);
#pragma unroll
        for (int run = 0; run < kRuns<Block>; ++run) {
#pragma unroll
          for (int e = 0; e < kVector; ++e) {
            of_pass[pass][run][e] = __fadd_rn(of_pass[pass][run][e], x[run][e]);
          }
        }
      }
    }
  }
};

template <typename Block, typename T>
__global__ void __launch_bounds__(kIntThreads)
    QuantizeIntKernel(Typed<T> src_n, Block* blocks, int64_t count) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t b = static_cast<int64_t>(blockIdx.x) * kIntWarps + threadIdx.x / 32;
  if (b >= count) return;
  Pack<T, kVector> packs[kPasses<Block>][kRuns<Block>];  // all loads before the first store
#pragma unroll
  for (int pass = 0; pass < kPasses<Block>; ++pass) {
    LoadLane<Block>(src_n, b * kIntBlock, LanePlace<Block>(pass, lane), packs[pass]);
  }
#pragma unroll
  for (int pass = 0; pass < kPasses<Block>; ++pass) {
    float x[kRuns<Block>][kVector];
#pragma unroll
    for (int run = 0; run < kRuns<Block>; ++run) Widen(packs[pass][run], x[run]);
    WriteCodes(x, LanePlace<Block>(pass, lane), lane, blocks[b]);
  }
}

// dst = the sum of the parts, or dst += it.
template <typename Block, typename T, bool kAdd>
__global__ void __launch_bounds__(kIntThreads)
    SumIntKernel(const Block* parts_Pn, int parts, Typed<T> dst_n, int64_t count) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t b = static_cast<int64_t>(blockIdx.x) * kIntWarps + threadIdx.x / 32;
  if (b >= count) return;
  LaneSums<Block> sums(parts_Pn, parts, count, b, lane);
#pragma unroll
  for (int pass = 0; pass < kPasses<Block>; ++pass) {
    const LanePlace<Block> at(pass, lane);
#pragma unroll
    for (int run = 0; run < kRuns<Block>; ++run) {
      float(&sum)[kVector] = sums.of_pass[pass][run];
      const int64_t i = b * kIntBlock + at.Element(run);
      if constexpr (kAdd) {
        float old[kVector];
        dst_n.Load(i, old);
#pragma unroll
        for (int e = 0; e < kVector; ++e) sum[e] = __fadd_rn(old[e], sum[e]);
      }
      dst_n.Store(i, sum);
    }
  }
}

// The same to blocks.
template <typename Block>
__global__ void __launch_bounds__(kIntThreads)
    SumToIntKernel(const Block* parts_Pn, int parts, Block* dst_n, int64_t count) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t b = static_cast<int64_t>(blockIdx.x) * kIntWarps + threadIdx.x / 32;
  if (b >= count) return;
  const LaneSums<Block> sums(parts_Pn, parts, count, b, lane);
#pragma unroll
  for (int pass = 0; pass < kPasses<Block>; ++pass) {
    WriteCodes(sums.of_pass[pass], LanePlace<Block>(pass, lane), lane, dst_n[b]);
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
    WithFloatType(dst_n.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const auto launch = [&](auto kernel) {
        kernel<<<GridOfBlocks(count), kIntThreads, 0, stream>>>(from, static_cast<int>(parts),
                                                                Typed<T>(dst_n), count);
      };
      add ? launch(SumIntKernel<Block, T, true>) : launch(SumIntKernel<Block, T, false>);
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
