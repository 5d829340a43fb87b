// NF4 in the roundings of executor/kernels/nf4.cc: the same bytes.
#include "core/base/nf4.h"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/elementwise/elementwise.h"

namespace zeroplan::cuda {
namespace {

constexpr int kNf4Threads = 256;
constexpr int kNf4Stores = 4;  // 16-byte stores of a thread that dequantizes

// What all threads read at once lies in constant memory.
__constant__ const std::array<float, 15> code_middles = kNf4Middles;
__constant__ const std::array<float, 16> code_values = kNf4Values;
__device__ const std::array<float, 255> maximum_middles = kNf4MaximumMiddles;
__device__ const std::array<float, 256> maximum_values = kNf4MaximumValues;

// The place of element e among neighbours' codes, read as a little-endian word: the first element
// of a byte has its upper four bits.
__device__ constexpr int CodeShift(int e) { return e / 2 * 8 + (e % 2 == 0 ? 4 : 0); }

// x[e] = x_n[i + e], 0 past n. REQUIRES: kVectors only where x_n is aligned to 16 bytes.
template <bool kVectors>
__device__ inline void LoadPadded(const float* x_n, int64_t i, int64_t n, float (&x)[kVector]) {
  if (kVectors && i + kVector <= n) {
    Widen(LoadPack<float, kVector>(x_n + i), x);
    return;
  }
#pragma unroll
  for (int e = 0; e < kVector; ++e) x[e] = i + e < n ? x_n[i + e] : 0.0f;
}

// One block of threads for a block of NF4. A group is 8 threads that lie side by side in a warp.
template <bool kVectors>
__global__ void __launch_bounds__(kNf4Threads)
    QuantizeNf4Kernel(const float* x_n, Nf4Block* blocks, int64_t n) {
  static_assert(kNf4Threads == kNf4Groups);
  __shared__ float maxima[kNf4Groups], middles[kNf4Groups - 1], warp_scales[kNf4Threads / 32];
  __shared__ float shared_offset;
  const int t = static_cast<int>(threadIdx.x);
  Nf4Block& block = blocks[blockIdx.x];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kNf4Block;
  if (t < kNf4Groups - 1) middles[t] = maximum_middles[t];

  for (int at = t * kVector; at < kNf4Block; at += kNf4Threads * kVector) {
    float x[kVector];
    LoadPadded<kVectors>(x_n, first + at, n, x);
    float maximum = 0;
#pragma unroll
    for (int e = 0; e < kVector; ++e) maximum = fmaxf(maximum, fabsf(x[e]));  // not NaN
#pragma unroll
    for (int other = kNf4Group / kVector / 2; other > 0; other /= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, other));
    }
    const float reciprocal = __frcp_rn(maximum);
    uint32_t codes = 0;
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      const float scaled = __fmul_rn(x[e], reciprocal);
      uint32_t code = 0;
#pragma unroll
      for (int i = 0; i < 15; ++i) code += scaled > code_middles[i] ? 1 : 0;
      codes |= (maximum == 0 ? kNf4Zero : code) << CodeShift(e);
    }
    reinterpret_cast<uint32_t*>(block.codes)[at / kVector] = codes;
    if (at % kNf4Group == 0) maxima[at / kNf4Group] = maximum;
  }
  __syncthreads();

  // By one thread, in the CPU's order: where maxima lie 2^21 apart, a sum in double is not exact.
  if (t == 0) {
    double sum = 0;
    int count = 0;
    for (int g = 0; g < kNf4Groups; ++g) {
      sum += static_cast<double>(maxima[g]);
      count += maxima[g] != 0;
    }
    shared_offset = count == 0 ? 0.0f : static_cast<float>(sum / count);
  }
  __syncthreads();

  const float offset = shared_offset, maximum = maxima[t];
  const float left = __fsub_rn(maximum, offset);
  const float warp_scale = WarpMax(maximum == 0 ? 0.0f : fmaxf(fabsf(left), 0.0f));
  if (t % 32 == 0) warp_scales[t / 32] = warp_scale;
  __syncthreads();
  float scale = 0;
