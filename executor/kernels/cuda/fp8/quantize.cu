#include <cuda_fp8.h>

#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/fp8/quantize.h"
#include "executor/kernels/cuda/magnitude.cuh"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;

// ---- the largest magnitude ---------------------------------------------------------------------

constexpr int kUnroll = 4;  // vectors of a thread in flight
constexpr int64_t kMostBlocks = 8 * kMultiprocessors;

__host__ __device__ inline int64_t Vectors(const void* data, int64_t n) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 ? n / kVector : 0;
}

// By vectors as far as they go, and what is left one by one.
template <typename T>
__device__ inline void RaiseLargest(const T* x_n, int64_t n, float* amax) {
  const int64_t vecs = Vectors(x_n, n);
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  uint32_t largest = 0;
  int64_t i = first;
  for (; i + (kUnroll - 1) * threads < vecs; i += kUnroll * threads) {
    Pack<T, kVector> x[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      x[u] = LoadPack<T, kVector>(x_n + (i + u * threads) * kVector);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) largest = Larger(largest, LargestOf(x[u]));
  }
  for (; i < vecs; i += threads) {
    largest = Larger(largest, LargestOf(LoadPack<T, kVector>(x_n + i * kVector)));
  }
  for (i = vecs * kVector + first; i < n; i += threads) {
    largest = Larger(largest, MagnitudeBits(ToFloat(x_n[i])));
  }
  RaiseByBlock(largest, amax);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) LargestKernel(const T* x_n, int64_t n, float* amax) {
  RaiseLargest(x_n, n, amax);
}

// Piece blockIdx.y.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ShardLargestKernel(const T* x_n, const __grid_constant__ ShardPieces all) {
  const ShardPiece& piece = all.pieces[blockIdx.y];
  RaiseLargest(x_n + piece.first, piece.count, reinterpret_cast<float*>(piece.slot + kFp8AmaxAt));
}

__global__ void __launch_bounds__(kThreads)
    LargestOfPartsKernel(const float* parts_Pn, float* dst_n, int64_t n, int64_t P) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  uint32_t largest = 0;
  for (int64_t part = 0; part < P; ++part) {
    largest = Larger(largest, MagnitudeBits(parts_Pn[part * n + i]));
  }
  dst_n[i] = __uint_as_float(largest);
}

// ---- copies ------------------------------------------------------------------------------------

// A block takes a tile of kTile rows and columns; a thread kChunks chunks of kChunk neighbours, 32
// rows apart.
constexpr int kTile = static_cast<int>(kFp8Block), kChunk = 16;
constexpr int kRowChunks = kTile / kChunk, kChunks = kTile * kRowChunks / kThreads;
constexpr int kChunkRows = kThreads / kRowChunks;
constexpr int kWarps = kThreads / 32;
constexpr int kRowWords = kTile / 4;
static_assert(kChunks * kChunkRows == kTile && kRowChunks == 8 && kFp8Multiple == kChunk);

