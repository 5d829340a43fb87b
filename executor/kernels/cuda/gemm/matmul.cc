// Legend: M rows (tokens), K inputs, N outputs.
#include "core/base/units.h"
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/elementwise/elementwise.h"
#include "executor/kernels/cuda/gemm/gemm_kernels.h"
#include "executor/kernels/cuda/gemm/matmul_product.h"
#include "executor/kernels/cuda/library_check.h"

namespace zeroplan::cuda {
namespace {

// ---- forward -----------------------------------------------------------------------------------

struct Forward {
  // Whether the library may add the bias; else y starts from bias and residual, and the product is
  // added.
  bool whole;
  Product product;
};

Forward MakeForward(const KernelCall& call, bool may_fuse) {
  const auto [M, K, N] = FirstDims<3>(call.dims);
  const KernelArg &bias_N = Arg(call, 2), &residual_MN = Arg(call, 3), &y_MN = Arg(call, 4);
  const bool whole = may_fuse && (!Present(bias_N) || bias_N.dtype == y_MN.dtype) &&
                     (!Present(residual_MN) || residual_MN.dtype == y_MN.dtype);
  const bool biased = whole && Present(bias_N);
  return {whole, MakeProduct("matmul_forward", ForwardLayout(M, K, N, call.has(kTransposed)),
                             Arg(call, 0), Arg(call, 1), y_MN, Arg(call, 5),
                             {.epilogue = biased ? GemmEpilogue::kBias : GemmEpilogue::kNone,
                              .c = whole ? residual_MN : y_MN,
                              .bias = biased ? bias_N.data : nullptr})};
}

// ---- one row -----------------------------------------------------------------------------------

// By our own kernels, which read w once: the library's tiles are made for many rows.
void MultiplyRow(const KernelCall& call) {
  const auto [M, K, N] = FirstDims<3>(call.dims);
  LaunchRowProduct({.a_K = ArrayOf(Arg(call, 0)),
                    .w = ArrayOf(Arg(call, 1)),
                    .bias_N = ArrayOf(Arg(call, 2)),
                    .residual_N = ArrayOf(Arg(call, 3)),
                    .y_N = ArrayOf(Arg(call, 4)),
                    .K = K,
                    .N = N,
                    .transposed = call.has(kTransposed)},
                   StreamOf(call));
  CheckKernelLaunch("the product of a row");
}

// ---- the weight's gradient ---------------------------------------------------------------------

Product WeightProduct(const KernelCall& call, const ProductExtras& extras) {
  const auto [M, K, N] = FirstDims<3>(call.dims);
  return MakeProduct("matmul_backward_weight", BackwardWeightLayout(M, K, N, call.has(kTransposed)),
                     Arg(call, 0), Arg(call, 1), Arg(call, 2), Arg(call, 4), extras);
}

const KernelArg& AddedWeight(const KernelCall& call) {
  return call.has(kAccumulate) ? Arg(call, 2) : kAbsent;
}

Product PlainWeightProduct(const KernelCall& call) {
  return WeightProduct(call, {.c = AddedWeight(call)});
}

// Where the library's sums of dy go when they are to be added: to the head of the workspace.
uint64_t SumsBytes(const KernelCall& call) {
  if (!call.has(kAccumulate)) return 0;
  return AlignUp(static_cast<uint64_t>(call.dims[2]) * DtypeBytes(Arg(call, 3).dtype),
                 kWorkspaceAlignment);
}

// False where the library cannot sum dy beside the product: its sums have dw's dtype.
bool MayFuseSums(const KernelCall& call) {
  return Arg(call, 3).dtype == Arg(call, 2).dtype && Arg(call, 4).bytes > SumsBytes(call);
}

// dy is operand B where dw lies transposed, A otherwise: see gemm_layout.h.
Product FusedWeightProduct(const KernelCall& call) {
  return WeightProduct(
      call, {.epilogue = call.has(kTransposed) ? GemmEpilogue::kBgradB : GemmEpilogue::kBgradA,
             .c = AddedWeight(call),
             .bias = call.has(kAccumulate) ? Arg(call, 4).data : Arg(call, 3).data,
             .workspace_offset = SumsBytes(call)});
}

void FinishFused(const KernelCall& call) {
  if (!call.has(kAccumulate)) return;
  const KernelArg& db_N = Arg(call, 3);
  LaunchConvert({Arg(call, 4).data, db_N.dtype}, ArrayOf(db_N), call.dims[2], true, StreamOf(call));
  CheckKernelLaunch("adding a bias gradient");
}

void SumBiasGradient(const KernelCall& call) {
  const auto [M, K, N] = FirstDims<3>(call.dims);
  const KernelArg &dy_MN = Arg(call, 1), &db_N = Arg(call, 3), &workspace = Arg(call, 4);
  ColumnSums(ArrayOf(dy_MN), M, N, ArrayOf(db_N), call.has(kAccumulate), workspace.data,
             workspace.bytes, StreamOf(call));
  CheckKernelLaunch("a bias gradient");
}

}  // namespace

void MatmulForward(const KernelCall& call) {
  if (call.dims[0] == 1) return MultiplyRow(call);
  const Forward forward = MakeForward(call, true);
  if (forward.whole && TryRun(call, forward.product)) return;
  const KernelArg &bias_N = Arg(call, 2), &residual_MN = Arg(call, 3), &y_MN = Arg(call, 4);
  StartFromBias(ArrayOf(bias_N), ArrayOf(residual_MN), ArrayOf(y_MN), call.dims[0], call.dims[2],
                StreamOf(call));
  CheckKernelLaunch("starting from a bias");
  Run(call, forward.whole ? MakeForward(call, false).product : forward.product);
}

void PrepareMatmulForward(const KernelCall& call) {
  if (call.dims[0] == 1) return;
  const Forward forward = MakeForward(call, true);
  if (Tune(call, forward.product) == 0 && forward.whole) {
    Tune(call, MakeForward(call, false).product);
  }
  Plans(call).Save();
}

void MatmulBackwardData(const KernelCall& call) {
  const auto [M, K, N] = FirstDims<3>(call.dims);
  const KernelArg& dx_MK = Arg(call, 2);
  Run(call, MakeProduct("matmul_backward_data", BackwardDataLayout(M, K, N, call.has(kTransposed)),
                        Arg(call, 0), Arg(call, 1), dx_MK, Arg(call, 3),
                        {.c = call.has(kAccumulate) ? dx_MK : kAbsent}));
}

void PrepareMatmulBackwardData(const KernelCall& call) {
  const auto [M, K, N] = FirstDims<3>(call.dims);
  const KernelArg& dx_MK = Arg(call, 2);
  Tune(call, MakeProduct("matmul_backward_data", BackwardDataLayout(M, K, N, call.has(kTransposed)),
                         Arg(call, 0), Arg(call, 1), dx_MK, Arg(call, 3),
                         {.c = call.has(kAccumulate) ? dx_MK : kAbsent}));
  Plans(call).Save();
}

void MatmulBackwardWeight(const KernelCall& call) {
  if (!Present(Arg(call, 3))) return Run(call, PlainWeightProduct(call));
  if (MayFuseSums(call)) {
    const Product fused = FusedWeightProduct(call);
    if (Plans(call).Fused(fused.problem, false) && TryRun(call, fused)) return FinishFused(call);
  }
  Run(call, PlainWeightProduct(call));
  SumBiasGradient(call);
}

void PrepareMatmulBackwardWeight(const KernelCall& call) {
  const Product plain = PlainWeightProduct(call);
  Tune(call, plain);
  if (Present(Arg(call, 3)) && MayFuseSums(call)) {
    const Product fused = FusedWeightProduct(call);
    double fused_ms = Tune(call, fused);
    if (fused_ms > 0 && !Plans(call).FusionChosen(fused.problem)) {
      fused_ms = TimeLaunches(StreamOf(call), [&] {
        Run(call, fused);
        FinishFused(call);
      });
    }
    Plans(call).ChooseFusion(fused.problem, fused_ms, [&] {
      return TimeLaunches(StreamOf(call), [&] {
        Run(call, plain);
        SumBiasGradient(call);
      });
    });
  }
  Plans(call).Save();
}

}  // namespace zeroplan::cuda
