#include "executor/kernels/cuda/async_copy.cuh"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/gemm/thin_product.h"
#include "executor/kernels/cuda/mma.cuh"

namespace zeroplan::cuda {
namespace {

constexpr int kTile = kThinTile, kTileChunks = kTile / kVector;
// A warp takes 32 rows of a tile for row sums, and 32 columns of it for column sums.
constexpr int kThinWarps = 4, kThinThreads = 32 * kThinWarps;

// Where in a tile of shared memory, whose rows have kChunks vectors, chunk `chunk` of a row lies:
// eight rows' chunks of one number lie in different banks.
template <int kChunks>
__device__ inline int Place(int row, int chunk) {
  constexpr int kShift = kChunks % 8 == 0 ? 0 : kChunks == 4 ? 1 : 2;
  constexpr int kMask = kChunks % 8 == 0 ? 7 : kChunks == 4 ? 3 : 1;
  return row * kChunks + (chunk ^ (row >> kShift & kMask));
}

// Asks for kRows rows of kChunks vectors from `from` on; zeros from row `rows`, column `columns`
// on.
template <int kRows, int kChunks, typename T>
__device__ inline void LoadTile(uint4* to, const T* from, int64_t stride, int64_t rows,
                                int64_t columns) {
  static_assert(kRows * kChunks % kThinThreads == 0);
#pragma unroll
  for (int i = 0; i < kRows * kChunks / kThinThreads; ++i) {
    const int index = i * kThinThreads + threadIdx.x;
    const int row = index / kChunks, chunk = index % kChunks;
    const bool there = row < rows && chunk * kVector < columns;
    CopyAsync16OrZero(to + Place<kChunks>(row, chunk),
                      there ? from + row * stride + chunk * kVector : from, there);
  }
}

// How partial sums lie: see ThinCut.
struct Partials {
  float* rows[kMostThinParts];
  float* columns[kMostThinParts];
  int64_t split;  // from the column sums of one split to the next
  int strip_tiles, split_tiles;
};

// What a block has in shared memory, twice: tiles of x and of the thin matrices.
template <int kR, bool kRowSums, bool kColumnSums>
constexpr int kStageChunks =
    kTile * (kTileChunks + ((kRowSums ? 1 : 0) + (kColumnSums ? 1 : 0)) * kR / kVector);

template <int kR>
constexpr int kStripTiles = static_cast<int>(ThinStripTiles(kR));

// Sums of a part of the matrix, into partials. kR: the rank, in whole multiples of 16. Block x is a
// strip of a part's columns, y a split of the rows; it goes along the tiles of one row, then of the
// next.
template <typename T, int kR, bool kAcross, bool kRowSums, bool kColumnSums>
__global__ void __launch_bounds__(kThinThreads, 2)
    SumsKernel(const __grid_constant__ ThinProduct product, const __grid_constant__ Partials out) {
  constexpr int kChunks = kR / kVector;
  // Tiles of a strip, each with column sums of its own.
  constexpr int kTiles = kColumnSums && kRowSums ? kStripTiles<kR> : 1;
  extern __shared__ uint4 shared[];
  uint4* const x_tiles = shared;
  uint4* const column_tiles = x_tiles + 2 * kTile * kTileChunks;
  uint4* const row_tiles = column_tiles + (kRowSums ? 2 * kTile * kChunks : 0);

  int index = 0;
  int64_t strip = blockIdx.x;
  const int64_t strip_columns = static_cast<int64_t>(out.strip_tiles) * kTile;
  for (;; ++index) {
    const int64_t strips = (product.parts[index].C + strip_columns - 1) / strip_columns;
    if (strip < strips) break;
    strip -= strips;
  }
  const ThinPart& part = product.parts[index];
  const int64_t M = product.M, r = product.r, C = part.C;
  const auto *x = static_cast<const T*>(part.x_MC), *rows = static_cast<const T*>(part.rows_Mr),
             *columns = static_cast<const T*>(part.columns_Cr);
  const int64_t first_column = strip * strip_columns;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * out.split_tiles * kTile;
  const auto tiles = [](int64_t left, int most) {
    const int64_t there = (left + kTile - 1) / kTile;
    return there < most ? static_cast<int>(there) : most;
  };
  const int across_tiles = tiles(C - first_column, out.strip_tiles);
  const int down_tiles = tiles(M - first_row, out.split_tiles);

  // The next tile to ask for.
  int load_across = 0, load_down = 0, stage = 0;
  const auto load = [&](int to) {
    if (load_down < down_tiles) {
      const int64_t row = first_row + static_cast<int64_t>(load_down) * kTile;
      const int64_t column = first_column + static_cast<int64_t>(load_across) * kTile;
      LoadTile<kTile, kTileChunks>(x_tiles + to * kTile * kTileChunks,
                                   x + row * product.x_stride + column, product.x_stride, M - row,
                                   C - column);
      if constexpr (kRowSums) {
        uint4* const tile = column_tiles + to * kTile * kChunks;
        if constexpr (kAcross) {
          LoadTile<kR, kTileChunks>(tile, columns + column, C, r, C - column);
        } else {
          LoadTile<kTile, kChunks>(tile, columns + column * r, r, C - column, r);
        }
      }
      if constexpr (kColumnSums) {
        if (load_across == 0) {
          LoadTile<kTile, kChunks>(row_tiles + load_down % 2 * kTile * kChunks,
                                   rows + row * product.R, product.R, M - row, r);
        }
      }
      if (++load_across == across_tiles) load_across = 0, ++load_down;
    }
    CommitCopies();
  };
  load(0);
  load(1);

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int low = lane % 16, high = lane / 16;
  const int g = lane / 4, t = lane % 4;
  float column_sums[kTiles][2][kR / 8][4] = {};
  for (int down = 0; down < down_tiles; ++down) {
    float row_sums[2][kR / 8][4] = {};
    for (int begin = 0; begin < across_tiles; begin += kTiles) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        if (begin + tile >= across_tiles) break;
        WaitForCopiesBut<1>();
        __syncthreads();
        const uint4* const x_tile = x_tiles + stage * kTile * kTileChunks;
        if constexpr (kRowSums) {  // A is x: k runs over its columns
          const uint4* const thin = column_tiles + stage * kTile * kChunks;
#pragma unroll 4  // with more, accumulators leave the registers
          for (int k = 0; k < kTile / 16; ++k) {
            uint32_t a[2][4];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
              LoadMatrices<false>(
                  x_tile + Place<kTileChunks>(32 * warp + 16 * m + low, 2 * k + high), a[m]);
            }
#pragma unroll
            for (int n = 0; n < kR / 16; ++n) {
              uint32_t b[4];
              if constexpr (kAcross) {
                LoadMatrices<false>(
                    thin + Place<kTileChunks>(16 * n + 8 * high + lane % 8, 2 * k + lane / 8 % 2),
                    b);
              } else {
                LoadMatrices<true>(thin + Place<kChunks>(16 * k + low, 2 * n + high), b);
              }
#pragma unroll
              for (int m = 0; m < 2; ++m) {
                MultiplyAdd<T>(row_sums[m][2 * n], a[m], b[0], b[1]);
                MultiplyAdd<T>(row_sums[m][2 * n + 1], a[m], b[2], b[3]);
              }
            }
          }
        }
        if constexpr (kColumnSums) {  // A is x transposed: k runs over its rows
          const uint4* const thin = row_tiles + down % 2 * kTile * kChunks;
#pragma unroll 4  // with more, accumulators leave the registers
          for (int k = 0; k < kTile / 16; ++k) {
            uint32_t a[2][4];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
              LoadMatrices<true>(x_tile + Place<kTileChunks>(16 * k + 8 * high + lane % 8,
                                                             4 * warp + 2 * m + lane / 8 % 2),
                                 a[m]);
            }
#pragma unroll
            for (int n = 0; n < kR / 16; ++n) {
              uint32_t b[4];
              LoadMatrices<true>(thin + Place<kChunks>(16 * k + low, 2 * n + high), b);
#pragma unroll
              for (int m = 0; m < 2; ++m) {
                MultiplyAdd<T>(column_sums[tile][m][2 * n], a[m], b[0], b[1]);
                MultiplyAdd<T>(column_sums[tile][m][2 * n + 1], a[m], b[2], b[3]);
              }
            }
          }
        }
        __syncthreads();
        load(stage);
        stage ^= 1;
      }
    }
    if constexpr (kRowSums) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t row = first_row + down * kTile + 32 * warp + 16 * m + 8 * half + g;
          if (row >= M) continue;
