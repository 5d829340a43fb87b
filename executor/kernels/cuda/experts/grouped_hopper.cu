// Grouped matmuls by Hopper's matrix instructions.
//
// A block stays on its multiprocessor and makes tile after tile of the result, of 128 x 256
// elements. One thread asks the copy engine for blocks of the operands, 64 deep, into a ring of
// stages. Two warpgroups multiply them, each 64 rows of the tile, and store a tile's results while
// they multiply the next one. All blocks share a counter of the next tile. A tile's sum does not
// depend on the block that makes it.
//
// The weight gradient sums over an expert's rows. The last stage of them also has rows of the next
// expert, and a warp writes zeros over these before they are multiplied.
//
// The instructions used here exist for sm_90a alone, not for sm_90: compile this file with
// -gencode=arch=compute_90a,code=sm_90a.
#include "executor/kernels/cuda/experts/grouped_tiles.cuh"

namespace zeroplan::cuda {

using namespace grouped;

namespace {

// Two neighbours of 16 bit in a register.
template <typename T>
__device__ inline uint32_t Narrow2(float first, float second) {
  const Pack<T, 2> pack = Narrow<T, 2>({first, second});
  return *reinterpret_cast<const uint32_t*>(&pack);
}

// A warpgroup's results of a tile while it multiplies the next one. Of 16 bit: words[i] has d[2i]
// and d[2i + 1]. Of fp32, the right half: d[kSums / 2 + i].
struct Results {
  uint32_t words[kSums / 2];
  int row, rows, column, expert;  // the first element; rows to store
  bool there = false;
};

// Offset of 16 bytes of a box.
__device__ inline int Swizzled(int row, int chunk) {
  return row * kRowBytes + ((chunk ^ (row & 7)) << 4);
}

// The address in the result of what `results` begin with.
template <Product kProduct, typename Out>
__device__ inline Out* FirstOf(const Results& results, const Operands& operands) {
  const int64_t width = kProduct == Product::kForward ? operands.N : operands.K;
  const int64_t rows_before = kProduct == Product::kWeight ? results.expert * operands.N : 0;
  return static_cast<Out*>(operands.out) + (rows_before + results.row) * width + results.column;
}

// Stores a box of them: with 16 bit the columns from 64 * part on, with fp32 those from 128 + 32 *
// part on.
template <Product kProduct, typename Out>
__device__ inline void StorePart(Shared& shared, const Results& results, int part, const Maps& maps,
                                 const Operands& operands, int group) {
  const int64_t width = kProduct == Product::kForward ? operands.N : operands.K;
  const int thread = threadIdx.x % kGroupThreads, lane = thread % 32, warp = thread / 32;
  uint8_t* const box = shared.staging[group][part % 2];
  if (thread == 0) WaitForStoresRead<1>();
  NamedSync(1 + group, kGroupThreads);
  const uint32_t* const words = results.words + 16 * part;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t* const w = words + 4 * i;
    if constexpr (sizeof(Out) == 2) {
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       SharedAddress(box + Swizzled(16 * warp + lane % 16, 2 * i + lane / 16))),
                   "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                   : "memory");
    } else {
      const int row = 16 * warp + lane / 4, t = lane % 4;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<uint2*>(box + Swizzled(row + 8 * half, 2 * i + t / 2) + 8 * (t % 2)) =
            uint2{w[2 * half], w[2 * half + 1]};
      }
    }
  }
  const int first_column = sizeof(Out) == 2 ? 64 * part : kColumns / 2 + 32 * part;
  const int column = results.column + first_column;
  if (kProduct == Product::kWeight || results.rows >= kGroupRows) {
    ShowWrites();
    NamedSync(1 + group, kGroupThreads);
    // The copy engine leaves out rows and columns outside the matrix.
    if (thread == 0 && column < width) {
      StoreBox(box, maps.out, column, results.row,
               kProduct == Product::kWeight ? results.expert : 0);
    }
  } else if constexpr (sizeof(Out) == 2) {
    NamedSync(1 + group, kGroupThreads);
    Out* const first = FirstOf<kProduct, Out>(results, operands) + first_column;
#pragma unroll
    for (int i = 0; i < kBoxBytes / 16 / kGroupThreads; ++i) {
      const int down = i * (kGroupThreads / 8) + thread / 8, chunk = thread % 8;
      if (down < results.rows && column + chunk * 8 < width) {
        *reinterpret_cast<uint4*>(first + down * width + chunk * 8) =
            *reinterpret_cast<const uint4*>(box + Swizzled(down, chunk));
      }
    }
  }
  if (thread == 0) CommitStores();  // also of nothing: the wait above counts groups
}

