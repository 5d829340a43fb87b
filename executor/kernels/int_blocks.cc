// Compiled without contraction to fused multiply-adds (CMakeLists.txt): a number read is a product,
// a sum of parts is a sum of products, each rounded.
#include "executor/kernels/int_blocks.h"

#include <bit>

#include "executor/kernels/kernel_util.h"

namespace zeroplan {
namespace {

using simd::kLanes;
using simd::VecF;
using simd::VecI;
using VecB = int8_t __attribute__((vector_size(kLanes)));

constexpr int kHalfGroup = kIntGroup / 2;
static_assert(kHalfGroup % kLanes == 0 && kIntBlock == kBlock);

// Blocks that a thread is given at least.
constexpr int64_t kIntBlockGrain = kElementGrain / kIntBlock;

// kLanes bytes with a sign as integers, and the lowest bytes of integers. GCC 12 makes a byte at a
// time of __builtin_convertvector.
ZEROPLAN_INLINE VecI LoadBytes(const void* bytes) {
#if defined(__AVX512F__)
  __m128i b;
  std::memcpy(&b, bytes, sizeof(b));
  return (VecI)_mm512_maskz_cvtepi8_epi32(0xffff, b);
#elif defined(__AVX2__)
  return (VecI)_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(bytes)));
#else
  VecB b;
  std::memcpy(&b, bytes, sizeof(b));
  return __builtin_convertvector(b, VecI);
#endif
}
ZEROPLAN_INLINE void StoreBytes(void* bytes, VecI v) {
#if defined(__AVX512F__)
  const __m128i b = _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)v);
  std::memcpy(bytes, &b, sizeof(b));
#elif defined(__AVX2__)
  const __m256i lowest = _mm256_set1_epi32(0x0c080400);  // of the four integers of either half
  const __m256i fours = _mm256_shuffle_epi8((__m256i)v, lowest);
  _mm_storel_epi64(
      static_cast<__m128i*>(bytes),
      _mm_unpacklo_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1)));
#else
  const VecB b = __builtin_convertvector(v, VecB);
  std::memcpy(bytes, &b, sizeof(b));
#endif
}

// The scale of a group, what its elements are multiplied by, and a mask for their codes.
struct GroupScale {
  float scale, inverse;
  int32_t finite;
};

template <typename Block>
GroupScale ScaleOf(const float* x) {
  VecI most{};
  for (int i = 0; i < kIntGroup; i += kLanes) {
    const VecI magnitude = (VecI)simd::Load(x + i) & 0x7fffffff;
    most = magnitude > most ? magnitude : most;
  }
  int32_t lanes[kLanes];
  std::memcpy(lanes, &most, sizeof(most));
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] = std::max(lanes[i], lanes[i + half]);
  }
  const auto bits = static_cast<uint32_t>(lanes[0]);
  if (bits >= kInfinityBits) return {std::bit_cast<float>(kInfinityBits), 0, 0};
  const float scale = std::max(std::bit_cast<float>(bits) / static_cast<float>(Block::kLargest),
                               std::bit_cast<float>(kLeastIntScaleBits));
  return {scale, 1.0f / scale, -1};
}

// Adding 1.5 * 2^23 rounds to an integer, ties to even, which the lowest bits then are.
ZEROPLAN_INLINE VecI Codes(const float* x, const GroupScale& group) {
  constexpr float kRound = 12582912.0f;
  const VecF shifted = simd::Load(x) * group.inverse + kRound;
  return ((VecI)shifted - (VecI)simd::Splat(kRound)) & group.finite;
}

ZEROPLAN_INLINE void QuantizeCodes(const float* x, const GroupScale& group,
                                   int8_t (&codes)[kIntGroup]) {
  for (int i = 0; i < kIntGroup; i += kLanes) {
    StoreBytes(codes + i, Codes(x + i, group));
  }
}
ZEROPLAN_INLINE void QuantizeCodes(const float* x, const GroupScale& group,
                                   uint8_t (&codes)[kHalfGroup]) {
  for (int i = 0; i < kHalfGroup; i += kLanes) {
    StoreBytes(codes + i, (Codes(x + i, group) & 15) | (Codes(x + kHalfGroup + i, group) << 4));
  }
}

