// The positions are sorted by token (a stable sort: in order within a token), and the sorted list
// is cut into segments of equal length. A warp walks a segment in some columns and adds each run of
// one token to dwte. Runs that cross a border leave partial sums, which a second kernel joins: a
// token that makes up most of a batch is summed by as many warps as any other.
#include <cub/device/device_radix_sort.cuh>

#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/embedding/embed_backward.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    PairsKernel(const int32_t* tokens, int32_t* keys, int32_t* values, int64_t n, int64_t V) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const int32_t token = tokens[i];
  if (token < 0 || token >= V) FailIndex("token", token, i, V);
  keys[i] = token;
  values[i] = static_cast<int32_t>(i);
}

// As PairsKernel, with each position's place in its document for a key.
__global__ void __launch_bounds__(kThreads)
    PlacesKernel(const int32_t* starts, int32_t* keys, int32_t* values, int64_t n, int64_t T) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  keys[i] = static_cast<int32_t>(i % T) - starts[i];
  values[i] = static_cast<int32_t>(i);
}

struct Sorted {
  const int32_t *tokens, *positions;
  int64_t n, segment_rows, segments;
  float* partials;  // [segments][head, tail][C]

  __device__ int64_t Begin(int64_t segment) const { return segment * segment_rows; }
  __device__ int64_t End(int64_t segment) const {
    const int64_t end = (segment + 1) * segment_rows;
    return end < n ? end : n;
  }
  // Whether a run crosses the border before sorted index i.
  __device__ bool Crosses(int64_t i) const { return i > 0 && i < n && tokens[i - 1] == tokens[i]; }
};

// W neighbours as they lie in memory: conversions wait until all loads are on their way.
template <int W, typename T>
__device__ inline Pack<T, W> Raw(const Typed<T>& array, int64_t i) {
  return LoadPack<T, W>(array.data + i);
}
template <int W>
__device__ inline Pack<float, W> Raw(const Runtime& array, int64_t i) {
  Pack<float, W> pack;
  array.Load(i, pack.v);
  return pack;
}

constexpr int kSegmentsPerBlock = 4;
constexpr int kUnroll = 4;  // rows of dx in flight, and of dwte where their runs begin

// Head: the sum of a segment's first run if it began before; tail: of its last run if it goes on
// (and is not the head). A warp has 32 * W columns; its lanes read 32 tokens and positions at once.
template <int W, typename Dx, typename Grad>
__global__ void __launch_bounds__(32 * kSegmentsPerBlock, 4)
    SegmentsKernel(Sorted sorted, Dx dx, Grad dwte, int64_t C) {
  static_assert(32 % kUnroll == 0);
  const int64_t segment = static_cast<int64_t>(blockIdx.x) * kSegmentsPerBlock + threadIdx.y;
  if (segment >= sorted.segments) return;  // whole warps
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x) * W;
  const bool active = c < C;
  const int64_t begin = sorted.Begin(segment), end = sorted.End(segment);
  bool head = sorted.Crosses(begin);  // of the run being summed
  int32_t token = -1;                 // its token
  float sum[W] = {}, old[W] = {};     // its sum so far, and what dwte has of it
  const auto leave_partial = [&](int which) {
    float* to = sorted.partials + (segment * 2 + which) * C + c;
#pragma unroll
    for (int e = 0; e < W; ++e) to[e] = sum[e];
  };
  const auto finish_run = [&] {
    if (head) {
      leave_partial(0);
      head = false;
      return;
    }
    float total[W];
#pragma unroll
    for (int e = 0; e < W; ++e) total[e] = old[e] + sum[e];
    dwte.Store(token * C + c, total);
  };
  for (int64_t base = begin; base < end; base += 32) {
    const int count = static_cast<int>(end - base < 32 ? end - base : 32);
    int32_t my_token = -1, my_position = 0;
    if (static_cast<int>(threadIdx.x) < count) {
      my_token = sorted.tokens[base + threadIdx.x];
      my_position = sorted.positions[base + threadIdx.x];
    }
#pragma unroll 1
    for (int i = 0; i < count; i += kUnroll) {
      decltype(Raw<W>(dx, 0)) x[kUnroll];
      decltype(Raw<W>(dwte, 0)) starts[kUnroll];
      int32_t next[kUnroll], last = token;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        next[u] = __shfl_sync(0xffffffffu, my_token, i + u);
        const int64_t position = __shfl_sync(0xffffffffu, my_position, i + u);
        if (i + u >= count || !active) continue;
        x[u] = Raw<W>(dx, position * C + c);
        // This is of no use where the run goes on beyond the segment, which is known only at its
        // end.
        if (next[u] != last) starts[u] = Raw<W>(dwte, next[u] * C + c);
        last = next[u];
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u >= count || !active) continue;
        if (next[u] != token) {
          if (token >= 0) finish_run();
          token = next[u];
#pragma unroll
          for (int e = 0; e < W; ++e) {
            sum[e] = 0;
            old[e] = ToFloat(starts[u].v[e]);
          }
        }
#pragma unroll
        for (int e = 0; e < W; ++e) sum[e] += ToFloat(x[u].v[e]);
      }
    }
  }
  if (!active) return;
  if (!head && sorted.Crosses(end)) {
    leave_partial(1);
  } else {
    finish_run();
  }
}