template <bool kE5M2>
__device__ inline uint32_t EncodeTwo(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE,
                                  kE5M2 ? __NV_E5M2 : __NV_E4M3);
}
// The codes of v times inverse, that of all or of each.
template <bool kE5M2, typename Inverse>
__device__ inline uint4 Encode(const float (&v)[kChunk], const Inverse& inverse) {
  uint32_t words[kChunk / 4];
#pragma unroll
  for (int i = 0; i < kChunk / 4; ++i) {
    float x[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = __fmul_rn(v[4 * i + e], inverse(4 * i + e));
    words[i] = EncodeTwo<kE5M2>(x[0], x[1]) | EncodeTwo<kE5M2>(x[2], x[3]) << 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Where word `word` of row `row` of a tile of codes lies, so that neither rows of chunks nor the
// same word of 8 groups of 16 rows meet in a bank.
__device__ inline int WordAt(int row, int word) {
  return row * kRowWords + (word ^ (row / kChunk % 8 * 4));
}

// Writes a tile of codes transposed: a thread 4 columns of kChunk rows.
__device__ inline void StoreTransposed(const uint32_t* tile, uint8_t* qt_KM, int64_t m0, int64_t k0,
                                       int64_t M, int64_t K) {
  const int group = threadIdx.x % 8, word = threadIdx.x / 8;
  if (m0 + group * kChunk >= M || k0 + word * 4 >= K) return;
  uint32_t columns[4][kChunk / 4];
#pragma unroll
  for (int i = 0; i < kChunk / 4; ++i) {
    uint32_t w[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) w[r] = tile[WordAt(group * kChunk + 4 * i + r, word)];
    const uint32_t low01 = __byte_perm(w[0], w[1], 0x5140), low23 = __byte_perm(w[2], w[3], 0x5140);
    const uint32_t high01 = __byte_perm(w[0], w[1], 0x7362);
    const uint32_t high23 = __byte_perm(w[2], w[3], 0x7362);
    columns[0][i] = __byte_perm(low01, low23, 0x5410);
    columns[1][i] = __byte_perm(low01, low23, 0x7632);
    columns[2][i] = __byte_perm(high01, high23, 0x5410);
    columns[3][i] = __byte_perm(high01, high23, 0x7632);
  }
  uint8_t* to = qt_KM + (k0 + word * 4) * M + m0 + group * kChunk;
#pragma unroll
  for (int c = 0; c < 4; ++c, to += M) {
    *reinterpret_cast<uint4*>(to) =
        make_uint4(columns[c][0], columns[c][1], columns[c][2], columns[c][3]);
  }
}

// The largest magnitude of a column of the tile, in the threads of its number, from those of each
// thread's chunks.
__device__ inline uint32_t ColumnLargest(uint32_t (&of_chunk)[kChunk],
                                         uint32_t (&of_warps)[kWarps][kTile]) {
#pragma unroll
  for (int e = 0; e < kChunk; ++e) {
    of_chunk[e] = Larger(of_chunk[e], __shfl_xor_sync(0xffffffffu, of_chunk[e], 8));
    of_chunk[e] = Larger(of_chunk[e], __shfl_xor_sync(0xffffffffu, of_chunk[e], 16));
  }
  const int lane = threadIdx.x % 32;
  if (lane < kRowChunks) {
#pragma unroll
    for (int e = 0; e < kChunk; ++e) of_warps[threadIdx.x / 32][lane * kChunk + e] = of_chunk[e];
  }
  __syncthreads();
  uint32_t largest = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) {
    largest = Larger(largest, of_warps[warp][threadIdx.x % kTile]);
  }
  return largest;
}

// kRows as the row Quantize's `rows`. T: what x is, uint8_t: codes.
template <typename T, bool kE5M2, int kRows>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 4 ? 2
                                            : kRows == 1   ? 3
                                                           : 4)
    QuantizeKernel(const __grid_constant__ QuantizeCopies p, int64_t tiles_across) {
  constexpr bool kCodes = sizeof(T) == 1;
  constexpr float kMost = kE5M2 ? kLargestE5M2 : kLargestE4M3;
  __shared__ __align__(16) uint32_t tile[kTile * kRowWords];
  const int64_t down = blockIdx.x / tiles_across, across = blockIdx.x % tiles_across;
  const int64_t m0 = down * kTile, k0 = across * kTile;
  const int chunk = threadIdx.x % kRowChunks, first_row = threadIdx.x / kRowChunks;
  const int64_t at = (m0 + first_row) * p.K + k0 + chunk * kChunk;
  const bool has_column = k0 + chunk * kChunk < p.K;
  const auto has = [&](int u) { return has_column && m0 + first_row + u * kChunkRows < p.M; };

  Pack<T, kChunk> x[kChunks] = {};
#pragma unroll
  for (int u = 0; u < kChunks; ++u) {
    if (!has(u)) continue;
    x[u] = LoadPack<T, kChunk>(static_cast<const T*>(p.x_MK.data) + at + u * kChunkRows * p.K);
  }
  const auto store = [&](int u, const uint4& codes) {
    *reinterpret_cast<uint4*>(p.q_MK + at + u * kChunkRows * p.K) = codes;
  };
  const auto keep = [&](int u, const uint4& codes) {
    *reinterpret_cast<uint4*>(tile + WordAt(first_row + u * kChunkRows, chunk * 4)) = codes;
  };

  if constexpr (kCodes) {
#pragma unroll
    for (int u = 0; u < kChunks; ++u) {
      if (!has(u)) continue;
      const uint4 codes = *reinterpret_cast<const uint4*>(&x[u]);
      if (p.q_MK != nullptr) store(u, codes);
      keep(u, codes);
    }
  } else if constexpr (kRows == 1) {
    __shared__ uint32_t of_warps[kWarps][kTile];
    __shared__ float column_inverse[kTile];
    uint32_t of_columns[kChunk] = {};
#pragma unroll
    for (int u = 0; u < kChunks; ++u) {
      float v[kChunk];
      Widen(x[u], v);
      uint32_t largest = 0;
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        const uint32_t bits = MagnitudeBits(v[e]);
        largest = Larger(largest, bits);
        of_columns[e] = Larger(of_columns[e], bits);
      }
      if (p.q_MK == nullptr) continue;
#pragma unroll
      for (int offset = kRowChunks / 2; offset > 0; offset /= 2) {
        largest = Larger(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
      }
      const float amax = __uint_as_float(largest), inverse = Fp8InverseScale(amax, kMost);
      if (chunk == 0) {
        p.scale[across * p.M + m0 + first_row + u * kChunkRows] = Fp8Scale(amax, kMost);
      }
      store(u, Encode<kE5M2>(v, [&](int) { return inverse; }));
    }
    if (p.qt_KM == nullptr) return;
    const float amax = __uint_as_float(ColumnLargest(of_columns, of_warps));
    if (threadIdx.x < kTile) {
      column_inverse[threadIdx.x] = Fp8InverseScale(amax, kMost);
      p.scale_t[down * p.K + k0 + threadIdx.x] = Fp8Scale(amax, kMost);
    }
    __syncthreads();
    float inverse[kChunk];
#pragma unroll
    for (int e = 0; e < kChunk; ++e) inverse[e] = column_inverse[chunk * kChunk + e];
#pragma unroll
    for (int u = 0; u < kChunks; ++u) {
      float v[kChunk];
      Widen(x[u], v);
      keep(u, Encode<kE5M2>(v, [&](int e) { return inverse[e]; }));
    }
  } else {
    float amax;
    if constexpr (kRows == 0) {
      amax = *p.amax;
    } else {
      __shared__ uint32_t of_warps[kWarps];
      uint32_t largest = 0;
#pragma unroll
      for (int u = 0; u < kChunks; ++u) largest = Larger(largest, LargestOf(x[u]));
      largest = WarpLargest(largest);
      if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
      __syncthreads();
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) largest = Larger(largest, of_warps[warp]);
      amax = __uint_as_float(largest);
    }
    if (threadIdx.x == 0 && (kRows != 0 || blockIdx.x == 0)) {
      const float scale = Fp8Scale(amax, kMost);
      const int64_t place = kRows == 0 ? 0 : down * Fp8BlockScalesRow(p.K) + across;
      const int64_t place_t = kRows == 0 ? 0 : across * Fp8BlockScalesRow(p.M) + down;
      if (p.scale != nullptr) p.scale[place] = scale;
      if (p.scale_t != nullptr) p.scale_t[place_t] = scale;
    }
    const float inverse = Fp8InverseScale(amax, kMost);
#pragma unroll
    for (int u = 0; u < kChunks; ++u) {
      if (!has(u)) continue;
      float v[kChunk];
      Widen(x[u], v);
      const uint4 codes = Encode<kE5M2>(v, [&](int) { return inverse; });
      if (p.q_MK != nullptr) store(u, codes);
      keep(u, codes);
    }
  }
  if (p.qt_KM == nullptr) return;
  __syncthreads();
  StoreTransposed(tile, p.qt_KM, m0, k0, p.M, p.K);
}

