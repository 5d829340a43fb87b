// Products of adapters (core/model/lora.h). Legend: M rows (tokens), K inputs, N outputs; R rows of
// A, U of B, r the rank.
#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/gemm.h"
#include "executor/kernels/kernel_util.h"
#include "executor/kernels/lora_parts.h"

namespace zeroplan::cpu {

void LoraDown(const KernelCall& call) {
  const auto [M, K, R] = FirstDims<3>(call.dims);
  ParallelGemm(*call.context.pool, M, R, K, {Arg(call, 0), K}, {Arg(call, 1), K, true},
               Arg(call, 2), {.scale = call.scalars[0]});
}

void LoraDownBackward(const KernelCall& call) {
  const auto [M, K, R] = FirstDims<3>(call.dims);
  const KernelArg &x = Arg(call, 0), &dxa = Arg(call, 1), &a = Arg(call, 2);
  ThreadPool& pool = *call.context.pool;
  ParallelGemm(pool, M, K, R, {dxa, R}, {a, K}, Arg(call, 3),
               {.accumulate = call.has(kAddToOutput)});
  ParallelGemm(pool, R, K, M, {dxa, R, true}, {x, K}, Arg(call, 4),
               {.accumulate = call.has(kAccumulate)});
}

void LoraUp(const KernelCall& call) {
  const LoraShape shape(call.dims);
  const KernelArg& residual = Arg(call, 2);
  shape.ForEach([&](const LoraShape::Part& p) {
    const KernelArg xa = From(Arg(call, 0), p.rank_begin),
                    b = From(Arg(call, 1), p.up_begin * shape.r), y = From(Arg(call, 3), p.begin),
                    start = Present(residual) ? From(residual, p.begin) : kAbsent;
    ParallelGemm(*call.context.pool, shape.M, p.columns(), shape.r, {xa, shape.R},
                 {b, shape.r, true}, y,
                 {.accumulate = call.has(kAccumulate), .residual = start, .c_stride = shape.N});
  });
}

void LoraUpBackward(const KernelCall& call) {
  const LoraShape shape(call.dims);
  ThreadPool& pool = *call.context.pool;
  shape.ForEach([&](const LoraShape::Part& p) {
    const int64_t b_begin = p.up_begin * shape.r;
    const KernelArg dy = From(Arg(call, 0), p.begin), xa = From(Arg(call, 1), p.rank_begin),
                    b = From(Arg(call, 2), b_begin), dxa = From(Arg(call, 3), p.rank_begin),
                    db = From(Arg(call, 4), b_begin);
    ParallelGemm(pool, shape.M, shape.r, p.columns(), {dy, shape.N}, {b, shape.r}, dxa,
                 {.scale = call.scalars[0], .c_stride = shape.R});
    ParallelGemm(pool, p.columns(), shape.r, shape.M, {dy, shape.N, true}, {xa, shape.R}, db,
                 {.accumulate = call.has(kAccumulate)});
  });
}

}  // namespace zeroplan::cpu
