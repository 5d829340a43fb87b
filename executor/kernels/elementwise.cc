// Filling, converting and picking out a row.
#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/int_blocks.h"
#include "executor/kernels/kernel_util.h"
#include "executor/kernels/nf4.h"

namespace zeroplan::cpu {

void Fill(const KernelCall& call) {
  char* dst = Arg(call, 0).as<char>();
  call.context.pool->ParallelFor(call.dims[0], 4 * kElementGrain,
                                 [&](int64_t begin, int64_t end, int) {
                                   std::memset(dst + begin, 0, static_cast<size_t>(end - begin));
                                 });
}

void Convert(const KernelCall& call) {
  if (HasNf4(call)) return ConvertNf4(call);
  if (HasIntBlocks(call)) return ConvertIntBlocks(call);
  const KernelArg &src_n = Arg(call, 0), &dst_n = Arg(call, 1);
  const bool accumulate = call.has(kAccumulate);
  call.context.pool->ParallelFor(call.dims[0], kElementGrain, [&](int64_t begin, int64_t end, int) {
    if (!accumulate && src_n.dtype == dst_n.dtype) {
      std::memmove(ElementAt(dst_n, begin), ElementAt(src_n, begin),
                   static_cast<size_t>(end - begin) * DtypeBytes(src_n.dtype));
      return;
    }
    alignas(64) float src_buffer[kBlock], dst_buffer[kBlock];
    ForEachBlock(begin, end, [&](int64_t first, int64_t count) {
      const float* src = ReadBlock(src_n, first, count, src_buffer);
      if (!accumulate) {
        Narrow(dst_n.dtype, src, count, ElementAt(dst_n, first));
        return;
      }
      float* dst = WriteBlock(dst_n, first, dst_buffer);
      const float* old = ReadBlock(dst_n, first, count, dst_buffer);
      simd::VectorLoop(count, [&](int64_t i, auto part) {
        simd::Store(dst + i, simd::Load(old + i, part) + simd::Load(src + i, part), part);
      });
      CommitBlock(dst_n, first, count, dst_buffer);
    });
  });
}

void SelectRow(const KernelCall& call) {
  const int64_t C = call.dims[0];
  const KernelArg &x_BTC = Arg(call, 0), &row_C = Arg(call, 2);
  const int64_t row = Arg(call, 1).as<const StepState>()->position;
  const auto rows = static_cast<int64_t>(x_BTC.bytes / DtypeBytes(x_BTC.dtype)) / C;
  ZEROPLAN_CHECK(row >= 0 && row < rows, "row {} of {}", row, rows);
  alignas(64) float buffer[kBlock];
  ForEachBlock(0, C, [&](int64_t first, int64_t count) {
    const float* x = ReadBlock(x_BTC, row * C + first, count, buffer);
    Narrow(row_C.dtype, x, count, ElementAt(row_C, first));
  });
}

}  // namespace zeroplan::cpu
