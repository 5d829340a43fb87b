// The Hopper kernels' blocks: their shared memory, barriers, copies and matrix instructions, the
// order of tiles, and the thread that fetches operands (grouped_hopper.cu).
#pragma once

#include <cuda.h>

#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/experts/grouped_matmul.h"

namespace zeroplan::cuda::grouped {

enum class Product { kForward, kData, kWeight };

constexpr int kRows = 128, kColumns = 256, kDepth = 64;  // kDepth: a stage's
constexpr int kStages = 4;
constexpr int kGroupThreads = 128, kThreads = 3 * kGroupThreads;
constexpr int kGroupRows = kRows / 2;  // a warpgroup's part
constexpr int kSums = kGroupRows * kColumns / kGroupThreads;
// The copy engine moves boxes of 64 rows of 128 bytes, and swizzles them, so that neither rows nor
// columns of a box share banks.
constexpr int kBoxRows = 64, kRowBytes = 128, kBoxBytes = kBoxRows * kRowBytes;
constexpr int kLeftBoxes = kRows / 64, kRightBoxes = kColumns / 64;
constexpr int kStageBytes = (kLeftBoxes + kRightBoxes) * kBoxBytes;
// Boxes in that a warpgroup stores its results.
[[maybe_unused]] constexpr int kParts = kColumns / 64;
// Tiles down that are made side by side before the next ones across.
constexpr int kBand = 16;

struct Tile {
  int row, column;  // the first element in the matrix; kWeight: in the expert's matrix
  int expert;       // -1: there is no further tile
  int rows;         // that the expert owns: from `row` on; kWeight: all
};

struct Shared {
  uint8_t stages[kStages][kStageBytes];
  uint8_t staging[2][2][kBoxBytes];  // each warpgroup's, for results
  uint64_t full[kStages], empty[kStages], masked[kStages];
  Tile tiles[kStages];      // whose first block lies in a stage
  int valid_rows[kStages];  // kWeight: of the stage, that belong to the expert; -1: the end
  int table[kMostHopperExperts + 1];
};
static_assert(sizeof(Shared) <= 227 * 1024);

struct Maps {
  CUtensorMap left, right, out;
};

struct Operands {
  int64_t K, N;
  int E;
  const int32_t* starts_E1;
  unsigned* counter;
  void* out;
};

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void InitBarrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}
__device__ inline void Arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
__device__ inline void ArriveExpecting(uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}
// Until the barrier's phase of this parity is over.
__device__ inline void Wait(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}
// Barriers of some of the block's warps.
__device__ inline void NamedSync(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
// Makes this thread's writes visible to what the copy engine and the matrix instructions do next.
__device__ inline void ShowWrites() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void LoadBox(void* to, const CUtensorMap& map, int x, int y, int z,
                               uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3, %4}], [%5];" ::"r"(SharedAddress(to)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(SharedAddress(barrier))
      : "memory");
}
__device__ inline void StoreBox(const void* from, const CUtensorMap& map, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(
          &map),
      "r"(x), "r"(y), "r"(z), "r"(SharedAddress(from))
      : "memory");
}
__device__ inline void CommitStores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until all but this thread's last kPending groups of stores have read shared memory.
template <int kPending>
__device__ inline void WaitForStoresRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
__device__ inline void WaitForStores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// An operand in shared memory, as wgmma describes it: boxes of 64 rows of 128 swizzled bytes. If
// the sum runs along the rows, 16 elements of it are 32 bytes; if it runs across them, 16 rows, and
// the next 64 elements along the result are in the next box.
__device__ inline uint64_t Describe(uint32_t address) {
  constexpr uint64_t kSwizzle = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{8 * kRowBytes / 16} << 32;
  constexpr uint64_t kNextBox = uint64_t{kBoxBytes / 16} << 16;
  return kSwizzle | kEightRows | kNextBox | (address & 0x3ffff) >> 4;
}
// To 16 elements of the sum on.
template <bool kAcrossRows>
constexpr uint64_t kStep = (kAcrossRows ? 16 * kRowBytes : 32) / 16;