// Adds to the sums what a stage has of the result: a warpgroup's rows of two boxes, which are the
// boxes 2 * part and 2 * part + 1 of its columns.
template <typename Out>
__device__ inline void AddOld(float (&d)[kSums], const uint8_t* stage, int part, int group) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int row = 16 * warp + lane / 4, t = lane % 4;
  constexpr int kEights = kRowBytes / sizeof(Out) / 8;  // groups of eight columns in a box
#pragma unroll
  for (int column_box = 0; column_box < 2; ++column_box) {
    const uint8_t* const box = stage + (2 * column_box + group) * kBoxBytes;
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        constexpr int kBytes = 2 * sizeof(Out);
        const int byte = eight * 8 * sizeof(Out) + t * kBytes;
        const auto pack = LoadPack<Out, 2>(
            reinterpret_cast<const Out*>(box + Swizzled(row + 8 * half, byte / 16) + byte % 16));
        float old[2];
        Widen(pack, old);
        float* const sum = d + ((2 * part + column_box) * kEights + eight) * 4 + 2 * half;
        sum[0] += old[0];
        sum[1] += old[1];
      }
      // Keeps the compiler from loading more than there are registers for.
      if (eight % 2 == 1) asm volatile("" ::: "memory");
    }
  }
}

// Stores the left half of the sums of a warpgroup in fp32. From `part` on there are `rows` and
// `columns`.
__device__ inline void StoreLeftHalf(const float (&d)[kSums], float* part, int64_t pitch, int rows,
                                     int columns) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int row = 16 * warp + lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float* const to = part + (row + 8 * half) * pitch + 2 * t;
    if (row + 8 * half >= rows) continue;
#pragma unroll
    for (int eight = 0; eight < kColumns / 16; ++eight) {
      if (8 * eight < columns) {
        *reinterpret_cast<float2*>(to + 8 * eight) =
            float2{d[4 * eight + 2 * half], d[4 * eight + 2 * half + 1]};
      }
    }
  }
}

