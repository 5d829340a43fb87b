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

void LoraUpBackwardData(const KernelCall& call) {
  const LoraShape shape(call.dims);
  shape.ForEach([&](const LoraShape::Part& p) {
    const KernelArg dy = From(Arg(call, 0), p.begin), b = From(Arg(call, 1), p.up_begin * shape.r),
                    dxa = From(Arg(call, 2), p.rank_begin);
    ParallelGemm(*call.context.pool, shape.M, shape.r, p.columns(), {dy, shape.N}, {b, shape.r},
                 dxa, {.scale = call.scalars[0], .c_stride = shape.R});
  });
}

void LoraUpBackwardWeight(const KernelCall& call) {
  const LoraShape shape(call.dims);
  shape.ForEach([&](const LoraShape::Part& p) {
    const KernelArg xa = From(Arg(call, 0), p.rank_begin), dy = From(Arg(call, 1), p.begin),
                    db = From(Arg(call, 2), p.up_begin * shape.r);
    ParallelGemm(*call.context.pool, p.columns(), shape.r, shape.M, {dy, shape.N, true},
                 {xa, shape.R}, db, {.accumulate = call.has(kAccumulate)});
  });
}

}  // namespace zeroplan::cpu