// The instructions between these two run in order; what they read and write is theirs.
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from reading sums before a wait.
__device__ inline void KeepSums(float (&d)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#define PRODUCT_64x256x16(type)                                                                    \
  asm volatile(                                                                                    \
      "{\n"                                                                                        \
      ".reg .pred add;\n"                                                                          \
      "setp.ne.b32 add, %130, 0;\n"                                                                \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type                                 \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "    \
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "      \
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "      \
      "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, "      \
      "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, "      \
      "%87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, "        \
      "%103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, "       \
      "%117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, add, 1, 1, " \
      "%131, %132;\n"                                                                              \
      "}\n"                                                                                        \
      : SUMS_16(0), SUMS_16(16), SUMS_16(32), SUMS_16(48), SUMS_16(64), SUMS_16(80), SUMS_16(96),  \
        SUMS_16(112)                                                                               \
      : "l"(left), "l"(right), "r"(add), "n"(kLeftAcross ? 1 : 0), "n"(kRightAcross ? 1 : 0))

// d = left * right, or, where `add` is not 0, d += it: 64 x 16 times 16 x 256 elements. Of a
// warpgroup's thread, with g and t of its lane as in mma.cuh, d[4j] has row 16 * warp + g and
// column 8j + 2t, d[4j + 1] the next column, d[4j + 2] and d[4j + 3] the same 8 rows down.
template <typename T, bool kLeftAcross, bool kRightAcross>
__device__ inline void MultiplyAdd(float (&d)[kSums], uint64_t left, uint64_t right, int add) {
  if constexpr (__is_same(T, Bf16)) {
    PRODUCT_64x256x16("bf16");
  } else {
    PRODUCT_64x256x16("f16");
  }
}
#undef PRODUCT_64x256x16
#undef SUMS_16
#undef SUMS_4

// Fills the table with what FindTile reads. kWeight: experts by falling number of rows, so that the
// longest tiles come first. Else: tiles down before each expert's.
template <Product kProduct>
__device__ inline void FillTable(Shared& shared, const Operands& operands) {
  const int E = operands.E;
  if constexpr (kProduct == Product::kWeight) {
    for (int e = threadIdx.x; e < E; e += kThreads) {
      shared.table[e] = operands.starts_E1[e + 1] - operands.starts_E1[e];
    }
    __syncthreads();
    constexpr int kMost = (kMostHopperExperts + kThreads - 1) / kThreads;
    int ranks[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const int e = threadIdx.x + i * kThreads;
      if (e >= E) continue;
      int rank = 0;
      for (int other = 0; other < E; ++other) {
        const int more = shared.table[other] - shared.table[e];
        rank += more > 0 || (more == 0 && other < e);
      }
      ranks[i] = rank;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const int e = threadIdx.x + i * kThreads;
      if (e < E) shared.table[ranks[i]] = e;
    }
  } else if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    int before = 0;
    for (int begin = 0; begin < E; begin += 32) {
      const int e = begin + lane;
      int tiles = 0;
      if (e < E) {
        tiles = (operands.starts_E1[e + 1] - operands.starts_E1[e] + kRows - 1) / kRows;
      }
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const int left = __shfl_up_sync(0xffffffffu, tiles, offset);
        if (lane >= offset) tiles += left;
      }
      if (e < E) shared.table[e + 1] = before + tiles;
      before += __shfl_sync(0xffffffffu, tiles, 31);
    }
    if (lane == 0) shared.table[0] = 0;
  }
  __syncthreads();
}

// The tile of this number; for kWeight `first_row` is the first row of its sum.
template <Product kProduct>
__device__ inline Tile FindTile(const Shared& shared, const Operands& operands, unsigned number,
                                int& first_row) {
  Tile tile{0, 0, -1, 0};
  const auto across = static_cast<unsigned>(
      ((kProduct == Product::kForward ? operands.N : operands.K) + kColumns - 1) / kColumns);
  if constexpr (kProduct == Product::kWeight) {
    const auto down = static_cast<unsigned>((operands.N + kRows - 1) / kRows);
    const unsigned rank = number / (across * down);
    if (rank >= static_cast<unsigned>(operands.E)) return tile;
    const unsigned inside = number % (across * down);
    tile.expert = shared.table[rank];
    tile.row = static_cast<int>(inside % down) * kRows;
    tile.column = static_cast<int>(inside / down) * kColumns;
    first_row = operands.starts_E1[tile.expert];
    tile.rows = operands.starts_E1[tile.expert + 1] - first_row;
  } else {
    const unsigned down_number = number / across;  // if all tiles of an expert were in one column
    if (down_number >= static_cast<unsigned>(shared.table[operands.E])) return tile;
    int low = 0, high = operands.E;  // table[low] <= down_number < table[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (static_cast<unsigned>(shared.table[middle]) <= down_number) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const unsigned tiles_before = shared.table[low];
    const unsigned down = shared.table[low + 1] - tiles_before;
    unsigned inside = number - tiles_before * across;
    const unsigned band = inside / (kBand * across);
    inside -= band * kBand * across;
    const unsigned band_down = min(down - band * kBand, static_cast<unsigned>(kBand));
    const int begin = operands.starts_E1[low], end = operands.starts_E1[low + 1];
    tile.expert = low;
    tile.row = begin + static_cast<int>(band * kBand + inside % band_down) * kRows;
    tile.column = static_cast<int>(inside / band_down) * kColumns;
    tile.rows = min(end - tile.row, kRows);
  }
  return tile;
}

// Blocks of a tile's sum.
template <Product kProduct>
__device__ inline int BlocksOf(const Operands& operands, const Tile& tile) {
  const int64_t sum = kProduct == Product::kForward ? operands.K
                      : kProduct == Product::kData  ? operands.N
                                                    : tile.rows;
  return static_cast<int>((sum + kDepth - 1) / kDepth);
}