// A warpgroup: multiplies and stores its rows of all tiles.
template <Product kProduct, typename T, typename Out, bool kAccumulate>
__device__ inline void Consume(Shared& shared, const Maps& maps, const Operands& operands,
                               int group) {
  constexpr bool kLeftAcross = kProduct == Product::kWeight;
  constexpr bool kRightAcross = kProduct != Product::kForward;
  const auto release = [&](int stage) {
    __syncwarp();  // no lane still reads; compute-sanitizer's racecheck does not see this
    if (threadIdx.x % 32 == 0) Arrive(&shared.empty[stage]);
  };
  float d[kSums];
  Results results;
  const auto store = [&](int part) {
    StorePart<kProduct, Out>(shared, results, part, maps, operands, group);
  };
  Place place;
  int masked_parities = 0;  // a bit for each stage
  for (;;) {
    Wait(&shared.full[place.stage], place.parity);
    const Tile tile = shared.tiles[place.stage];
    if (tile.expert < 0) break;
    const int blocks = BlocksOf<kProduct>(operands, tile);
    const int row = tile.row + group * kGroupRows;
    const bool mine =
        kProduct == Product::kWeight ? row < operands.N : group * kGroupRows < tile.rows;
    int last = place.stage;
    const auto next_block = [&](int block) {
      if (block > 0) release(last);
      last = place.stage;
      place.Next();
    };
    const auto multiply_step = [&](int step, int add) {
      const uint32_t stage = SharedAddress(shared.stages[place.stage]);
      const uint64_t left = Describe(stage + group * kBoxBytes);
      const uint64_t right = Describe(stage + kLeftBoxes * kBoxBytes);
      MultiplyAdd<T, kLeftAcross, kRightAcross>(d, left + step * kStep<kLeftAcross>,
                                                right + step * kStep<kRightAcross>, add);
    };
    const auto multiply = [&](int block) {
      Wait(&shared.full[place.stage], place.parity);
      if (!mine) return;
      BeginProducts();
#pragma unroll
      for (int step = 0; step < kDepth / 16; ++step) multiply_step(step, block + step);
      CommitProducts();
    };
    const int whole_blocks = kProduct == Product::kWeight ? tile.rows / kDepth : blocks;
    int block = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (block < whole_blocks) multiply(block);
      if (results.there) store(part);
      if (block < whole_blocks) {
        WaitForProducts<1>();
        next_block(block);
        ++block;
      }
    }
    for (; block < whole_blocks; ++block) {
      multiply(block);
      WaitForProducts<1>();
      next_block(block);
    }
    if (kProduct == Product::kWeight && whole_blocks < blocks) {
      Wait(&shared.full[place.stage], place.parity);
      Wait(&shared.masked[place.stage], masked_parities >> place.stage & 1);
      masked_parities ^= 1 << place.stage;
      if (mine) {
        const int steps = StepsOf(tile.rows % kDepth);
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
          BeginProducts();
          multiply_step(step, whole_blocks + step);
          CommitProducts();
        }
        WaitForProducts<0>();
      }
      next_block(whole_blocks);
    }
    if (blocks == 0) place.Next();
    WaitForProducts<0>();
    KeepSums(d);
    release(last);
    if (kProduct == Product::kWeight && blocks == 0) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) d[i] = 0;
    }
    if constexpr (kAccumulate) {
      if (blocks > 0) {
#pragma unroll
        for (int i = 0; i < kOldStages<Out>; ++i, place.Next()) {
          Wait(&shared.full[place.stage], place.parity);
          if (mine) AddOld<Out>(d, shared.stages[place.stage], i, group);
          release(place.stage);
        }
      }
    }
    results.row = row;
    results.rows = kProduct == Product::kWeight ? static_cast<int>(operands.N) - row
                                                : tile.rows - group * kGroupRows;
    results.column = tile.column;
    results.expert = tile.expert;
    results.there = mine && (!kAccumulate || blocks > 0);
#pragma unroll
    for (int i = 0; i < kSums / 2; ++i) {
      if constexpr (sizeof(Out) == 2) {
        results.words[i] = Narrow2<Out>(d[2 * i], d[2 * i + 1]);
      } else {
        // A copy that the compiler sees through makes it move sums under way.
        asm volatile("mov.b32 %0, %1;" : "=r"(results.words[i]) : "f"(d[kSums / 2 + i]));
      }
    }
    if constexpr (sizeof(Out) == 4) {
      if (results.there) {
        StoreLeftHalf(d, FirstOf<kProduct, float>(results, operands), operands.K, results.rows,
                      static_cast<int>(operands.K) - results.column);
      }
    }
  }
  if (results.there) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) store(part);
  }
  if (threadIdx.x % kGroupThreads == 0) WaitForStores();
}

