// Legend: M, K, N as in c_MN += a_MK * b_KN.
#include "executor/kernels/gemm.h"

// Threads are the pool's business.
#define EIGEN_DONT_PARALLELIZE
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operands inside AVX-512 intrinsics for mistakes.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <Eigen/Core>

namespace zeroplan {
namespace {

// Most of K that one panel holds: an a or b sliver of it stays in the first-level cache.
constexpr int64_t kDepthBlock = 320;
// Columns of b packed at a time: kColumnBlock * kDepthBlock floats in the second-level cache.
constexpr int64_t kColumnBlock = 8 * kColumnAlign;
constexpr int64_t kMinPackFloats = 64 * 1024;

// Tells Eigen's product where to pack. Its own class for this calls malloc.
class ScratchBlocking final : public Eigen::internal::level3_blocking<float, float> {
 public:
  ScratchBlocking(int64_t M, int64_t K, float* pack, int64_t pack_floats) {
    const int64_t panels = (K + kDepthBlock - 1) / kDepthBlock;
    m_kc = ((K + panels - 1) / panels + 7) / 8 * 8;
    // Eigen thinks in columns first: its left operand is our b.
    m_mc = kColumnBlock;
    if (pack_floats < 2 * m_mc * m_kc) m_mc = kColumnAlign;
    m_nc = std::min((M + 3) / 4 * 4, (pack_floats - m_mc * m_kc) / m_kc / kRowAlign * kRowAlign);
    m_blockA = pack;
    m_blockB = pack + m_mc * m_kc;
  }
};

template <int kLhsOrder, int kRhsOrder>
void RunEigen(int64_t M, int64_t N, int64_t K, float alpha, const FloatMatrix& a,
              const FloatMatrix& b, float* c, int64_t c_stride, ScratchBlocking& blocking) {
  // c^T_NM += b^T_NK * a^T_KM with c^T column-major.
  using Product =
      Eigen::internal::general_matrix_matrix_product<Eigen::Index, float, kLhsOrder, false, float,
                                                     kRhsOrder, false, Eigen::ColMajor, 1>;
  Product::run(N, M, K, b.data, b.stride, a.data, a.stride, c, 1, c_stride, alpha, blocking);
}

}  // namespace

void TileGemm(int64_t M, int64_t N, int64_t K, float alpha, const FloatMatrix& a,
              const FloatMatrix& b, float* c, int64_t c_stride, float* pack, int64_t pack_floats) {
  if (M == 0 || N == 0 || K == 0) return;
  ZEROPLAN_CHECK(pack_floats >= kMinPackFloats, "{} floats to pack into", pack_floats);
  ScratchBlocking blocking(M, K, pack, pack_floats);
  // Seen transposed, a row-major matrix is column-major.
  constexpr int kCol = Eigen::ColMajor, kRow = Eigen::RowMajor;
  const auto run = b.transposed ? (a.transposed ? RunEigen<kRow, kRow> : RunEigen<kRow, kCol>)
                                : (a.transposed ? RunEigen<kCol, kRow> : RunEigen<kCol, kCol>);
  run(M, N, K, alpha, a, b, c, c_stride, blocking);
}

namespace {

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

struct Problem {
  int64_t M, N, K, c_stride;
  const ArgMatrix& a;
  const ArgMatrix& b;
  const KernelArg& c;
  const GemmStart& start;
  const GemmFinish& finish;
};

// Tile sizes of one thread's part. Operands that need widening go through scratch tile by tile;
// fp32 ones are used where they lie, so only the rows are cut, to keep c's start values in the
// cache.
struct Tiles {
  int64_t rows, columns, depth;
};
constexpr Tiles kNarrowTiles = {512, 16 * kColumnAlign, 2 * kDepthBlock};

// How the threads share c: a grid of `down` x `across` parts of whole alignment units.
struct Grid {
  int64_t down = 1, across = 1;
};
Grid ChooseGrid(int64_t M, int64_t N, int threads) {
  const int64_t row_units = (M + kRowAlign - 1) / kRowAlign;
  const int64_t column_units = (N + kColumnAlign - 1) / kColumnAlign;
  Grid best;
  double best_cost = 0;
  for (int64_t down = 1; down <= threads; ++down) {
    const int64_t across = std::min<int64_t>(threads / down, column_units);
    if (down > row_units) break;
    const int64_t tile_rows = (row_units + down - 1) / down * kRowAlign;
    const int64_t tile_columns = (column_units + across - 1) / across * kColumnAlign;
    const auto rows = static_cast<double>(tile_rows), columns = static_cast<double>(tile_columns);
    // Multiply-adds by the vector, and packing of both operands by the element.
    const double cost = rows * columns / 32 + rows + columns;
    if (best_cost == 0 || cost < best_cost) {
      best = {down, across};
      best_cost = cost;
    }
  }
  return best;
}

Range Part(int64_t size, int64_t align, int64_t index, int64_t parts) {
  const int64_t units = (size + align - 1) / align;
  return {std::min(size, index * units / parts * align),
          std::min(size, (index + 1) * units / parts * align)};
}

// Rows x columns of an operand as fp32, widened into `tile` if need be.
FloatMatrix Tile(const ArgMatrix& matrix, Range rows, Range columns, float* tile) {
  if (matrix.transposed) std::swap(rows, columns);  // as it lies
  const int64_t first = rows.begin * matrix.stride + columns.begin;
  if (matrix.arg.dtype == Dtype::kF32) {
    return {matrix.arg.as<const float>() + first, matrix.stride, matrix.transposed};
  }
  for (int64_t r = 0; r < rows.size(); ++r) {
    Widen(matrix.arg.dtype, ElementAt(matrix.arg, first + r * matrix.stride), columns.size(),
          tile + r * columns.size());
  }
  return {tile, columns.size(), matrix.transposed};
}

// c = its start value, for a block of rows and columns; `c` is where the block is summed.
void StartTile(const Problem& p, Range rows, Range columns, float* c, int64_t c_stride) {
  const int64_t n = columns.size();
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t first = r * p.c_stride + columns.begin;
    float* row = c + (r - rows.begin) * c_stride;
    if (p.start.accumulate) {
      if (p.c.dtype != Dtype::kF32) Widen(p.c.dtype, ElementAt(p.c, first), n, row);
      continue;
    }
    if (!Present(p.start.bias) && !Present(p.start.residual)) {
      std::memset(row, 0, static_cast<size_t>(n) * sizeof(float));
      continue;
    }
    alignas(64) float bias_buffer[kBlock], residual_buffer[kBlock];
    ForEachBlock(0, n, [&](int64_t i, int64_t count) {
      const float* bias = nullptr;
      const float* residual = nullptr;
      if (Present(p.start.bias)) {
        bias = ReadBlock(p.start.bias, columns.begin + i, count, bias_buffer);
      }
      if (Present(p.start.residual)) {
        residual = ReadBlock(p.start.residual, first + i, count, residual_buffer);
      }
      simd::VectorLoop(count, [&](int64_t j, auto part) {
        simd::VecF value{};
        if (bias != nullptr) value += simd::Load(bias + j, part);
        if (residual != nullptr) value += simd::Load(residual + j, part);
        simd::Store(row + i + j, value, part);
      });
    });
  }
}

void FinishTile(const Problem& p, Range rows, Range columns, float* c, int64_t c_stride) {
  const GemmFinish& finish = p.finish;
  if (!Present(finish.gelu) && !Present(finish.gelu_of)) return;
  alignas(64) float buffer[kBlock];
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    ForEachBlock(0, columns.size(), [&](int64_t i, int64_t count) {
      const int64_t first = r * p.c_stride + columns.begin + i;
      float* sums = c + (r - rows.begin) * c_stride + i;
      if (Present(finish.gelu)) {
        Gelu(sums, count, WriteBlock(finish.gelu, first, buffer));
        CommitBlock(finish.gelu, first, count, buffer);
      }
      if (Present(finish.gelu_of)) {
        GeluGradient(ReadBlock(finish.gelu_of, first, count, buffer), sums, count, sums);
      }
    });
  }
}