constexpr int kJoinRows = 8;
constexpr int kJoinColumns = 4;  // of a thread, 32 apart

// The run that starts in segment blockIdx.x and goes on beyond it: its tail there and the heads of
// the segments after. Thread row y takes every kJoinRows-th of them.
__global__ void __launch_bounds__(32 * kJoinRows)
    JoinKernel(Sorted sorted, Runtime dwte, int64_t C) {
  __shared__ float sums[kJoinRows][kJoinColumns][32];
  const int64_t segment = blockIdx.x;
  const int64_t begin = sorted.Begin(segment), end = sorted.End(segment);
  if (!sorted.Crosses(end)) return;
  const int32_t token = sorted.tokens[end - 1];
  if (sorted.Crosses(begin) && sorted.tokens[begin] == token) return;  // it starts before
  // The first segment after this that does not begin with the token.
  int64_t low = segment + 1, high = sorted.segments;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (sorted.tokens[sorted.Begin(middle)] == token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const int64_t first = static_cast<int64_t>(blockIdx.y) * 32 * kJoinColumns + threadIdx.x;
  float sum[kJoinColumns] = {};
#pragma unroll 4
  for (int64_t part = segment + threadIdx.y; part < low; part += kJoinRows) {
    const float* from = sorted.partials + (part * 2 + (part == segment ? 1 : 0)) * C;
#pragma unroll
    for (int k = 0; k < kJoinColumns; ++k) {
      if (first + 32 * k < C) sum[k] += from[first + 32 * k];
    }
  }
#pragma unroll
  for (int k = 0; k < kJoinColumns; ++k) sums[threadIdx.y][k][threadIdx.x] = sum[k];
  __syncthreads();
  if (threadIdx.y != 0) return;
#pragma unroll
  for (int k = 0; k < kJoinColumns; ++k) {
    const int64_t c = first + 32 * k;
    if (c >= C) continue;
    float total = 0;
#pragma unroll
    for (int y = 0; y < kJoinRows; ++y) total += sums[y][k][threadIdx.x];
    dwte.Set(token * C + c, dwte.Get(token * C + c) + total);
  }
}

template <int W, typename Dx>
__global__ void __launch_bounds__(kThreads)
    PositionsKernel(Dx dx, Runtime dwpe, int64_t B, int64_t TC, bool add) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * W;
  if (i >= TC) return;
  float sum[W] = {};
  if (add) dwpe.Load(i, sum);
#pragma unroll 4
  for (int64_t b = 0; b < B; ++b) {
    float x[W];
    dx.Load(b * TC + i, x);
#pragma unroll
    for (int e = 0; e < W; ++e) sum[e] += x[e];
  }
  dwpe.Store(i, sum);
}

int BitsOf(int64_t V) {
  int bits = 1;
  while (bits < 31 && (int64_t{1} << bits) < V) ++bits;
  return bits;
}

// Adds the rows of dx to those of `table` that the sorted keys name.
template <int W, typename Dx, typename Grad>
void AddRows(const Sorted& sorted, const Dx& dx, const Grad& table, const FloatArray& same_table,
             int64_t C, cudaStream_t stream) {
  const dim3 grid(GridOf(sorted.segments, kSegmentsPerBlock), GridOf(C, 32 * W));
  SegmentsKernel<W><<<grid, dim3(32, kSegmentsPerBlock), 0, stream>>>(sorted, dx, table, C);
  const dim3 join(static_cast<unsigned>(sorted.segments), GridOf(C, 32 * kJoinColumns));
  JoinKernel<<<join, dim3(32, kJoinRows), 0, stream>>>(sorted, Runtime(same_table), C);
}

