// Matrix products with a GELU on their fp32 sums: by the library's epilogues; or, where it has none
// or is slower, panel by panel of rows, the panel's sums in the workspace for a kernel of our own.
//
// Legend: M rows (tokens), I columns of what is multiplied, O columns of the result; R rows of a
// panel.
#include <algorithm>

#include "core/base/units.h"
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/elementwise/elementwise.h"
#include "executor/kernels/cuda/gemm/gemm_kernels.h"
#include "executor/kernels/cuda/gemm/matmul_product.h"
#include "executor/kernels/cuda/library_check.h"

namespace zeroplan::cuda {
namespace {

// Panels have whole tiles of the library's kernels.
constexpr int64_t kPanelAlign = 128;

// Either row, by what its arguments are to the product and to the GELU.
//   forward:  pre = from*w + bias, to = gelu(pre)
//   backward: to = (from*w^T) * gelu'(pre)
struct GeluProduct {
  const KernelCall& call;
  bool backward;
  GemmLayout (*layout)(int64_t M, int64_t K, int64_t N, bool transposed);
  int64_t M, I, O;
  const KernelArg &from_MI, &w, &bias_O, &pre_MO, &to_MO, &workspace;

  std::string_view row() const { return KernelInfo(call.id).name; }
};

GeluProduct ForwardProduct(const KernelCall& call) {
  const auto [M, K, N] = FirstDims<3>(call.dims);
  return {call,         false,        ForwardLayout, M,           K, N, Arg(call, 0), Arg(call, 1),
          Arg(call, 2), Arg(call, 3), Arg(call, 4),  Arg(call, 5)};
}

GeluProduct BackwardProduct(const KernelCall& call) {
  const auto [M, K, N] = FirstDims<3>(call.dims);
  return {call,    true,         BackwardDataLayout, M,           N, K, Arg(call, 0), Arg(call, 1),
          kAbsent, Arg(call, 2), Arg(call, 3),       Arg(call, 4)};
}

KernelArg Rows(const KernelArg& arg, int64_t row, int64_t columns) {
  return {ElementAt(arg, row * columns), arg.bytes, arg.dtype};
}

// ---- by the library's epilogue -----------------------------------------------------------------

void CheckOneDtype(const GeluProduct& p, const KernelArg& other) {
  if (other.dtype == p.to_MO.dtype) return;
  ThrowRuntime("{}: a GELU's bias, input and output must have one dtype, here are {} and {}",
               p.row(), DtypeName(other.dtype), DtypeName(p.to_MO.dtype));
}

GemmLayout Layout(const GeluProduct& p, int64_t rows) {
  return p.layout(rows, p.call.dims[1], p.call.dims[2], p.call.has(kTransposed));
}

Product Fused(const GeluProduct& p) {
  CheckOneDtype(p, p.pre_MO);
  if (!p.backward) CheckOneDtype(p, p.bias_O);
  return MakeProduct(p.row(), Layout(p, p.M), p.from_MI, p.w, p.to_MO, p.workspace,
                     {.epilogue = p.backward ? GemmEpilogue::kDGelu : GemmEpilogue::kGeluAuxBias,
                      .bias = p.bias_O.data,
                      .aux = p.pre_MO.data});
}

// The library wants rows of the GELU's input in multiples of 8 elements. fp32 is computed for
// exactness, so it does without an epilogue's approximate tanh.
bool MayFuse(const Product& fused) {
  return fused.problem.ldd % 8 == 0 && fused.problem.align_aux == kMostAlign &&
         fused.problem.in != Dtype::kF32 && fused.problem.out == fused.problem.in;
}

// ---- panel by panel ----------------------------------------------------------------------------

// How the product's fp32 sums are cut into panels. fp32 results hold their own sums, in one panel;
// others have three quarters of the workspace, the library's product the rest.
struct Panels {
  int64_t rows;
  uint64_t workspace_offset;  // of what is left to the library
};

Panels PanelsOf(const GeluProduct& p) {
  if (p.to_MO.dtype == Dtype::kF32) return {p.M, 0};
  const uint64_t row_bytes = static_cast<uint64_t>(p.O) * sizeof(float);
  const uint64_t bytes = Present(p.workspace) ? p.workspace.bytes / 4 * 3 : 0;
  int64_t rows = std::min(p.M, static_cast<int64_t>(bytes / row_bytes));
  if (rows == 0) {
    ThrowRuntime("{}: a row of {} sums does not fit into the launch's workspace of {} bytes",
                 p.row(), p.O, p.workspace.bytes);
  }
  if (rows < p.M && rows > kPanelAlign) rows -= rows % kPanelAlign;
  return {rows, AlignUp(static_cast<uint64_t>(rows) * row_bytes, kWorkspaceAlignment)};
}

// Where the sums of the panel that begins at `row` go.
KernelArg Sums(const GeluProduct& p, int64_t row) {
  if (p.to_MO.dtype == Dtype::kF32) return Rows(p.to_MO, row, p.O);
  return {p.workspace.data, p.workspace.bytes, Dtype::kF32};
}

Product Panel(const GeluProduct& p, const Panels& panels, int64_t row, int64_t R) {
  return MakeProduct(p.row(), Layout(p, R), Rows(p.from_MI, row, p.I), p.w, Sums(p, row),
                     p.workspace, {.workspace_offset = panels.workspace_offset});
}

void RunSeparate(const GeluProduct& p) {
  const Panels panels = PanelsOf(p);
  const cudaStream_t stream = StreamOf(p.call);
  for (int64_t row = 0; row < p.M; row += panels.rows) {
    const int64_t R = std::min(panels.rows, p.M - row);
    Run(p.call, Panel(p, panels, row, R));
    const FloatArray sums = ArrayOf(Sums(p, row)), pre = ArrayOf(Rows(p.pre_MO, row, p.O));
    const FloatArray to = ArrayOf(Rows(p.to_MO, row, p.O));
    if (p.backward) {
      LaunchGeluBackward(sums, pre, to, R * p.O, stream);
    } else {
      LaunchGeluForward(sums, ArrayOf(p.bias_O), pre, to, R, p.O, stream);
    }
    CheckKernelLaunch(p.backward ? "a GELU's gradient" : "a GELU");
  }
}

// ---- either ------------------------------------------------------------------------------------

void RunFaster(const GeluProduct& p) {
  const Product fused = Fused(p);
  const bool ran =
      MayFuse(fused) && Plans(p.call).Fused(fused.problem, true) && TryRun(p.call, fused);
  if (!ran) RunSeparate(p);
}

// Tunes both ways and keeps the faster.
void Prepare(const GeluProduct& p) {
  const Product fused = Fused(p);
  const double fused_ms = MayFuse(fused) ? Tune(p.call, fused) : 0;
  const Panels panels = PanelsOf(p);
  Tune(p.call, Panel(p, panels, 0, panels.rows));
  Plans(p.call).ChooseFusion(fused.problem, fused_ms, [&] {
    return TimeLaunches(StreamOf(p.call), [&] { RunSeparate(p); });
  });
  Plans(p.call).Save();
}

}  // namespace

void MatmulGeluForward(const KernelCall& call) {
  const auto [M, K, N] = FirstDims<3>(call.dims);
  if (M > 1) return RunFaster(ForwardProduct(call));
  LaunchRowProduct({.a_K = ArrayOf(Arg(call, 0)),
                    .w = ArrayOf(Arg(call, 1)),
                    .bias_N = ArrayOf(Arg(call, 2)),
                    .y_N = ArrayOf(Arg(call, 3)),
                    .gelu_N = ArrayOf(Arg(call, 4)),
                    .K = K,
                    .N = N,
                    .transposed = call.has(kTransposed)},
                   StreamOf(call));
  CheckKernelLaunch("the product of a row and its GELU");
}
void MatmulGeluBackward(const KernelCall& call) { RunFaster(BackwardProduct(call)); }
void PrepareMatmulGeluForward(const KernelCall& call) {
  if (call.dims[0] > 1) Prepare(ForwardProduct(call));
}
void PrepareMatmulGeluBackward(const KernelCall& call) { Prepare(BackwardProduct(call)); }

}  // namespace zeroplan::cuda