// A stage of the ring, and the parity of its barriers' phase.
struct Place {
  int stage = 0, parity = 0;
  __device__ void Next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// Stages with what a tile of the result holds before it is added to.
template <typename Out>
constexpr int kOldStages = sizeof(Out) * kRows * kColumns / (4 * kBoxBytes);

// One thread: asks for the blocks of all tiles of this thread block.
template <Product kProduct, typename Out, bool kAccumulate>
__device__ inline void Produce(Shared& shared, const Maps& maps, const Operands& operands) {
  Place place;
  unsigned number = blockIdx.x;
  for (;;) {
    int first_row = 0;
    const Tile tile = FindTile<kProduct>(shared, operands, number, first_row);
    if (tile.expert < 0) break;
    number = gridDim.x + atomicAdd(operands.counter, 1u);
    const int blocks = BlocksOf<kProduct>(operands, tile);
    // An expert without rows has a stage with nothing in it.
    for (int block = 0; block < max(blocks, 1); ++block, place.Next()) {
      Wait(&shared.empty[place.stage], place.parity ^ 1);
      uint64_t* const full = &shared.full[place.stage];
      if (block == 0) shared.tiles[place.stage] = tile;
      if constexpr (kProduct == Product::kWeight) {
        shared.valid_rows[place.stage] = min(tile.rows - block * kDepth, kDepth);
        if (blocks == 0) {
          Arrive(full);
          continue;
        }
      }
      ArriveExpecting(full, kStageBytes);
      uint8_t* const left = shared.stages[place.stage];
      uint8_t* const right = left + kLeftBoxes * kBoxBytes;
      const int depth = first_row + block * kDepth;
      if constexpr (kProduct == Product::kWeight) {
#pragma unroll
        for (int i = 0; i < kLeftBoxes; ++i) {
          LoadBox(left + i * kBoxBytes, maps.left, tile.row + 64 * i, depth, 0, full);
        }
      } else {
        LoadBox(left, maps.left, depth, tile.row, 0, full);
      }
      if constexpr (kProduct == Product::kForward) {
        LoadBox(right, maps.right, depth, tile.column, tile.expert, full);
      } else {
#pragma unroll
        for (int i = 0; i < kRightBoxes; ++i) {
          LoadBox(right + i * kBoxBytes, maps.right, tile.column + 64 * i, depth,
                  kProduct == Product::kData ? tile.expert : 0, full);
        }
      }
    }
    if constexpr (kAccumulate) {
      if (blocks == 0) continue;
      for (int i = 0; i < kOldStages<Out>; ++i, place.Next()) {
        Wait(&shared.empty[place.stage], place.parity ^ 1);
        uint64_t* const full = &shared.full[place.stage];
        shared.valid_rows[place.stage] = kDepth;
        ArriveExpecting(full, 4 * kBoxBytes);
#pragma unroll
        for (int box = 0; box < 4; ++box) {
          LoadBox(shared.stages[place.stage] + box * kBoxBytes, maps.out,
                  tile.column + (2 * i + box / 2) * static_cast<int>(kRowBytes / sizeof(Out)),
                  tile.row + box % 2 * kGroupRows, tile.expert, full);
        }
      }
    }
  }
  Wait(&shared.empty[place.stage], place.parity ^ 1);
  shared.tiles[place.stage].expert = -1;
  shared.valid_rows[place.stage] = -1;
  Arrive(&shared.full[place.stage]);
}

// Steps of 16 rows of a stage that have rows of the expert.
__device__ inline int StepsOf(int valid_rows) { return (valid_rows + 15) / 16; }

// One warp, for kWeight: puts zeros in place of the rows of other experts that were loaded behind
// an expert's last, as far as they are multiplied. The barrier `masked` counts such stages alone.
__device__ inline void MaskRows(Shared& shared) {
  const int lane = threadIdx.x % 32;
  Place place;
  for (;; place.Next()) {
    Wait(&shared.full[place.stage], place.parity);
    const int valid = shared.valid_rows[place.stage];
    if (valid < 0) break;
    const int count = (16 * StepsOf(valid) - valid) * kRowBytes / 16;
    if (count > 0) {
      uint8_t* const boxes = shared.stages[place.stage] + valid * kRowBytes;
      for (int i = lane; i < count; i += 32) {
#pragma unroll
        for (int box = 0; box < kLeftBoxes + kRightBoxes; ++box) {
          *reinterpret_cast<uint4*>(boxes + box * kBoxBytes + i * 16) = uint4{};
        }
      }
      ShowWrites();
    }
    __syncwarp();
    if (lane == 0) {
      if (valid > 0 && valid < kDepth) Arrive(&shared.masked[place.stage]);
      Arrive(&shared.empty[place.stage]);
    }
  }
}

}  // namespace zeroplan::cuda::grouped