// Into `table` by keys that `sorted` has, whatever the dtypes.
void AddSorted(const Sorted& sorted, const FloatArray& dx, const FloatArray& table, int64_t C,
               cudaStream_t stream) {
  if (C % kVector != 0 || !Aligned(dx.data) || !Aligned(table.data) ||
      (table.dtype != dx.dtype && table.dtype != Dtype::kF32)) {
    return AddRows<1>(sorted, Runtime(dx), Runtime(table), table, C, stream);
  }
  WithFloatType(dx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (table.dtype == Dtype::kF32) {
      AddRows<kVector>(sorted, Typed<T>(dx), Typed<float>(table), table, C, stream);
    } else {
      AddRows<kVector>(sorted, Typed<T>(dx), Typed<T>(table), table, C, stream);
    }
  });
}

// dwpe where every row is one text.
void AddPositions(const EmbedBackwardArgs& args, cudaStream_t stream) {
  const int64_t TC = args.T * args.C;
  const FloatArray &dx = args.dx_BTC, &dwpe = args.dwpe_TC;
  if (args.C % kVector != 0 || !Aligned(dx.data) || !Aligned(dwpe.data)) {
    PositionsKernel<1><<<GridOf(TC, kThreads), kThreads, 0, stream>>>(Runtime(dx), Runtime(dwpe),
                                                                      args.B, TC, args.add_to_dwpe);
    return;
  }
  WithFloatType(dx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    PositionsKernel<kVector><<<GridOf(TC, kThreads * kVector), kThreads, 0, stream>>>(
        Typed<T>(dx), Runtime(dwpe), args.B, TC, args.add_to_dwpe);
  });
}

// An EmbedScratch in memory.
class SortScratch {
 public:
  SortScratch(void* begin, int64_t positions, int64_t C)
      : layout_(EmbedScratchOf(positions, C)),
        begin_(static_cast<char*>(begin)),
        n_(positions),
        keys_(Ints(layout_.keys[0]), Ints(layout_.keys[1])),
        values_(Ints(layout_.values[0]), Ints(layout_.values[1])) {}

  // To be filled, then sorted by.
  int32_t* keys() { return keys_.Current(); }
  int32_t* values() { return values_.Current(); }
  cudaError_t Sort(int64_t keys_end, cudaStream_t stream) {
    auto bytes = static_cast<size_t>(layout_.sort_bytes);
    return cub::DeviceRadixSort::SortPairs(begin_ + layout_.sort, bytes, keys_, values_,
                                           static_cast<int>(n_), 0, BitsOf(keys_end), stream);
  }
  Sorted sorted() {
    return {keys(),
            values(),
            n_,
            layout_.segment_rows,
            layout_.segments,
            reinterpret_cast<float*>(begin_ + layout_.partials)};
  }

 private:
  int32_t* Ints(int64_t offset) const { return reinterpret_cast<int32_t*>(begin_ + offset); }

  EmbedScratch layout_;
  char* begin_;
  int64_t n_;
  cub::DoubleBuffer<int32_t> keys_, values_;
};

}  // namespace

size_t EmbedSortBytes(int64_t positions, int64_t V) {
  cub::DoubleBuffer<int32_t> keys, values;
  size_t bytes = 0;
  cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, values, static_cast<int>(positions), 0,
                                  BitsOf(V));
  return bytes;
}

cudaError_t LaunchEmbedBackward(const EmbedBackwardArgs& args, void* scratch, cudaStream_t stream) {
  const int64_t n = args.B * args.T;
  SortScratch by_token(scratch, n, args.C);
  PairsKernel<<<GridOf(n, kThreads), kThreads, 0, stream>>>(args.tokens_BT, by_token.keys(),
                                                            by_token.values(), n, args.V);
  if (const cudaError_t error = by_token.Sort(args.V, stream); error != cudaSuccess) return error;
  AddSorted(by_token.sorted(), args.dx_BTC, args.dwte_VpC, args.C, stream);
  const FloatArray& dwpe = args.dwpe_TC;
  if (dwpe.data == nullptr) return cudaSuccess;
  if (args.starts_BT == nullptr) {
    AddPositions(args, stream);
    return cudaSuccess;
  }
  if (!args.add_to_dwpe) {
    const auto bytes = static_cast<size_t>(args.T * args.C) * DtypeBytes(dwpe.dtype);
    if (const cudaError_t error = cudaMemsetAsync(dwpe.data, 0, bytes, stream);
        error != cudaSuccess) {
      return error;
    }
  }
  SortScratch by_place(scratch, n, args.C);
  PlacesKernel<<<GridOf(n, kThreads), kThreads, 0, stream>>>(args.starts_BT, by_place.keys(),
                                                             by_place.values(), n, args.T);
  if (const cudaError_t error = by_place.Sort(args.T, stream); error != cudaSuccess) return error;
  AddSorted(by_place.sorted(), args.dx_BTC, dwpe, args.C, stream);
  return cudaSuccess;
}

}  // namespace zeroplan::cuda