template <typename Block>
void QuantizeBlock(const float* x, Block& block) {
  GroupScale groups[kIntGroups];
  for (int g = 0; g < kIntGroups; ++g) groups[g] = ScaleOf<Block>(x + g * kIntGroup);
  for (int g = 0; g < kIntGroups; ++g) {
    QuantizeCodes(x + g * kIntGroup, groups[g], block.codes[g]);
    block.scales[g] = groups[g].scale;
  }
}

struct Write {
  ZEROPLAN_INLINE void operator()(float* to, VecF value) const { simd::Store(to, value); }
};
struct AddTo {
  ZEROPLAN_INLINE void operator()(float* to, VecF value) const {
    simd::Store(to, simd::Load(to) + value);
  }
};

// put(place, value) for each vector of the group's numbers.
template <typename Put>
ZEROPLAN_INLINE void ReadGroup(const int8_t (&codes)[kIntGroup], float scale, float* x, Put put) {
  for (int i = 0; i < kIntGroup; i += kLanes) {
    put(x + i, __builtin_convertvector(LoadBytes(codes + i), VecF) * scale);
  }
}
template <typename Put>
ZEROPLAN_INLINE void ReadGroup(const uint8_t (&codes)[kHalfGroup], float scale, float* x, Put put) {
  for (int i = 0; i < kHalfGroup; i += kLanes) {
    const VecI pair = LoadBytes(codes + i);
    put(x + i, __builtin_convertvector((pair << 28) >> 28, VecF) * scale);
    put(x + kHalfGroup + i, __builtin_convertvector(pair >> 4, VecF) * scale);
  }
}

template <typename Block, typename Put>
void ReadIntBlock(const Block& block, float* x, Put put) {
  for (int g = 0; g < kIntGroups; ++g) {
    ReadGroup(block.codes[g], block.scales[g], x + g * kIntGroup, put);
  }
}

// fn(Int8Block or Int4Block, the kind that `dtype` is, as a null pointer).
template <typename Fn>
void WithIntBlock(Dtype dtype, Fn&& fn) {
  if (dtype == Dtype::kInt8Blocks) {
    fn(static_cast<const Int8Block*>(nullptr));
  } else {
    fn(static_cast<const Int4Block*>(nullptr));
  }
}

bool IsFloat(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kBF16 || dtype == Dtype::kF16;
}

void CheckWholeBlocks(const KernelArg& blocks, int64_t n) {
  ZEROPLAN_CHECK(n % kIntBlock == 0, "{} elements are no whole {}", n, DtypeName(blocks.dtype));
  ZEROPLAN_CHECK(blocks.bytes >= StoredBytes(blocks.dtype, static_cast<uint64_t>(n)),
                 "{} elements of {} in {} bytes", n, DtypeName(blocks.dtype), blocks.bytes);
  ZEROPLAN_CHECK(reinterpret_cast<uintptr_t>(blocks.data) % alignof(Int8Block) == 0, "{} at {}",
                 DtypeName(blocks.dtype), blocks.data);
}

}  // namespace

bool HasIntBlocks(const KernelCall& convert) {
  return IsIntBlocks(Arg(convert, 0).dtype) || IsIntBlocks(Arg(convert, 1).dtype);
}

void CheckConvertIntBlocks(const KernelCall& convert) {
  const KernelArg &src = Arg(convert, 0), &dst = Arg(convert, 1);
  const bool writes = IsIntBlocks(dst.dtype);
  ZEROPLAN_CHECK(IsFloat(writes ? src.dtype : dst.dtype), "{} to {}", DtypeName(src.dtype),
                 DtypeName(dst.dtype));
  ZEROPLAN_CHECK(!convert.has(kAccumulate), "{} added to {}", DtypeName(src.dtype),
                 DtypeName(dst.dtype));
  CheckWholeBlocks(writes ? dst : src, convert.dims[0]);
}

