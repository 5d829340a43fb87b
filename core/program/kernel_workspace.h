// How zeroplan's own CUDA kernels cut their work where the cut decides their scratch: the kernel
// table takes the sizes from here, the kernels the cuts. Plain: CUDA sources include this. Nothing
// depends on the GPU at hand, so that a plan and its sums are the same everywhere.
#pragma once

#include <cstdint>

namespace zeroplan {

constexpr int64_t RoundUpTo(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

constexpr int64_t kMultiprocessors = 132;  // of an H100 or H200

// Norms' backward: blocks that each leave partial sums of dw, C floats, and layer norm of db too.
// Each block has at least 16 rows: the partial sums stay below a tenth of what is moved.
constexpr int64_t NormBackwardBlocks(int64_t rows) {
  const int64_t blocks = (rows + 15) / 16;
  return blocks < 2 * kMultiprocessors ? blocks : 2 * kMultiprocessors;
}

// Backward of the norm of query and key heads: blocks that each leave 2*D floats. Of at least 8
// rows.
constexpr int64_t QkNormBackwardBlocks(int64_t rows) {
  constexpr int64_t kMost = 3 * kMultiprocessors;
  const int64_t blocks = (rows + 7) / 8;
  return blocks < kMost ? blocks : kMost;
}

// A token's attention: parts that the kept tokens are cut into, for each of G heads of keys, each a
// block that leaves D + 2 floats a head of queries. As many as fill the GPU twice, of at least 64
// tokens where all T are there.
constexpr int64_t kMostAttendParts = 128;
constexpr int64_t AttendParts(int64_t T, int64_t G) {
  const int64_t filled = (2 * kMultiprocessors + G - 1) / G, by_length = (T + 63) / 64;
  const int64_t parts = filled < by_length ? filled : by_length;
  return parts < 1 ? 1 : parts < kMostAttendParts ? parts : kMostAttendParts;
}
// Tokens of a part where `count` are there: the same for all but the last one.
constexpr int64_t AttendPartTokens(int64_t count, int64_t parts) {
  return RoundUpTo((count + parts - 1) / parts, 64);
}

// Sums of thin products (executor/kernels/cuda/gemm/thin_product.h) of a matrix of M rows with thin
// ones of rank r. It is cut into tiles of kThinTile x kThinTile, and a block takes strip_tiles by
// split_tiles of them.
constexpr int64_t kThinTile = 128;
constexpr int64_t kMostThinRank = 64;
// Beyond this rank sums over columns and over rows are launches of their own, and where their
// partial sums would take more than these bytes.
constexpr int64_t kMostThinBothRank = 32;
constexpr int64_t kMostThinBothBytes = int64_t{64} << 20;
// Tiles of a strip whose sums over rows a block has in registers.
constexpr int64_t ThinStripTiles(int64_t r) { return r <= 16 ? 8 : 4; }
constexpr int kMostThinParts = 3;  // of the matrix's columns, each with a thin matrix of its own

struct ThinCut {
  int64_t strip_tiles = 1, split_tiles = 1;
  int64_t strips[kMostThinParts] = {}, splits = 0;  // of each part's columns; of the rows
  int64_t floats = 0;  // of partial sums: [strips][M][r] a part, [splits][columns][r]
};

// row_sums: over columns, M x r. column_sums: over rows, the parts' columns x r. At most two blocks
// a multiprocessor where that can be, which run at once; of the cuts into such, the one whose
// largest block and whose partial sums, which are written and read, are the fewest bytes.
constexpr ThinCut CutThin(int64_t M, int64_t r, const int64_t (&columns)[kMostThinParts],
                          bool row_sums, bool column_sums) {
  constexpr int64_t kBlocks = 2 * kMultiprocessors;
  const auto ceil = [](int64_t n, int64_t of) { return (n + of - 1) / of; };
  // Into how many parts to cut `tiles` so that with `others` there are kBlocks.
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

// Whether both sums are one launch.
constexpr bool ThinTogether(int64_t M, int64_t r, const int64_t (&columns)[kMostThinParts]) {
  return r <= kMostThinBothRank &&
         4 * CutThin(M, r, columns, true, true).floats <= kMostThinBothBytes;
}

// Scratch, in bytes; 0 where thin products do not take the rank.
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

// Norm of the gradients: blocks that each leave a double.
constexpr int64_t NormBlocks(int64_t elements) {
  constexpr int64_t kMost = 8 * kMultiprocessors;
  const int64_t blocks = (elements + 16383) / 16384;
  return blocks < 1 ? 1 : blocks < kMost ? blocks : kMost;
}

// Embedding backward: positions are sorted by token and cut into segments. Their size is a power of
// two, at least 32; there are at most 512 of them. A segment leaves up to two partial rows of C
// floats.
constexpr int64_t EmbedSegmentRows(int64_t positions) {
  int64_t rows = 32;
  while (rows * 512 < positions) rows *= 2;
  return rows;
}

// Where embedding backward's scratch has what, in bytes; each part at a multiple of 256.
struct EmbedScratch {
  int64_t segment_rows, segments;
  int64_t keys[2], values[2];  // offsets: int32 tokens and positions, before and after a pass
  int64_t partials;            // offset: [segments][2][C] floats
  int64_t sort, sort_bytes;    // offset and size: the sort's own
  int64_t bytes;               // all
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
  // 4 bytes, and some kilobytes beside them: below a byte a key, with 1 MiB to spare.
  s.sort_bytes = RoundUpTo(positions, 256) + (int64_t{1} << 20);
  s.bytes = s.sort + s.sort_bytes;
  return s;
}

}  // namespace zeroplan
