// Filling, converting, splitting master weights, and picking out a row.
#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/dynamic8.h"
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
  if (HasDynamic8(call)) return ConvertDynamic8(call);
  const KernelArg &src_n = Arg(call, 0), &dst_n = Arg(call, 1);
  const bool accumulate = call.has(kAccumulate), half_away = call.has(kHalfAway);
  ZEROPLAN_CHECK(
      !half_away || (src_n.dtype == Dtype::kF32 && dst_n.dtype == Dtype::kBF16 && !accumulate),
      "{} to {}, halves away from zero", DtypeName(src_n.dtype), DtypeName(dst_n.dtype));
  call.context.pool->ParallelFor(call.dims[0], kElementGrain, [&](int64_t begin, int64_t end, int) {
    if (!accumulate && src_n.dtype == dst_n.dtype) {
      std::memmove(ElementAt(dst_n, begin), ElementAt(src_n, begin),
                   static_cast<size_t>(end - begin) * DtypeBytes(src_n.dtype));
      return;
    }
    if (half_away) {
      NarrowHalfAway(src_n.as<const float>() + begin, end - begin, dst_n.as<uint16_t>() + begin);
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

void SplitMaster(const KernelCall& call) {
  const auto* master_n = Arg(call, 0).as<const float>();
  auto *param_n = Arg(call, 1).as<uint16_t>(), *rest_n = Arg(call, 2).as<uint16_t>();
  call.context.pool->ParallelFor(call.dims[0], kElementGrain, [&](int64_t begin, int64_t end, int) {
    simd::VectorLoop(end - begin, [&](int64_t i, auto part) {
      const auto halves = simd::SplitMaster(simd::Load(master_n + begin + i, part));
      simd::StoreTo(param_n + begin + i, halves.param, part);
      simd::StoreTo(rest_n + begin + i, halves.rest, part);
    });
  });
}

void JoinMaster(const KernelCall& call) {
  const auto *param_n = Arg(call, 0).as<const uint16_t>(),
             *rest_n = Arg(call, 1).as<const uint16_t>();
  auto* master_n = Arg(call, 2).as<float>();
  call.context.pool->ParallelFor(call.dims[0], kElementGrain, [&](int64_t begin, int64_t end, int) {
    simd::VectorLoop(end - begin, [&](int64_t i, auto part) {
      const auto param = simd::LoadAs<simd::VecH>(param_n + begin + i, part);
      const auto rest = simd::LoadAs<simd::VecH>(rest_n + begin + i, part);
      simd::Store(master_n + begin + i, simd::JoinMaster({param, rest}), part);
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