#pragma unroll
          for (int n = 0; n < kR / 8; ++n) {
            if (8 * n >= r) continue;
            *reinterpret_cast<float2*>(out.rows[index] + (strip * M + row) * r + 8 * n + 2 * t) =
                make_float2(row_sums[m][n][2 * half], row_sums[m][n][2 * half + 1]);
          }
        }
      }
    }
  }
  if constexpr (kColumnSums) {
    float* const sums = out.columns[index] + blockIdx.y * out.split;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t column = first_column + tile * kTile + 32 * warp + 16 * m + 8 * half + g;
          if (tile >= across_tiles || column >= C) continue;
#pragma unroll
          for (int n = 0; n < kR / 8; ++n) {
            if (8 * n >= r) continue;
            const float* two = &column_sums[tile][m][n][2 * half];
            const int rank = 8 * n + 2 * t;
            if constexpr (kAcross) {
              sums[rank * C + column] = two[0];
              sums[(rank + 1) * C + column] = two[1];
            } else {
              *reinterpret_cast<float2*>(sums + column * r + rank) = make_float2(two[0], two[1]);
            }
          }
        }
      }
    }
  }
}

// out = scale * the sum of `terms` partials, `stride` apart, or += with `add`. Rows of `row`
// elements, out_stride apart in `out`.
struct Sum {
  const float* partials;
  int64_t terms, stride, count, row, out_stride;
  FloatArray out;
  float scale;
  bool add;
};
struct SumList {
  Sum sums[2 * kMostThinParts];
  int count = 0;
};