template <Product kProduct, typename T, typename Out, bool kAccumulate>
__global__ void __launch_bounds__(kThreads, 1)
    GroupedKernel(const __grid_constant__ Maps maps, const __grid_constant__ Operands operands) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(&shared.full[stage], 1);
      // Each warp that multiplies, and the one that masks.
      InitBarrier(&shared.empty[stage], 8 + (kProduct == Product::kWeight ? 1 : 0));
      InitBarrier(&shared.masked[stage], 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    ShowWrites();
  }
  FillTable<kProduct>(shared, operands);  // synchronises the block
  const int warpgroup = threadIdx.x / kGroupThreads;
  if (warpgroup == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    const int warp = threadIdx.x / 32 % 4;
    if (warp == 0) {
      if (threadIdx.x % 32 == 0) Produce<kProduct, Out, kAccumulate>(shared, maps, operands);
    } else if (warp == 1 && kProduct == Product::kWeight) {
      MaskRows(shared);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    Consume<kProduct, T, Out, kAccumulate>(shared, maps, operands, warpgroup);
  }
#else
  __trap();  // see the top of the file
#endif
}

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver's function, which a program that starts without a driver cannot link.
EncodeTiled FindEncodeTiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found);
#else
  const cudaError_t error =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<EncodeTiled>(function);
}

// Matrices one behind the other, in boxes of 128 bytes by `box_rows`.
cudaError_t MakeMap(CUtensorMap& map, Dtype dtype, const void* data, int64_t columns, int64_t rows,
                    int64_t matrices, int box_rows) {
  static const EncodeTiled encode = FindEncodeTiled();
  if (encode == nullptr) return cudaErrorNotSupported;
  const uint64_t bytes = DtypeBytes(dtype);
  const CUtensorMapDataType type = dtype == Dtype::kBF16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                   : dtype == Dtype::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                          : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  const auto unsign = [](int64_t n) { return static_cast<uint64_t>(n); };
  const cuuint64_t sizes[3] = {unsign(columns), unsign(rows), unsign(matrices)};
  const cuuint64_t pitches[2] = {unsign(columns) * bytes, unsign(rows * columns) * bytes};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(kRowBytes / bytes),
                             static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result =
      encode(&map, type, 3, const_cast<void*>(data), sizes, pitches, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <Product kProduct, typename T, typename Out, bool kAccumulate>
cudaError_t Launch(const Maps& maps, const Operands& operands, cudaStream_t stream) {
  int device = 0, multiprocessors = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (const cudaError_t error =
          cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
      error != cudaSuccess) {
    return error;
  }
  const auto kernel = GroupedKernel<kProduct, T, Out, kAccumulate>;
  if (const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
      error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error =
          cudaMemsetAsync(operands.counter, 0, sizeof(*operands.counter), stream);
      error != cudaSuccess) {
    return error;
  }
  kernel<<<multiprocessors, kThreads, sizeof(Shared), stream>>>(maps, operands);
  return cudaGetLastError();
}

Operands OperandsOf(const GroupedMatmul& product, void* out, void* scratch) {
  return {product.K,
          product.N,
          static_cast<int>(product.E),
          product.starts_E1,
          static_cast<unsigned*>(scratch),
          out};
}

}  // namespace

bool TakesHopperGroups(const GroupedMatmul& product, Dtype dtype, Dtype gradient,
                       int compute_capability) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const auto [R, K, N, E, starts] = product;
#ifdef ZEROPLAN_WITH_SM90A
  constexpr bool kBuilt = true;
#else
  constexpr bool kBuilt = false;  // this file is compiled for other architectures alone
#endif
  return kBuilt && compute_capability == 90 && (dtype == Dtype::kBF16 || dtype == Dtype::kF16) &&
         (gradient == dtype || gradient == Dtype::kF32) && R >= 0 && R < kMost - kRows && K > 0 &&
         N > 0 && K % 8 == 0 && N % 8 == 0 && K < kMost - kColumns && N < kMost - kColumns &&
         E > 0 && E <= kMostHopperExperts &&
         // Tiles are counted in 32 bits.
         (R / kRows + E) * (N / kColumns + 1) < kMost &&
         (R / kRows + E) * (K / kColumns + 1) < kMost &&
         E * (N / kRows + 1) * (K / kColumns + 1) < kMost;
}