// Piece blockIdx.y of a shard: chunks as far as they go, and what is left one by one.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    QuantizeShardKernel(const T* x_n, uint8_t* q_n, const __grid_constant__ ShardPieces all) {
  const ShardPiece& piece = all.pieces[blockIdx.y];
  const T* x = x_n + piece.first;
  uint8_t* q = q_n + piece.first;
  const float inverse =
      Fp8InverseScale(*reinterpret_cast<const float*>(piece.slot + kFp8AmaxAt), kLargestE4M3);
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool aligned = (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(q)) % 16 == 0;
  const int64_t chunks = aligned ? piece.count / kChunk : 0;
  for (int64_t i = first; i < chunks; i += threads) {
    float v[kChunk];
    Widen(LoadPack<T, kChunk>(x + i * kChunk), v);
    *reinterpret_cast<uint4*>(q + i * kChunk) = Encode<false>(v, [&](int) { return inverse; });
  }
  for (int64_t i = chunks * kChunk + first; i < piece.count; i += threads) {
    q[i] = static_cast<uint8_t>(EncodeTwo<false>(__fmul_rn(ToFloat(x[i]), inverse), 0));
  }
}

__global__ void SetScalesKernel(char* slots, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  char* const slot = slots + i * kFp8SlotBytes;
  *reinterpret_cast<float*>(slot + kFp8ScaleAt) =
      Fp8Scale(*reinterpret_cast<const float*>(slot + kFp8AmaxAt), kLargestE4M3);
}

