// Functions shared by the CPU kernels: access to arguments of any float dtype in blocks of fp32,
// and scratch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/base/error.h"
#include "core/program/step_state.h"
#include "executor/kernels/convert.h"
#include "executor/kernels/kernel_call.h"
#include "executor/kernels/thread_pool.h"

namespace zeroplan {

// Elements of a block of an elementwise kernel: three fp32 blocks stay in the first-level cache.
inline constexpr int64_t kBlock = 1024;

// The fewest elements of an elementwise kernel for a thread: starting it costs about as much.
inline constexpr int64_t kElementGrain = 16 * kBlock;

inline char* ElementAt(const KernelArg& arg, int64_t index) {
  return static_cast<char*>(arg.data) + static_cast<uint64_t>(index) * DtypeBytes(arg.dtype);
}

// Elements [first, first + n) as fp32: in place if they are fp32, else widened into `buffer`.
inline const float* ReadBlock(const KernelArg& arg, int64_t first, int64_t n, float* buffer) {
  if (arg.dtype == Dtype::kF32) return static_cast<const float*>(arg.data) + first;
  Widen(arg.dtype, ElementAt(arg, first), n, buffer);
  return buffer;
}
// The place to compute elements from `first` on: in place if fp32, else `buffer`, which CommitBlock
// then narrows into place.
inline float* WriteBlock(const KernelArg& arg, int64_t first, float* buffer) {
  return arg.dtype == Dtype::kF32 ? static_cast<float*>(arg.data) + first : buffer;
}
inline void CommitBlock(const KernelArg& arg, int64_t first, int64_t n, const float* buffer) {
  if (arg.dtype != Dtype::kF32) Narrow(arg.dtype, buffer, n, ElementAt(arg, first));
}

// fn(first, n) for blocks of at most kBlock elements of [begin, end).
template <typename Fn>
void ForEachBlock(int64_t begin, int64_t end, Fn&& fn) {
  for (int64_t first = begin; first < end; first += kBlock) {
    fn(first, std::min(kBlock, end - first));
  }
}

// Hands out pieces of one worker's scratch block, 64-byte aligned.
class Scratch {
 public:
  Scratch(ThreadPool& pool, int worker)
      : next_(static_cast<char*>(pool.scratch(worker))), left_(pool.scratch_bytes()) {}

  float* Floats(int64_t count) { return static_cast<float*>(Bytes(count * 4)); }
  int64_t FloatsLeft() const { return static_cast<int64_t>(left_ / 64 * 16); }
  void* Bytes(int64_t bytes) {
    const size_t size = (static_cast<size_t>(bytes) + 63) / 64 * 64;
    if (size > left_) {
      ThrowRuntime(
          "a CPU kernel needs {} bytes of scratch more than a thread has; use a larger "
          "scratch block for each thread or a shorter sequence",
          size - left_);
    }
    void* piece = next_;
    next_ += size;
    left_ -= size;
    return piece;
  }

 private:
  char* next_;
  size_t left_;
};

// A split of n items into chunks that depends on n and the scratch alone, never on the number of
// threads: sums over a chunk, added up in chunk order, are the same for every thread count.
struct FixedCut {
  int64_t items = 0, per_chunk = 1, chunks = 0;

  FixedCut(int64_t n, int64_t least_per_chunk, int64_t most_chunks) : items(n) {
    if (n == 0) return;
    const int64_t count = std::clamp<int64_t>(n / least_per_chunk, 1, most_chunks);
    per_chunk = (n + count - 1) / count;
    chunks = (n + per_chunk - 1) / per_chunk;
  }
  int64_t begin(int64_t chunk) const { return chunk * per_chunk; }
  int64_t end(int64_t chunk) const { return std::min(items, (chunk + 1) * per_chunk); }
};

// Sums over the rows of a matrix (bias and layer norm gradients): partial sums over fixed chunks of
// rows, then the chunks in order, so that the result does not depend on the number of threads.

// The fewest rows of one partial sum, and the most partial sums.
inline constexpr int64_t kRowsPerPartial = 16;
inline constexpr int64_t kMostPartials = 64;

// The split of `rows` whose partial sums (`floats` each) fit into half of one worker's scratch.
// They are at the front of worker 0's block; other scratch of workers follows PartialFloats(cut,
// floats).
FixedCut CutRows(ThreadPool& pool, int64_t rows, int64_t floats);
inline int64_t PartialFloats(const FixedCut& cut, int64_t floats) { return cut.chunks * floats; }

// out_n (+)= sum over chunks of partials[chunk * stride + i].
void AddPartials(ThreadPool& pool, const float* partials, int64_t chunks, int64_t stride, int64_t n,
                 const KernelArg& out, bool accumulate);

// out_N (+)= sum over rows of x_MN.
void ColumnSums(ThreadPool& pool, int64_t M, int64_t N, const KernelArg& x, const KernelArg& out,
                bool accumulate);

// Raises amax (F32) to the largest |x_n|, as defined in core/program/kernel_rows.inc; nothing if
// amax is absent. Reads x again, because on the CPU a second pass over data just written costs
// little.
void RaiseMagnitude(ThreadPool& pool, const KernelArg& x_n, int64_t n, const KernelArg& amax);

// Copies within host memory that are large enough for several threads.

// REQUIRES: the ranges do not overlap, and the pool runs nothing else.
inline void CopyBytes(ThreadPool& pool, std::byte* to, const std::byte* from, uint64_t bytes) {
  constexpr int64_t kGrain = 1 << 20;
  pool.ParallelFor(static_cast<int64_t>(bytes), kGrain, [&](int64_t begin, int64_t end, int) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

}  // namespace zeroplan
