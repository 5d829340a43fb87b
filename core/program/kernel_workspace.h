// The splits of work of zeroplan's own CUDA kernels that determine their scratch: the kernel table
// computes the sizes from them, the kernels use them. Plain C++, because CUDA sources include this.
// Nothing depends on the GPU at hand, so a plan and its sums are the same everywhere.
#pragma once

#include <cstdint>

namespace zeroplan {

constexpr int64_t RoundUpTo(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

constexpr int64_t kMultiprocessors = 132;  // H100 and H200

// Backward of norms: the number of blocks. Each leaves partial sums of dw, C floats, and for layer
// norm of db too. Each block has at least 16 rows: the partial sums stay below a tenth of the bytes
// moved.
constexpr int64_t NormBackwardBlocks(int64_t rows) {
  const int64_t blocks = (rows + 15) / 16;
  return blocks < 2 * kMultiprocessors ? blocks : 2 * kMultiprocessors;
}

// Backward of the norm of query and key heads: the number of blocks, each with at least 8 rows.
// Each leaves 2*D floats.
constexpr int64_t QkNormBackwardBlocks(int64_t rows) {
  constexpr int64_t kMost = 3 * kMultiprocessors;
  const int64_t blocks = (rows + 7) / 8;
  return blocks < kMost ? blocks : kMost;
}

// Matmuls of experts: bytes of a counter of tiles.
constexpr int64_t kGroupedScratchBytes = 16;

// Order of experts' rows: the number of blocks, each of kOrderBlockRows rows.
constexpr int64_t kOrderBlockRows = 1024;
constexpr int64_t OrderBlocks(int64_t rows) {
  return (rows + kOrderBlockRows - 1) / kOrderBlockRows;
}
// Sums over the tokens that a router sees: the number of blocks, each with at least 32 tokens and
// with partial sums of a float for each expert and one more.
constexpr int64_t RouterStatsBlocks(int64_t tokens) {
  const int64_t blocks = (tokens + 31) / 32;
  return blocks < 2 * kMultiprocessors ? blocks : 2 * kMultiprocessors;
}

// Attention of one token: the number of parts that the kept tokens are split into, for each of G
// heads of keys. Each part is a block that leaves D + 2 floats a head of queries. Enough parts to
// fill the GPU twice, of at least 64 tokens each when all T tokens are there.
constexpr int64_t kMostAttendParts = 128;
constexpr int64_t AttendParts(int64_t T, int64_t G) {
  const int64_t filled = (2 * kMultiprocessors + G - 1) / G, by_length = (T + 63) / 64;
  const int64_t parts = filled < by_length ? filled : by_length;
  return parts < 1 ? 1 : parts < kMostAttendParts ? parts : kMostAttendParts;
}
// Tokens of a part when `count` tokens are there: the same for all but the last part.
constexpr int64_t AttendPartTokens(int64_t count, int64_t parts) {
  return RoundUpTo((count + parts - 1) / parts, 64);
}

// Matmuls of a matrix of M rows with thin matrices of rank r, for their sums over rows or columns
// (executor/kernels/cuda/gemm/thin_product.h). The matrix is split into tiles of kThinTile x
// kThinTile, and a block handles strip_tiles by split_tiles of them.
constexpr int64_t kThinTile = 128;
constexpr int64_t kMostThinRank = 64;
// Sums over columns and sums over rows are separate launches beyond this rank, and where their
// partial sums would need more than these bytes.
constexpr int64_t kMostThinBothRank = 32;
constexpr int64_t kMostThinBothBytes = int64_t{64} << 20;
// Tiles of a strip whose sums over rows a block keeps in registers.
constexpr int64_t ThinStripTiles(int64_t r) { return r <= 16 ? 8 : 4; }
constexpr int kMostThinParts = 3;  // column ranges of the matrix, each with its own thin matrix

struct ThinCut {
  int64_t strip_tiles = 1, split_tiles = 1;
  // strips of each part's columns; splits of the rows
  int64_t strips[kMostThinParts] = {}, splits = 0;
  int64_t floats = 0;  // floats of partial sums: [strips][M][r] a part, [splits][columns][r]
};

// row_sums: over columns, M x r. column_sums: over rows, the parts' columns x r. At most two blocks
// a multiprocessor if possible, which run concurrently. Among such splits, the one with the fewest
// bytes in its largest block and in its partial sums, which are written and read.
constexpr ThinCut CutThin(int64_t M, int64_t r, const int64_t (&columns)[kMostThinParts],
                          bool row_sums, bool column_sums) {
  constexpr int64_t kBlocks = 2 * kMultiprocessors;
  const auto ceil = [](int64_t n, int64_t of) { return (n + of - 1) / of; };
  // The number of parts for `tiles` so that there are kBlocks together with `others`.
  const auto parts = [](int64_t tiles, int64_t others) {
    const int64_t wanted = kBlocks / others;
    return wanted < 1 ? 1 : wanted < tiles ? wanted : tiles;
  };
  const int64_t rows = ceil(M, kThinTile);
  int64_t all = 0, width = 0;
  for (const int64_t n : columns) all += ceil(n, kThinTile), width += n;
  if (rows == 0 || all == 0) return {};
  ThinCut best;
  const int64_t first = column_sums ? 1 : ceil(all, parts(all, rows));
  const int64_t last = column_sums && row_sums ? ThinStripTiles(r) : first;
  for (int64_t t = first, least = 0; t <= last; ++t) {
    ThinCut cut{.strip_tiles = t};
    int64_t strips = 0;
    for (int i = 0; i < kMostThinParts; ++i) {
      strips += cut.strips[i] = ceil(ceil(columns[i], kThinTile), t);
    }
    if (column_sums) cut.split_tiles = ceil(rows, parts(rows, strips));
    cut.splits = ceil(rows, cut.split_tiles);
    cut.floats = (row_sums ? strips * M * r : 0) + (column_sums ? cut.splits * width * r : 0);
    const int64_t bytes =
        kBlocks * t * cut.split_tiles * kThinTile * kThinTile * 2 + 8 * cut.floats;
    if (t > first && bytes >= least) continue;
    best = cut;
    least = bytes;
  }
  return best;
}

// Whether one launch makes both sums.
constexpr bool ThinTogether(int64_t M, int64_t r, const int64_t (&columns)[kMostThinParts]) {
  return r <= kMostThinBothRank &&
         4 * CutThin(M, r, columns, true, true).floats <= kMostThinBothBytes;
}

// Scratch in bytes; 0 if the rank is too large for thin matmuls.
constexpr int64_t ThinSumsBytes(int64_t M, int64_t r, const int64_t (&columns)[kMostThinParts],
                                bool row_sums, bool column_sums) {
  if (r > kMostThinRank) return 0;
  if (row_sums && column_sums && !ThinTogether(M, r, columns)) {
    const int64_t of_rows = ThinSumsBytes(M, r, columns, true, false);
    const int64_t of_columns = ThinSumsBytes(M, r, columns, false, true);
    return of_rows > of_columns ? of_rows : of_columns;
  }
  return 4 * CutThin(M, r, columns, row_sums, column_sums).floats;
}

// Norm of the gradients: the number of blocks. Each leaves a double.
constexpr int64_t NormBlocks(int64_t elements) {
  constexpr int64_t kMost = 8 * kMultiprocessors;
  const int64_t blocks = (elements + 16383) / 16384;
  return blocks < 1 ? 1 : blocks < kMost ? blocks : kMost;
}

// Embedding backward: positions are sorted by token and split into segments. The segment size is a
// power of two, at least 32; there are at most 512 segments. A segment leaves up to two partial
// rows of C floats.
constexpr int64_t EmbedSegmentRows(int64_t positions) {
  int64_t rows = 32;
  while (rows * 512 < positions) rows *= 2;
  return rows;
}

// The layout of embedding backward's scratch, in bytes; each part at a multiple of 256.
struct EmbedScratch {
  int64_t segment_rows, segments;
  int64_t keys[2], values[2];  // offsets: int32 tokens and positions, before and after a pass
  int64_t partials;            // offset: [segments][2][C] floats
  int64_t sort, sort_bytes;    // offset and size of the sort's own scratch
  int64_t bytes;               // total size
};

constexpr EmbedScratch EmbedScratchOf(int64_t positions, int64_t channels) {
  EmbedScratch s{};
  s.segment_rows = EmbedSegmentRows(positions);
  s.segments = (positions + s.segment_rows - 1) / s.segment_rows;
  const int64_t array = RoundUpTo(4 * positions, 256);
  s.keys[0] = 0;
  s.keys[1] = array;
  s.values[0] = 2 * array;
  s.values[1] = 3 * array;
  s.partials = 4 * array;
  s.sort = s.partials + RoundUpTo(s.segments * 2 * channels * 4, 256);
  // cub's radix sort of double buffers keeps, for each tile of a few thousand keys, 256 counters of
  // 4 bytes, plus some kilobytes: below a byte a key, with 1 MiB to spare.
  s.sort_bytes = RoundUpTo(positions, 256) + (int64_t{1} << 20);
  s.bytes = s.sort + s.sort_bytes;
  return s;
}

}  // namespace zeroplan