constexpr int kAddThreads = 128;

__global__ void __launch_bounds__(kAddThreads) AddKernel(const __grid_constant__ SumList list) {
  const Sum& sum = list.sums[blockIdx.y];
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kAddThreads + threadIdx.x) * 4;
  if (i >= sum.count) return;
  float total[4] = {};
#pragma unroll 8
  for (int64_t term = 0; term < sum.terms; ++term) {
    const float4 v = *reinterpret_cast<const float4*>(sum.partials + term * sum.stride + i);
    total[0] += v.x, total[1] += v.y, total[2] += v.z, total[3] += v.w;
  }
  const Runtime out(sum.out);
  const int64_t at = i / sum.row * sum.out_stride + i % sum.row;
  float before[4] = {};
  if (sum.add) out.Load(at, before);
#pragma unroll
  for (int e = 0; e < 4; ++e) total[e] = fmaf(total[e], sum.scale, before[e]);
  out.Store(at, total);
}

// ---- launches ----------------------------------------------------------------------------------

// fn(TypeTag<T>, Int<kR>, Int<across>), of the least kR that holds the rank.
template <typename Fn>
void WithThinTypes(const ThinProduct& p, Fn&& fn) {
  const auto with_rank = [&](auto type, auto across) {
    if (p.r <= 16) return fn(type, Int<16>{}, across);
    if (p.r <= 32) return fn(type, Int<32>{}, across);
    if (p.r <= 48) return fn(type, Int<48>{}, across);
    return fn(type, Int<64>{}, across);
  };
  const auto with_across = [&](auto type) {
    return p.across ? with_rank(type, Int<1>{}) : with_rank(type, Int<0>{});
  };
  p.dtype == Dtype::kBF16 ? with_across(TypeTag<Bf16>{}) : with_across(TypeTag<Half>{});
}

bool IsVectors(const void* data, int64_t stride) { return Aligned(data) && stride % kVector == 0; }

}  // namespace