void RunPart(const Problem& p, Range rows, Range columns, Scratch scratch) {
  const bool all_fp32 = p.a.arg.dtype == Dtype::kF32 && p.b.arg.dtype == Dtype::kF32;
  const bool c_in_place = p.c.dtype == Dtype::kF32;
  // Half of the scratch at most for packing; tiles share the rest, a quarter each.
  const int64_t pack_floats = std::min(kPackFloats, scratch.FloatsLeft() / 2);
  float* pack = scratch.Floats(pack_floats);
  Tiles tiles = kNarrowTiles;
  if (all_fp32 && c_in_place) {
    tiles = {pack_floats / kDepthBlock, columns.size(), p.K};
  }
  const int64_t tile_floats = scratch.FloatsLeft() / 3 / 16 * 16;
  if (!(all_fp32 && c_in_place)) {
    const auto too_big = [&] {
      return std::max({tiles.rows * tiles.columns, tiles.rows * tiles.depth,
                       tiles.columns * tiles.depth}) > tile_floats;
    };
    while (too_big() && tiles.columns > kColumnAlign) {
      tiles = {tiles.rows / 2, tiles.columns / 2, tiles.depth / 2};
    }
  }
  tiles.rows = std::max(tiles.rows / kRowAlign * kRowAlign, kRowAlign);
  float* a_tile =
      all_fp32 ? nullptr : scratch.Floats(std::min(tile_floats, tiles.rows * tiles.depth));
  float* b_tile =
      all_fp32 ? nullptr : scratch.Floats(std::min(tile_floats, tiles.columns * tiles.depth));
  float* c_tile =
      c_in_place ? nullptr : scratch.Floats(std::min(tile_floats, tiles.rows * tiles.columns));

  for (int64_t n0 = columns.begin; n0 < columns.end; n0 += tiles.columns) {
    const Range n = {n0, std::min(columns.end, n0 + tiles.columns)};
    for (int64_t m0 = rows.begin; m0 < rows.end; m0 += tiles.rows) {
      const Range m = {m0, std::min(rows.end, m0 + tiles.rows)};
      float* c = c_in_place ? p.c.as<float>() + m0 * p.c_stride + n0 : c_tile;
      const int64_t c_stride = c_in_place ? p.c_stride : n.size();
      StartTile(p, m, n, c, c_stride);
      for (int64_t k0 = 0; k0 < p.K; k0 += tiles.depth) {
        const Range k = {k0, std::min(p.K, k0 + tiles.depth)};
        const FloatMatrix a = Tile(p.a, m, k, a_tile);
        const FloatMatrix b = Tile(p.b, k, n, b_tile);
        TileGemm(m.size(), n.size(), k.size(), p.start.scale, a, b, c, c_stride, pack, pack_floats);
      }
      FinishTile(p, m, n, c, c_stride);
      if (c_in_place) continue;
      for (int64_t r = 0; r < m.size(); ++r) {
        Narrow(p.c.dtype, c + r * c_stride, n.size(), ElementAt(p.c, (m0 + r) * p.c_stride + n0));
      }
    }
  }
}

}  // namespace

void ParallelGemm(ThreadPool& pool, int64_t M, int64_t N, int64_t K, const ArgMatrix& a,
                  const ArgMatrix& b, const KernelArg& c, const GemmStart& start,
                  const GemmFinish& finish) {
  const int64_t c_stride = start.c_stride > 0 ? start.c_stride : N;
  const Problem problem{M, N, K, c_stride, a, b, c, start, finish};
  const Grid grid = ChooseGrid(M, N, pool.threads());
  pool.ParallelFor(grid.down * grid.across, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t part = begin; part < end; ++part) {
      const Range rows = Part(M, kRowAlign, part / grid.across, grid.down);
      const Range columns = Part(N, kColumnAlign, part % grid.across, grid.across);
      RunPart(problem, rows, columns, Scratch(pool, worker));
    }
  });
}

}  // namespace zeroplan
