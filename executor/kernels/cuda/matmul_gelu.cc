// Matrix products with a GELU after them: by the library's epilogues, or by a product and a kernel
// of our own, whichever is there and faster.
//
// Legend: M rows (tokens), K inputs, N outputs.
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/gelu_epilogue.h"
#include "executor/kernels/cuda/library_check.h"
#include "executor/kernels/cuda/matmul_product.h"

namespace zeroplan::cuda {
namespace {

// The library wants rows of the GELU's input in multiples of 8 elements. fp32 is computed for
// exactness, so it does without the epilogue's approximate tanh.
bool MayFuse(const Product& fused) {
  return fused.problem.ldd % 8 == 0 && fused.problem.align_aux == kMostAlign &&
         fused.problem.in != Dtype::kF32 && fused.problem.out == fused.problem.in;
}

void CheckOneDtype(std::string_view row, const KernelArg& a, const KernelArg& b) {
  if (a.dtype == b.dtype) return;
  ThrowRuntime("{}: a GELU's input and output must have one dtype, here they have {} and {}", row,
               DtypeName(a.dtype), DtypeName(b.dtype));
}

// ---- forward: a_MK w bias_N -> pre_MN y_MN workspace -------------------------------------------

constexpr std::string_view kForward = "matmul_gelu_forward";

Product FusedForward(const KernelCall& call) {
  const auto [M, K, N, unused] = call.dims;
  const KernelArg &bias_N = Arg(call, 2), &pre_MN = Arg(call, 3), &y_MN = Arg(call, 4);
  CheckOneDtype(kForward, pre_MN, y_MN);
  CheckOneDtype(kForward, bias_N, y_MN);
  return MakeProduct(kForward, ForwardLayout(M, K, N, call.has(kTransposed)), Arg(call, 0),
                     Arg(call, 1), y_MN, Arg(call, 5),
                     {.epilogue = GemmEpilogue::kGeluAuxBias,
                      .bias = bias_N.data,
                      .aux = pre_MN.data});
}

// The plain row, into pre.
void RunPlainForward(const KernelCall& call, void (*row)(const KernelCall&)) {
  const KernelArg args[] = {Arg(call, 0), Arg(call, 1), Arg(call, 2),
                            kAbsent,      Arg(call, 3), Arg(call, 5)};
  row({KernelId::kMatmulForward, call.flags, call.dims, args, call.context});
}

void RunSeparateForward(const KernelCall& call) {
  RunPlainForward(call, MatmulForward);
  const KernelArg &pre_MN = Arg(call, 3), &y_MN = Arg(call, 4);
  LaunchGeluOfProduct(pre_MN.data, y_MN.data, y_MN.dtype, call.dims[0] * call.dims[2],
                      StreamOf(call));
  CheckKernelLaunch("a GELU");
}

// ---- backward: dy_MN w pre_MK -> dx_MK workspace -----------------------------------------------

constexpr std::string_view kBackward = "matmul_gelu_backward";

Product FusedBackward(const KernelCall& call) {
  const auto [M, K, N, unused] = call.dims;
  const KernelArg &pre_MK = Arg(call, 2), &dx_MK = Arg(call, 3);
  CheckOneDtype(kBackward, pre_MK, dx_MK);
  return MakeProduct(kBackward, BackwardDataLayout(M, K, N, call.has(kTransposed)), Arg(call, 0),
                     Arg(call, 1), dx_MK, Arg(call, 4),
                     {.epilogue = GemmEpilogue::kDGelu, .aux = pre_MK.data});
}

void RunPlainBackward(const KernelCall& call, void (*row)(const KernelCall&)) {
  const KernelArg args[] = {Arg(call, 0), Arg(call, 1), Arg(call, 3), Arg(call, 4)};
  row({KernelId::kMatmulBackwardData, call.flags, call.dims, args, call.context});
}

void RunSeparateBackward(const KernelCall& call) {
  RunPlainBackward(call, MatmulBackwardData);
  const KernelArg &pre_MK = Arg(call, 2), &dx_MK = Arg(call, 3);
  LaunchGeluGradOfProduct(pre_MK.data, dx_MK.data, dx_MK.dtype, call.dims[0] * call.dims[1],
                          StreamOf(call));
  CheckKernelLaunch("a GELU's gradient");
}

// Tunes both ways and keeps the faster.
void Prepare(const KernelCall& call, const Product& fused, void (*prepare_plain)(const KernelCall&),
             void (*run_separate)(const KernelCall&)) {
  prepare_plain(call);
  const double fused_ms = MayFuse(fused) ? Tune(call, fused) : 0;
  Plans(call).ChooseFusion(fused.problem, fused_ms, [&] {
    return TimeLaunches(StreamOf(call), [&] { run_separate(call); });
  });
  Plans(call).Save();
}

}  // namespace

void MatmulGeluForward(const KernelCall& call) {
  const Product fused = FusedForward(call);
  if (MayFuse(fused) && Plans(call).Fused(fused.problem, true) && TryRun(call, fused)) return;
  RunSeparateForward(call);
}

void PrepareMatmulGeluForward(const KernelCall& call) {
  Prepare(
      call, FusedForward(call),
      [](const KernelCall& c) { RunPlainForward(c, PrepareMatmulForward); }, RunSeparateForward);
}

void MatmulGeluBackward(const KernelCall& call) {
  ZEROPLAN_CHECK(!call.has(kAccumulate), "{} does not add", kBackward);
  const Product fused = FusedBackward(call);
  if (MayFuse(fused) && Plans(call).Fused(fused.problem, true) && TryRun(call, fused)) return;
  RunSeparateBackward(call);
}

void PrepareMatmulGeluBackward(const KernelCall& call) {
  Prepare(
      call, FusedBackward(call),
      [](const KernelCall& c) { RunPlainBackward(c, PrepareMatmulBackwardData); },
      RunSeparateBackward);
}

}  // namespace zeroplan::cuda