bool IsThin(const ThinProduct& p) {
  if (p.dtype != Dtype::kBF16 && p.dtype != Dtype::kF16) return false;
  constexpr int64_t kMostTiles = 65535;  // of rows: a grid's y
  bool thin = p.r <= kMostThinRank && p.r % kVector == 0 && p.M <= kMostTiles * kThinTile;
  for (int i = 0; i < p.count; ++i) {
    const ThinPart& part = p.parts[i];
    thin = thin && part.C % kVector == 0 && IsVectors(part.x_MC, p.x_stride) &&
           IsVectors(part.rows_Mr, p.R) && IsVectors(part.row_sums_Mr, p.R) &&
           Aligned(part.columns_Cr) && Aligned(part.column_sums_Cr);
  }
  return thin;
}

void LaunchThinSums(const ThinProduct& product, void* scratch, cudaStream_t stream) {
  const bool row_sums = product.parts[0].row_sums_Mr != nullptr;
  const bool column_sums = product.parts[0].column_sums_Cr != nullptr;
  int64_t columns[kMostThinParts] = {}, width = 0, strips = 0;
  for (int i = 0; i < product.count; ++i) width += columns[i] = product.parts[i].C;
  if (row_sums && column_sums && !ThinTogether(product.M, product.r, columns)) {
    ThinProduct of_rows = product, of_columns = product;
    for (ThinPart& part : of_rows.parts) part.column_sums_Cr = nullptr;
    for (ThinPart& part : of_columns.parts) part.row_sums_Mr = nullptr;
    LaunchThinSums(of_rows, scratch, stream);
    LaunchThinSums(of_columns, scratch, stream);
    return;
  }
  const int64_t M = product.M, r = product.r;
  const ThinCut cut = CutThin(M, r, columns, row_sums, column_sums);
  Partials partials = {.split = width * r,
                       .strip_tiles = static_cast<int>(cut.strip_tiles),
                       .split_tiles = static_cast<int>(cut.split_tiles)};
  SumList list;
  int64_t most = 0;
  auto* free = static_cast<float*>(scratch);
  const auto add = [&](const Sum& sum) {
    most = sum.count > most ? sum.count : most;
    list.sums[list.count++] = sum;
  };
  for (int i = 0; i < product.count; ++i) {
    strips += cut.strips[i];
    if (!row_sums) continue;
    partials.rows[i] = free;
    add({free,
         cut.strips[i],
         M * r,
         M * r,
         r,
         product.R,
         {product.parts[i].row_sums_Mr, product.dtype},
         product.scale,
         false});
    free += cut.strips[i] * M * r;
  }
  for (int i = 0; column_sums && i < product.count; ++i) {
    partials.columns[i] = free;
    const int64_t count = columns[i] * r;
    add({free,
         cut.splits,
         width * r,
         count,
         count,
         count,
         {product.parts[i].column_sums_Cr, product.sums_dtype},
         1,
         product.add});
    free += count;
  }
  const dim3 grid(static_cast<unsigned>(strips), static_cast<unsigned>(cut.splits));
  WithThinTypes(product, [&](auto type, auto rank, auto across) {
    using T = typename decltype(type)::type;
    constexpr int kR = decltype(rank)::value;
    constexpr bool kAcross = decltype(across)::value != 0;
    const auto launch = [&](auto kernel, int chunks) {
      const int bytes = 2 * chunks * static_cast<int>(sizeof(uint4));
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                           cudaSharedmemCarveoutMaxShared);
      kernel<<<grid, kThinThreads, static_cast<size_t>(bytes), stream>>>(product, partials);
    };
    if (!column_sums) {
      launch(SumsKernel<T, kR, kAcross, true, false>, kStageChunks<kR, true, false>);
    } else if (!row_sums) {
      launch(SumsKernel<T, kR, kAcross, false, true>, kStageChunks<kR, false, true>);
    } else if constexpr (!kAcross && kR <= kMostThinBothRank) {
      launch(SumsKernel<T, kR, false, true, true>, kStageChunks<kR, true, true>);
    }
  });
  const dim3 add_grid(GridOf(most, 4 * kAddThreads), static_cast<unsigned>(list.count));
  AddKernel<<<add_grid, kAddThreads, 0, stream>>>(list);
}

}  // namespace zeroplan::cuda