unsigned BlocksOf(int64_t items, int64_t most) {
  const int64_t wanted = CeilDiv64(items, kThreads);
  return static_cast<unsigned>(wanted < most ? wanted : most);
}

// Blocks for each piece.
dim3 GridOfPieces(const ShardPieces& all, int64_t elements_a_thread) {
  int64_t most = 1;
  for (int i = 0; i < all.count; ++i)
    most = most < all.pieces[i].count ? all.pieces[i].count : most;
  return {BlocksOf(CeilDiv64(most, elements_a_thread), kMostBlocks),
          static_cast<unsigned>(all.count)};
}

}  // namespace

void LaunchLargestMagnitude(const FloatArray& x_n, int64_t n, float* amax, cudaStream_t stream) {
  if (n == 0) return;
  const unsigned blocks = BlocksOf(Vectors(x_n.data, n) > 0 ? n / kVector : n, kMostBlocks);
  WithFloatType(x_n.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    LargestKernel<<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(x_n.data), n, amax);
  });
}

void LaunchShardMagnitudes(const FloatArray& x_n, const ShardPieces& pieces, cudaStream_t stream) {
  if (pieces.count == 0) return;
  WithFloatType(x_n.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    ShardLargestKernel<<<GridOfPieces(pieces, kVector), kThreads, 0, stream>>>(
        static_cast<const T*>(x_n.data), pieces);
  });
}

void LaunchQuantizeShard(const FloatArray& x_n, uint8_t* q_n, const ShardPieces& pieces,
                         cudaStream_t stream) {
  if (pieces.count == 0) return;
  WithFloatType(x_n.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    QuantizeShardKernel<<<GridOfPieces(pieces, kChunk), kThreads, 0, stream>>>(
        static_cast<const T*>(x_n.data), q_n, pieces);
  });
}

void LaunchSetScales(char* slots, int64_t count, cudaStream_t stream) {
  if (count > 0) SetScalesKernel<<<GridOf(count, 32), 32, 0, stream>>>(slots, count);
}

void LaunchLargestOfParts(const float* parts_Pn, float* dst_n, int64_t n, int64_t P,
                          cudaStream_t stream) {
  if (n == 0) return;
  LargestOfPartsKernel<<<GridOf(n, kThreads), kThreads, 0, stream>>>(parts_Pn, dst_n, n, P);
}

void LaunchQuantize(const QuantizeCopies& p, cudaStream_t stream) {
  if (p.M == 0 || p.K == 0) return;
  const int64_t across = CeilDiv64(p.K, kTile);
  const unsigned blocks = GridOf(CeilDiv64(p.M, kTile) * across, 1);
  const auto launch = [&](auto kernel) { kernel<<<blocks, kThreads, 0, stream>>>(p, across); };
  if (DtypeBytes(p.x_MK.dtype) == 1) return launch(QuantizeKernel<uint8_t, false, 0>);
  WithFloatType(p.x_MK.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (p.rows == 0) {
      launch(p.e5m2 ? QuantizeKernel<T, true, 0> : QuantizeKernel<T, false, 0>);
    } else if (p.rows == 1) {
      launch(p.e5m2 ? QuantizeKernel<T, true, 1> : QuantizeKernel<T, false, 1>);
    } else {
      launch(p.e5m2 ? QuantizeKernel<T, true, kTile> : QuantizeKernel<T, false, kTile>);
    }
  });
}

}  // namespace zeroplan::cuda
