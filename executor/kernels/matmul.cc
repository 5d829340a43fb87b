// Legend: M rows (tokens), K inputs, N outputs.
#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/gemm.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan::cpu {

void MatmulForward(const KernelCall& call) {
  const auto [M, K, N] = FirstDims<3>(call.dims);
  const KernelArg &a_MK = Arg(call, 0), &w = Arg(call, 1), &y_MN = Arg(call, 4);
  const bool transposed = call.has(kTransposed);
  const KernelArg &bias = Arg(call, 2), &residual = Arg(call, 3);
  if (IsRowProduct(M, a_MK, w, bias, residual, y_MN)) {
    RowProduct(*call.context.pool, N, K, a_MK, w, transposed, bias, residual, y_MN);
    return;
  }
  ParallelGemm(*call.context.pool, M, N, K, {a_MK, K}, {w, transposed ? K : N, transposed}, y_MN,
               {.bias = bias, .residual = residual});
}

void MatmulBackwardData(const KernelCall& call) {
  const auto [M, K, N] = FirstDims<3>(call.dims);
  const KernelArg &dy_MN = Arg(call, 0), &w = Arg(call, 1), &dx_MK = Arg(call, 2);
  const bool transposed = call.has(kTransposed);
  ParallelGemm(*call.context.pool, M, K, N, {dy_MN, N}, {w, transposed ? K : N, !transposed}, dx_MK,
               {.accumulate = call.has(kAccumulate)});
}

void MatmulGeluForward(const KernelCall& call) {
  const auto [M, K, N] = FirstDims<3>(call.dims);
  const KernelArg &a_MK = Arg(call, 0), &w = Arg(call, 1), &pre_MN = Arg(call, 3);
  const bool transposed = call.has(kTransposed);
  ParallelGemm(*call.context.pool, M, N, K, {a_MK, K}, {w, transposed ? K : N, transposed}, pre_MN,
               {.bias = Arg(call, 2)}, {.gelu = Arg(call, 4)});
}

void MatmulGeluBackward(const KernelCall& call) {
  const auto [M, K, N] = FirstDims<3>(call.dims);
  const KernelArg &dy_MN = Arg(call, 0), &w = Arg(call, 1), &dx_MK = Arg(call, 3);
  const bool transposed = call.has(kTransposed);
  ParallelGemm(*call.context.pool, M, K, N, {dy_MN, N}, {w, transposed ? K : N, !transposed}, dx_MK,
               {}, {.gelu_of = Arg(call, 2)});
}

void MatmulBackwardWeight(const KernelCall& call) {
  const auto [M, K, N] = FirstDims<3>(call.dims);
  const KernelArg &a_MK = Arg(call, 0), &dy_MN = Arg(call, 1), &dw = Arg(call, 2);
  const GemmStart start{.accumulate = call.has(kAccumulate)};
  ThreadPool& pool = *call.context.pool;
  if (call.has(kTransposed)) {  // dw_NK += dy^T * a
    ParallelGemm(pool, N, K, M, {dy_MN, N, true}, {a_MK, K}, dw, start);
  } else {  // dw_KN += a^T * dy
    ParallelGemm(pool, K, N, M, {a_MK, K, true}, {dy_MN, N}, dw, start);
  }
  const KernelArg& db_N = Arg(call, 3);
  if (Present(db_N)) ColumnSums(pool, M, N, dy_MN, db_N, call.has(kAccumulate));
}

}  // namespace zeroplan::cpu