#define RETURN_IF_ERROR(expression) \
  if (const cudaError_t error = expression; error != cudaSuccess) return error

cudaError_t LaunchHopperGroupedForward(const GroupedMatmul& product, Dtype dtype, const void* a_RK,
                                       const void* w_ENK, void* y_RN, void* scratch,
                                       cudaStream_t stream) {
  const auto [R, K, N, E, starts] = product;
  if (R == 0) return cudaSuccess;
  Maps maps;
  RETURN_IF_ERROR(MakeMap(maps.left, dtype, a_RK, K, R, 1, kRows));
  RETURN_IF_ERROR(MakeMap(maps.right, dtype, w_ENK, K, N, E, kColumns));
  RETURN_IF_ERROR(MakeMap(maps.out, dtype, y_RN, N, R, 1, kBoxRows));
  const Operands operands = OperandsOf(product, y_RN, scratch);
  return dtype == Dtype::kBF16
             ? Launch<Product::kForward, Bf16, Bf16, false>(maps, operands, stream)
             : Launch<Product::kForward, Half, Half, false>(maps, operands, stream);
}

cudaError_t LaunchHopperGroupedData(const GroupedMatmul& product, Dtype dtype, const void* dy_RN,
                                    const void* w_ENK, void* dx_RK, void* scratch,
                                    cudaStream_t stream) {
  const auto [R, K, N, E, starts] = product;
  if (R == 0) return cudaSuccess;
  Maps maps;
  RETURN_IF_ERROR(MakeMap(maps.left, dtype, dy_RN, N, R, 1, kRows));
  RETURN_IF_ERROR(MakeMap(maps.right, dtype, w_ENK, K, N, E, kDepth));
  RETURN_IF_ERROR(MakeMap(maps.out, dtype, dx_RK, K, R, 1, kBoxRows));
  const Operands operands = OperandsOf(product, dx_RK, scratch);
  return dtype == Dtype::kBF16 ? Launch<Product::kData, Bf16, Bf16, false>(maps, operands, stream)
                               : Launch<Product::kData, Half, Half, false>(maps, operands, stream);
}

cudaError_t LaunchHopperGroupedWeight(const GroupedMatmul& product, Dtype dtype, const void* dy_RN,
                                      const void* a_RK, const FloatArray& dw_ENK, bool accumulate,
                                      void* scratch, cudaStream_t stream) {
  const auto [R, K, N, E, starts] = product;
  if (R == 0) {
    if (accumulate) return cudaSuccess;
    return cudaMemsetAsync(dw_ENK.data, 0, E * N * K * DtypeBytes(dw_ENK.dtype), stream);
  }
  Maps maps;
  RETURN_IF_ERROR(MakeMap(maps.left, dtype, dy_RN, N, R, 1, kDepth));
  RETURN_IF_ERROR(MakeMap(maps.right, dtype, a_RK, K, R, 1, kDepth));
  RETURN_IF_ERROR(MakeMap(maps.out, dw_ENK.dtype, dw_ENK.data, K, N, E, kBoxRows));
  const Operands operands = OperandsOf(product, dw_ENK.data, scratch);
  const auto launch = [&]<typename T, typename Out>(TypeTag<T>, TypeTag<Out>) {
    return accumulate ? Launch<Product::kWeight, T, Out, true>(maps, operands, stream)
                      : Launch<Product::kWeight, T, Out, false>(maps, operands, stream);
  };
  const bool wide = dw_ENK.dtype == Dtype::kF32;
  if (dtype == Dtype::kBF16) {
    return wide ? launch(TypeTag<Bf16>{}, TypeTag<float>{})
                : launch(TypeTag<Bf16>{}, TypeTag<Bf16>{});
  }
  return wide ? launch(TypeTag<Half>{}, TypeTag<float>{})
              : launch(TypeTag<Half>{}, TypeTag<Half>{});
}
#undef RETURN_IF_ERROR

}  // namespace zeroplan::cuda