#pragma unroll
  for (int warp = 0; warp < kNf4Threads / 32; ++warp) scale = fmaxf(scale, warp_scales[warp]);

  const float scaled = __fmul_rn(left, __frcp_rn(scale));
  int below = 0;
#pragma unroll
  for (int half = 128; half > 0; half /= 2) below += scaled > middles[below + half - 1] ? half : 0;
  block.maxima[t] = static_cast<uint8_t>(maximum == 0 || scale == 0 ? kNf4ZeroMaximum : below);
  if (t == 0) {
    block.scale = scale;
    block.offset = offset;
    block.unused[0] = block.unused[1] = 0;
  }
}

template <int kBytes>
struct WordOf {
  using type = uint32_t;
};
template <>
struct WordOf<2> {
  using type = uint16_t;
};

// A thread loads the codes of one 16-byte store as a word, so that a warp's stores lie side by
// side: they are four times the codes' bytes or more. All its loads come before its first store.
template <typename T>
__global__ void __launch_bounds__(kNf4Threads)
    DequantizeNf4Kernel(const Nf4Block* blocks, Typed<T> dst_n, bool aligned, int64_t n) {
  constexpr int kElements = 16 / sizeof(T), kStores = kNf4Stores;
  constexpr int kStep = kNf4Threads * kElements;  // elements that the threads store at a time
  static_assert(kNf4Block % (kStep * kStores) == 0);
  using Word = typename WordOf<kElements / 2>::type;
  __shared__ float values[16];
  const unsigned t = threadIdx.x;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kStep * kStores);
  const Nf4Block& block = blocks[first / kNf4Block];
  const unsigned in_block = static_cast<unsigned>(first % kNf4Block) + t * kElements;

  Word codes[kStores];
  float maxima[kStores];
#pragma unroll
  for (int s = 0; s < kStores; ++s) {
    const unsigned at = in_block + s * kStep;
    codes[s] = reinterpret_cast<const Word*>(block.codes)[at / kElements];
    maxima[s] = maximum_values[block.maxima[at / kNf4Group]];
  }
  const float scale = block.scale, offset = block.offset;
#pragma unroll
  for (int s = 0; s < kStores; ++s) maxima[s] = __fadd_rn(__fmul_rn(maxima[s], scale), offset);
  if (t < 16) values[t] = code_values[t];
  __syncthreads();

#pragma unroll
  for (int s = 0; s < kStores; ++s) {
    float x[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      x[e] = __fmul_rn(values[codes[s] >> CodeShift(e) & 15], maxima[s]);
    }
    const int64_t i = first + t * kElements + s * kStep;
    if (aligned && i + kElements <= n) {
      dst_n.Store(i, x);
      continue;
    }
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if (i + e < n) dst_n.Set(i + e, x[e]);
    }
  }
}

}  // namespace

void LaunchQuantizeNf4(const float* x_n, Nf4Block* blocks, int64_t n, cudaStream_t stream) {
  if (n == 0) return;
  const unsigned grid = GridOf(n, kNf4Block);
  if (Aligned(x_n)) {
    QuantizeNf4Kernel<true><<<grid, kNf4Threads, 0, stream>>>(x_n, blocks, n);
  } else {
    QuantizeNf4Kernel<false><<<grid, kNf4Threads, 0, stream>>>(x_n, blocks, n);
  }
}

void LaunchDequantizeNf4(const Nf4Block* blocks, const FloatArray& dst_n, int64_t n,
                         cudaStream_t stream) {
  if (n == 0) return;
  WithFloatType(dst_n.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int64_t kSpan = kNf4Threads * (16 / sizeof(T)) * kNf4Stores;
    DequantizeNf4Kernel<T><<<GridOf(n, kSpan), kNf4Threads, 0, stream>>>(blocks, Typed<T>(dst_n),
                                                                         Aligned(dst_n.data), n);
  });
}

}  // namespace zeroplan::cuda