void CheckSumParts(const KernelCall& sum) {
  const KernelArg &parts = Arg(sum, 0), &dst = Arg(sum, 1);
  const auto [n, P] = FirstDims<2>(sum.dims);
  ZEROPLAN_CHECK(IsIntBlocks(parts.dtype) && (dst.dtype == parts.dtype || IsFloat(dst.dtype)),
                 "parts of {} summed to {}", DtypeName(parts.dtype), DtypeName(dst.dtype));
  ZEROPLAN_CHECK(P >= 1, "{} parts", P);
  CheckWholeBlocks(parts, n * P);
  ZEROPLAN_CHECK(n % kIntBlock == 0, "parts of {} elements are no whole {}", n,
                 DtypeName(parts.dtype));
  if (!IsIntBlocks(dst.dtype)) return;
  CheckWholeBlocks(dst, n);
  ZEROPLAN_CHECK(!sum.has(kAccumulate), "sums added to {}", DtypeName(dst.dtype));
}

namespace cpu {

void ConvertIntBlocks(const KernelCall& call) {
  CheckConvertIntBlocks(call);
  const KernelArg &src_n = Arg(call, 0), &dst_n = Arg(call, 1);
  const bool writes = IsIntBlocks(dst_n.dtype);
  WithIntBlock(writes ? dst_n.dtype : src_n.dtype, [&]<typename Block>(const Block*) {
    call.context.pool->ParallelFor(
        call.dims[0] / kIntBlock, kIntBlockGrain, [&](int64_t begin, int64_t end, int) {
          alignas(64) float buffer[kIntBlock];
          for (int64_t b = begin; b < end; ++b) {
            const int64_t first = b * kIntBlock;
            if (writes) {
              const float* x = ReadBlock(src_n, first, kIntBlock, buffer);
              QuantizeBlock(x, dst_n.as<Block>()[b]);
            } else {
              float* x = WriteBlock(dst_n, first, buffer);
              ReadIntBlock(src_n.as<const Block>()[b], x, Write{});
              CommitBlock(dst_n, first, kIntBlock, buffer);
            }
          }
        });
  });
}

void SumParts(const KernelCall& call) {
  CheckSumParts(call);
  const KernelArg &parts_Pn = Arg(call, 0), &dst_n = Arg(call, 1);
  const auto [n, P] = FirstDims<2>(call.dims);
  const int64_t blocks = n / kIntBlock, parts = P;
  WithIntBlock(parts_Pn.dtype, [&]<typename Block>(const Block*) {
    const auto* from = parts_Pn.as<const Block>();
    call.context.pool->ParallelFor(blocks, kIntBlockGrain, [&](int64_t begin, int64_t end, int) {
      alignas(64) float sum[kIntBlock], old_buffer[kIntBlock];
      for (int64_t b = begin; b < end; ++b) {
        ReadIntBlock(from[b], sum, Write{});
        for (int64_t p = 1; p < parts; ++p) ReadIntBlock(from[p * blocks + b], sum, AddTo{});
        if (IsIntBlocks(dst_n.dtype)) {
          QuantizeBlock(sum, dst_n.as<Block>()[b]);
          continue;
        }
        const int64_t first = b * kIntBlock;
        if (call.has(kAccumulate)) {
          const float* old = ReadBlock(dst_n, first, kIntBlock, old_buffer);
          for (int i = 0; i < kIntBlock; i += kLanes) {
            simd::Store(sum + i, simd::Load(old + i) + simd::Load(sum + i));
          }
        }
        Narrow(dst_n.dtype, sum, kIntBlock, ElementAt(dst_n, first));
      }
    });
  });
}

}  // namespace cpu
}  // namespace zeroplan
