// Legend: M rows, N columns.
#include "executor/kernels/kernel_util.h"

namespace zeroplan {

FixedCut CutRows(ThreadPool& pool, int64_t rows, int64_t floats) {
  const auto room = static_cast<int64_t>(pool.scratch_bytes() / 2 / sizeof(float));
  const int64_t most = std::min(kMostPartials, room / floats);
  if (most < 1) {
    ThrowRuntime("a row of {} floats does not fit half of a thread's scratch ({} bytes)", floats,
                 pool.scratch_bytes());
  }
  return FixedCut(rows, kRowsPerPartial, most);
}

void AddPartials(ThreadPool& pool, const float* partials, int64_t chunks, int64_t stride, int64_t n,
                 const KernelArg& out, bool accumulate) {
  pool.ParallelFor(n, 256, [&](int64_t begin, int64_t end, int) {
    alignas(64) float buffer[kBlock];
    ForEachBlock(begin, end, [&](int64_t first, int64_t count) {
      float* sum = WriteBlock(out, first, buffer);
      if (accumulate && sum == buffer) ReadBlock(out, first, count, buffer);
      simd::VectorLoop(count, [&](int64_t i, auto part) {
        simd::VecF total{};
        for (int64_t c = 0; c < chunks; ++c) {
          total += simd::Load(partials + c * stride + first + i, part);
        }
        if (accumulate) total += simd::Load(sum + i, part);
        simd::Store(sum + i, total, part);
      });
      CommitBlock(out, first, count, buffer);
    });
  });
}

void ColumnSums(ThreadPool& pool, int64_t M, int64_t N, const KernelArg& x, const KernelArg& out,
                bool accumulate) {
  const FixedCut cut = CutRows(pool, M, N);
  float* partials = Scratch(pool, 0).Floats(PartialFloats(cut, N));
  pool.ParallelFor(cut.chunks, 1, [&](int64_t begin, int64_t end, int) {
    alignas(64) float buffer[kBlock];
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      float* sum_N = partials + chunk * N;
      std::memset(sum_N, 0, static_cast<size_t>(N) * sizeof(float));
      for (int64_t m = cut.begin(chunk); m < cut.end(chunk); ++m) {
        ForEachBlock(0, N, [&](int64_t first, int64_t count) {
          const float* row = ReadBlock(x, m * N + first, count, buffer);
          float* sum = sum_N + first;
          simd::VectorLoop(count, [&](int64_t i, auto part) {
            simd::Store(sum + i, simd::Load(sum + i, part) + simd::Load(row + i, part), part);
          });
        });
      }
    }
  });
  AddPartials(pool, partials, cut.chunks, N, N, out, accumulate);
}

}  // namespace zeroplan
