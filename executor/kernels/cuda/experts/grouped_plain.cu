// Grouped matmuls where the Hopper kernels do not run: by fp32 multiply-adds for every dtype,
// and by mma.sync where both operands have the same 16 bit.
//
// A block of the forward product and of the data gradient makes a tile of rows that lie at
// multiples of the tile's height, for one expert after the other that owns some of them: it needs
// no count of the tiles before it. A block of the weight gradient makes a tile of one expert's
// matrix.
#include "executor/kernels/cuda/async_copy.cuh"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/experts/grouped_matmul.h"
#include "executor/kernels/cuda/mma.cuh"

namespace zeroplan::cuda {
namespace {

enum class Product { kForward, kData, kWeight };

constexpr int kTile = 128;  // rows and columns of a block's tile
constexpr int kThreads = 256;

// left * right, of whatever product.
struct Operands {
  FloatArray left, right, out;
  int64_t R, K, N, E;
  const int32_t* starts_E1;
  bool accumulate;
};

// A block's part of one expert's product: the tile of the result at `row` and `column`, of which it
// stores `first_row` to `end_row`, and the bounds of the sum.
struct Part {
  int64_t row, column, first_row, end_row;
  int64_t begin, end;
  int64_t expert;
};

// The expert that owns a row.
__device__ inline int64_t OwnerOf(const Operands& operands, int64_t row) {
  int64_t low = 0, high = operands.E;  // starts[low] <= row < starts[high]
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (operands.starts_E1[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// fn(part) for each expert that this block has to do with.
template <Product kProduct, typename Fn>
__device__ inline void ForEachPart(const Operands& operands, Fn&& fn) {
  const int64_t width = kProduct == Product::kForward ? operands.N : operands.K;
  const int64_t across = (width + kTile - 1) / kTile;
  const int64_t column = blockIdx.x % across * kTile;
  if constexpr (kProduct == Product::kWeight) {
    const int64_t down = (operands.N + kTile - 1) / kTile, number = blockIdx.x / across;
    const int64_t expert = number / down, row = number % down * kTile;
    fn(Part{row, column, row, min(row + kTile, operands.N), operands.starts_E1[expert],
            operands.starts_E1[expert + 1], expert});
  } else {
    const int64_t row = blockIdx.x / across * kTile, end = min(row + kTile, operands.R);
    for (int64_t expert = OwnerOf(operands, row);
         expert < operands.E && operands.starts_E1[expert] < end; ++expert) {
      const int64_t first = max(row, static_cast<int64_t>(operands.starts_E1[expert]));
      const int64_t last = min(end, static_cast<int64_t>(operands.starts_E1[expert + 1]));
      if (first >= last) continue;
      fn(Part{row, column, first, last, 0, kProduct == Product::kForward ? operands.K : operands.N,
              expert});
    }
  }
}

// Element (i, s) of an operand: i along the result, s along the sum.
template <bool kAcrossRows>
struct Matrix {
  int64_t first, pitch;  // elements; of the element (0, 0), from a row to the next
  __device__ int64_t At(int64_t i, int64_t s) const {
    return first + (kAcrossRows ? s * pitch + i : i * pitch + s);
  }
};

// Whether the sum runs across an operand's rows as they lie.
template <Product kProduct>
constexpr bool kLeftAcross = kProduct == Product::kWeight;
template <Product kProduct>
constexpr bool kRightAcross = kProduct != Product::kForward;

template <Product kProduct>
__device__ inline Matrix<kLeftAcross<kProduct>> LeftOf(const Operands& operands) {
  return {0, kProduct == Product::kForward ? operands.K : operands.N};
}
template <Product kProduct>
__device__ inline Matrix<kRightAcross<kProduct>> RightOf(const Operands& operands, int64_t expert) {
  return {kProduct == Product::kWeight ? 0 : expert * operands.N * operands.K, operands.K};
}

// Rows of the left operand that are there, and columns of the right one.
template <Product kProduct>
__device__ inline int64_t HeightOf(const Operands& operands) {
  return kProduct == Product::kWeight ? operands.N : operands.R;
}
template <Product kProduct>
__device__ inline int64_t WidthOf(const Operands& operands) {
  return kProduct == Product::kForward ? operands.N : operands.K;
}
template <Product kProduct>
__device__ inline int64_t OutAt(const Operands& operands, const Part& part, int64_t row) {
  return ((kProduct == Product::kWeight ? part.expert * operands.N : 0) + row) *
         WidthOf<kProduct>(operands);
}

constexpr int kPlainDepth = 16;
using PlainTile = float[kPlainDepth][kTile + 4];

// Loads a tile, with zeros from `i_end` and `s_end` on.
template <bool kAcrossRows>
__device__ inline void LoadPlainTile(PlainTile& tile, const Runtime& data,
                                     const Matrix<kAcrossRows>& matrix, int64_t i_begin,
                                     int64_t i_end, int64_t s_begin, int64_t s_end) {
#pragma unroll
  for (int n = 0; n < kTile * kPlainDepth / kThreads; ++n) {
    const int index = n * kThreads + threadIdx.x;
    const int i = kAcrossRows ? index % kTile : index / kPlainDepth;
    const int s = kAcrossRows ? index / kTile : index % kPlainDepth;
    const bool there = i_begin + i < i_end && s_begin + s < s_end;
    tile[s][i] = there ? data.Get(matrix.At(i_begin + i, s_begin + s)) : 0.0f;
  }
}

// A thread has 8 x 8 elements: rows y + 16 i and columns x + 16 j.
template <Product kProduct>
__global__ void __launch_bounds__(kThreads) PlainKernel(const __grid_constant__ Operands operands) {
  __shared__ PlainTile left_tile, right_tile;
  const Runtime left(operands.left), right(operands.right), out(operands.out);
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
  ForEachPart<kProduct>(operands, [&](const Part& part) {
    const auto left_matrix = LeftOf<kProduct>(operands);
    const auto right_matrix = RightOf<kProduct>(operands, part.expert);
    float sums[8][8] = {};
    for (int64_t s = part.begin; s < part.end; s += kPlainDepth) {
      __syncthreads();
      LoadPlainTile(left_tile, left, left_matrix, part.row, HeightOf<kProduct>(operands), s,
                    part.end);
      LoadPlainTile(right_tile, right, right_matrix, part.column, WidthOf<kProduct>(operands), s,
                    part.end);
      __syncthreads();
#pragma unroll 4
      for (int depth = 0; depth < kPlainDepth; ++depth) {
        float a[8], b[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          a[i] = left_tile[depth][y + 16 * i];
          b[i] = right_tile[depth][x + 16 * i];
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#pragma unroll
          for (int j = 0; j < 8; ++j) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int64_t row = part.row + y + 16 * i;
      if (row < part.first_row || row >= part.end_row) continue;
      const int64_t at = OutAt<kProduct>(operands, part, row);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int64_t column = part.column + x + 16 * j;
        if (column >= WidthOf<kProduct>(operands)) continue;
        out.Set(at + column, operands.accumulate ? out.Get(at + column) + sums[i][j] : sums[i][j]);
      }
    }
  });
}

// By mma.sync: a block's 8 warps, 2 down and 4 across, each make 64 x 32 elements.
constexpr int kDepth = 32;
[[maybe_unused]] constexpr int kStages = 3;
constexpr int kTileChunks = kTile * kDepth / kVector;
constexpr int kWarpRows = 64, kWarpColumns = 32;

// The place of a chunk of a row in an operand's tile, in shared memory: what ldmatrix reads
// together lies in different banks. Rows run along the sum, or across it.
template <bool kAcrossRows>
__device__ inline int Place(int row, int chunk) {
  if constexpr (kAcrossRows) return row * (kTile / kVector) + (chunk ^ (row & 7));
  return row * (kDepth / kVector) + (chunk ^ (row >> 1 & 3));
}

// Asks for a tile, with zeros from `i_end` and `s_end` on.
template <bool kAcrossRows, typename T>
__device__ inline void AskForTile(uint4* tile, const T* data, const Matrix<kAcrossRows>& matrix,
                                  int64_t i_begin, int64_t i_end, int64_t s_begin, int64_t s_end) {
  constexpr int kRowChunks = (kAcrossRows ? kTile : kDepth) / kVector;
#pragma unroll
  for (int n = 0; n < kTileChunks / kThreads; ++n) {
    const int index = n * kThreads + threadIdx.x;
    const int row = index / kRowChunks, chunk = index % kRowChunks;
    const int64_t i = i_begin + (kAcrossRows ? chunk * kVector : row);
    const int64_t s = s_begin + (kAcrossRows ? row : chunk * kVector);
    const bool there = i < i_end && s < s_end;
    CopyAsync16OrZero(tile + Place<kAcrossRows>(row, chunk), there ? data + matrix.At(i, s) : data,
                      there);
  }
}

// Rows `row` to `row` + 15 of the left operand, at 16 of the sum.
template <bool kAcrossRows>
__device__ inline void LoadLeft(const uint4* tile, int row, int step, uint32_t (&a)[4]) {
  const int lane = threadIdx.x % 32;
  if constexpr (kAcrossRows) {
    LoadMatrices<true>(
        tile + Place<true>(16 * step + lane / 16 * 8 + lane % 8, row / 8 + lane / 8 % 2), a);
  } else {
    LoadMatrices<false>(tile + Place<false>(row + lane % 16, 2 * step + lane / 16), a);
  }
}
// Columns `column` to `column` + 15 of the right one, 8 in b[0] and b[1], 8 in b[2] and b[3].
template <bool kAcrossRows>
__device__ inline void LoadRight(const uint4* tile, int column, int step, uint32_t (&b)[4]) {
  const int lane = threadIdx.x % 32;
  if constexpr (kAcrossRows) {
    LoadMatrices<true>(tile + Place<true>(16 * step + lane % 16, column / 8 + lane / 16), b);
  } else {
    LoadMatrices<false>(
        tile + Place<false>(column + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2), b);
  }
}

template <Product kProduct, typename T>
__global__ void __launch_bounds__(kThreads, 2)
    MmaKernel(const __grid_constant__ Operands operands) {
#if __CUDA_ARCH__ >= 800
  __shared__ uint4 stages[kStages][2][kTileChunks];
  const auto* left = static_cast<const T*>(operands.left.data);
  const auto* right = static_cast<const T*>(operands.right.data);
  const Runtime out(operands.out);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_row = warp / 4 * kWarpRows, first_column = warp % 4 * kWarpColumns;
  ForEachPart<kProduct>(operands, [&](const Part& part) {
    const auto left_matrix = LeftOf<kProduct>(operands);
    const auto right_matrix = RightOf<kProduct>(operands, part.expert);
    const int blocks = static_cast<int>((part.end - part.begin + kDepth - 1) / kDepth);
    const auto ask = [&](int block) {
      if (block < blocks) {
        const int64_t s = part.begin + static_cast<int64_t>(block) * kDepth;
        uint4(&stage)[2][kTileChunks] = stages[block % kStages];
        AskForTile(stage[0], left, left_matrix, part.row, HeightOf<kProduct>(operands), s,
                   part.end);
        AskForTile(stage[1], right, right_matrix, part.column, WidthOf<kProduct>(operands), s,
                   part.end);
      }
      CommitCopies();
    };
    float sums[kWarpRows / 16][kWarpColumns / 8][4] = {};
    __syncthreads();  // the last part's stages are read
#pragma unroll
    for (int block = 0; block < kStages - 1; ++block) ask(block);
    for (int block = 0; block < blocks; ++block) {
      WaitForCopiesBut<kStages - 2>();
      __syncthreads();
      ask(block + kStages - 1);
      const uint4(&stage)[2][kTileChunks] = stages[block % kStages];
#pragma unroll
      for (int step = 0; step < kDepth / 16; ++step) {
        uint32_t b[kWarpColumns / 16][4];
#pragma unroll
        for (int n = 0; n < kWarpColumns / 16; ++n) {
          LoadRight<kRightAcross<kProduct>>(stage[1], first_column + 16 * n, step, b[n]);
        }
#pragma unroll
        for (int m = 0; m < kWarpRows / 16; ++m) {
          uint32_t a[4];
          LoadLeft<kLeftAcross<kProduct>>(stage[0], first_row + 16 * m, step, a);
#pragma unroll
          for (int n = 0; n < kWarpColumns / 8; ++n) {
            MultiplyAdd<T>(sums[m][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kWarpRows / 16; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = part.row + first_row + 16 * m + 8 * half + lane / 4;
        if (row < part.first_row || row >= part.end_row) continue;
        const int64_t at = OutAt<kProduct>(operands, part, row);
#pragma unroll
        for (int n = 0; n < kWarpColumns / 8; ++n) {
          const int64_t column = part.column + first_column + 8 * n + lane % 4 * 2;
          if (column >= WidthOf<kProduct>(operands)) continue;
          float v[2] = {sums[m][n][2 * half], sums[m][n][2 * half + 1]};
          if (operands.accumulate) {
            float old[2];
            out.Load(at + column, old);
            v[0] += old[0];
            v[1] += old[1];
          }
          out.Store(at + column, v);
        }
      }
    }
  });
#else
  __trap();
#endif
}

// Whether the kernel above takes them: whole vectors of 16 bytes.
bool TakesMma(const Operands& operands, int compute_capability) {
  const Dtype dtype = operands.left.dtype;
  return compute_capability >= 80 && operands.right.dtype == dtype &&
         (dtype == Dtype::kBF16 || dtype == Dtype::kF16) && operands.K % kVector == 0 &&
         operands.N % kVector == 0 && Aligned(operands.left.data) && Aligned(operands.right.data) &&
         Aligned(operands.out.data);
}

template <Product kProduct>
cudaError_t Launch(const Operands& operands, int compute_capability, cudaStream_t stream) {
  const auto tiles = [](int64_t n) { return (n + kTile - 1) / kTile; };
  const int64_t across = tiles(kProduct == Product::kForward ? operands.N : operands.K);
  const int64_t down =
      kProduct == Product::kWeight ? operands.E * tiles(operands.N) : tiles(operands.R);
  if (across * down == 0) return cudaSuccess;
  if (across * down >= int64_t{1} << 31) return cudaErrorInvalidConfiguration;
  const auto blocks = static_cast<unsigned>(across * down);
  if (!TakesMma(operands, compute_capability)) {
    PlainKernel<kProduct><<<blocks, kThreads, 0, stream>>>(operands);
  } else if (operands.left.dtype == Dtype::kBF16) {
    MmaKernel<kProduct, Bf16><<<blocks, kThreads, 0, stream>>>(operands);
  } else {
    MmaKernel<kProduct, Half><<<blocks, kThreads, 0, stream>>>(operands);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchPlainGroupedForward(const GroupedMatmul& product, const FloatArray& a_RK,
                                      const FloatArray& w_ENK, const FloatArray& y_RN,
                                      int compute_capability, cudaStream_t stream) {
  const auto [R, K, N, E, starts] = product;
  return Launch<Product::kForward>({a_RK, w_ENK, y_RN, R, K, N, E, starts, false},
                                   compute_capability, stream);
}

cudaError_t LaunchPlainGroupedData(const GroupedMatmul& product, const FloatArray& dy_RN,
                                   const FloatArray& w_ENK, const FloatArray& dx_RK,
                                   int compute_capability, cudaStream_t stream) {
  const auto [R, K, N, E, starts] = product;
  return Launch<Product::kData>({dy_RN, w_ENK, dx_RK, R, K, N, E, starts, false},
                                compute_capability, stream);
}

cudaError_t LaunchPlainGroupedWeight(const GroupedMatmul& product, const FloatArray& dy_RN,
                                     const FloatArray& a_RK, const FloatArray& dw_ENK,
                                     bool accumulate, int compute_capability, cudaStream_t stream) {
  const auto [R, K, N, E, starts] = product;
  return Launch<Product::kWeight>({dy_RN, a_RK, dw_ENK, R, K, N, E, starts, accumulate},
                                  compute_capability, stream);
}

}  // namespace zeroplan::cuda
