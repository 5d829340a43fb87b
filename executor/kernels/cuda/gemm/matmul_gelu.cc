// Matrix products with a GELU on their fp32 sums: by the library's epilogues; or, where it has none
// or is slower, panel by panel of rows, the panel's sums in the workspace for a kernel of our own.
//
// Legend: M rows (tokens), K inputs, N outputs; R rows of a panel.
#include <algorithm>

#include "core/base/units.h"
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/elementwise/gelu.h"
#include "executor/kernels/cuda/gemm/matmul_product.h"
#include "executor/kernels/cuda/library_check.h"

namespace zeroplan::cuda {
namespace {

constexpr std::string_view kForward = "matmul_gelu_forward", kBackward = "matmul_gelu_backward";
// Panels have whole tiles of the library's kernels.
constexpr int64_t kPanelAlign = 128;
constexpr uint64_t kWorkspaceAlign = 256;

// The library wants rows of the GELU's input in multiples of 8 elements. fp32 is computed for
// exactness, so it does without an epilogue's approximate tanh.
bool MayFuse(const Product& fused) {
  return fused.problem.ldd % 8 == 0 && fused.problem.align_aux == kMostAlign &&
         fused.problem.in != Dtype::kF32 && fused.problem.out == fused.problem.in;
}

void CheckOneDtype(std::string_view row, const KernelArg& a, const KernelArg& b) {
  if (a.dtype == b.dtype) return;
  ThrowRuntime("{}: a GELU's bias, input and output must have one dtype, here are {} and {}", row,
               DtypeName(a.dtype), DtypeName(b.dtype));
}

KernelArg Rows(const KernelArg& arg, int64_t row, int64_t columns) {
  return {ElementAt(arg, row * columns), arg.bytes, arg.dtype};
}

// Panels of a product's fp32 sums. fp32 results hold their own sums, in one panel; others have
// three quarters of the workspace, the library's product the rest.
class Panels {
 public:
  Panels(std::string_view row, int64_t M, int64_t columns, const KernelArg& to,
         const KernelArg& workspace)
      : M_(M), columns_(columns), to_(to), workspace_(workspace), rows_(M) {
    if (to.dtype == Dtype::kF32) return;
    const uint64_t row_bytes = static_cast<uint64_t>(columns) * sizeof(float);
    const uint64_t bytes = Present(workspace) ? workspace.bytes / 4 * 3 : 0;
    rows_ = std::min(M, static_cast<int64_t>(bytes / row_bytes));
    if (rows_ == 0) {
      ThrowRuntime("{}: a row of {} sums does not fit into the launch's workspace of {} bytes", row,
                   columns, workspace.bytes);
    }
    if (rows_ < M && rows_ > kPanelAlign) rows_ -= rows_ % kPanelAlign;
    offset_ = AlignUp(static_cast<uint64_t>(rows_) * row_bytes, kWorkspaceAlign);
  }

  int64_t rows() const { return rows_; }
  uint64_t workspace_offset() const { return offset_; }
  // Where the sums of the panel that begins at `row` go.
  KernelArg Sums(int64_t row) const {
    if (to_.dtype == Dtype::kF32) return Rows(to_, row, columns_);
    return {workspace_.data, workspace_.bytes, Dtype::kF32};
  }
  // Calls fn(first row, rows) for each panel.
  template <typename Fn>
  void ForEach(Fn&& fn) const {
    for (int64_t row = 0; row < M_; row += rows_) fn(row, std::min(rows_, M_ - row));
  }

 private:
  int64_t M_, columns_;
  const KernelArg& to_;
  const KernelArg& workspace_;
  int64_t rows_;
  uint64_t offset_ = 0;
};

// ---- forward: a_MK w bias_N -> pre_MN y_MN workspace -------------------------------------------

Product FusedForward(const KernelCall& call) {
  const auto [M, K, N] = FirstDims<3>(call.dims);
  const KernelArg &bias_N = Arg(call, 2), &pre_MN = Arg(call, 3), &y_MN = Arg(call, 4);
  CheckOneDtype(kForward, pre_MN, y_MN);
  CheckOneDtype(kForward, bias_N, y_MN);
  return MakeProduct(
      kForward, ForwardLayout(M, K, N, call.has(kTransposed)), Arg(call, 0), Arg(call, 1), y_MN,
      Arg(call, 5),
      {.epilogue = GemmEpilogue::kGeluAuxBias, .bias = bias_N.data, .aux = pre_MN.data});
}

Product ForwardPanel(const KernelCall& call, const Panels& panels, int64_t row, int64_t R) {
  const int64_t K = call.dims[1], N = call.dims[2];
  return MakeProduct(kForward, ForwardLayout(R, K, N, call.has(kTransposed)),
                     Rows(Arg(call, 0), row, K), Arg(call, 1), panels.Sums(row), Arg(call, 5),
                     {.workspace_offset = panels.workspace_offset()});
}

Panels ForwardPanels(const KernelCall& call) {
  return Panels(kForward, call.dims[0], call.dims[2], Arg(call, 4), Arg(call, 5));
}

void RunSeparateForward(const KernelCall& call) {
  const int64_t N = call.dims[2];
  const KernelArg &bias_N = Arg(call, 2), &pre_MN = Arg(call, 3), &y_MN = Arg(call, 4);
  const Panels panels = ForwardPanels(call);
  panels.ForEach([&](int64_t row, int64_t R) {
    Run(call, ForwardPanel(call, panels, row, R));
    LaunchGeluForward(ArrayOf(panels.Sums(row)), ArrayOf(bias_N), ArrayOf(Rows(pre_MN, row, N)),
                      ArrayOf(Rows(y_MN, row, N)), R, N, StreamOf(call));
    CheckKernelLaunch("a GELU");
  });
}

// ---- backward: dy_MN w pre_MK -> dx_MK workspace -----------------------------------------------

Product FusedBackward(const KernelCall& call) {
  const auto [M, K, N] = FirstDims<3>(call.dims);
  const KernelArg &pre_MK = Arg(call, 2), &dx_MK = Arg(call, 3);
  CheckOneDtype(kBackward, pre_MK, dx_MK);
  return MakeProduct(kBackward, BackwardDataLayout(M, K, N, call.has(kTransposed)), Arg(call, 0),
                     Arg(call, 1), dx_MK, Arg(call, 4),
                     {.epilogue = GemmEpilogue::kDGelu, .aux = pre_MK.data});
}

Product BackwardPanel(const KernelCall& call, const Panels& panels, int64_t row, int64_t R) {
  const int64_t K = call.dims[1], N = call.dims[2];
  return MakeProduct(kBackward, BackwardDataLayout(R, K, N, call.has(kTransposed)),
                     Rows(Arg(call, 0), row, N), Arg(call, 1), panels.Sums(row), Arg(call, 4),
                     {.workspace_offset = panels.workspace_offset()});
}

Panels BackwardPanels(const KernelCall& call) {
  return Panels(kBackward, call.dims[0], call.dims[1], Arg(call, 3), Arg(call, 4));
}

void RunSeparateBackward(const KernelCall& call) {
  const int64_t K = call.dims[1];
  const KernelArg &pre_MK = Arg(call, 2), &dx_MK = Arg(call, 3);
  const Panels panels = BackwardPanels(call);
  panels.ForEach([&](int64_t row, int64_t R) {
    Run(call, BackwardPanel(call, panels, row, R));
    LaunchGeluBackward(ArrayOf(panels.Sums(row)), ArrayOf(Rows(pre_MK, row, K)),
                       ArrayOf(Rows(dx_MK, row, K)), R * K, StreamOf(call));
    CheckKernelLaunch("a GELU's gradient");
  });
}

// Tunes both ways and keeps the faster.
void Prepare(const KernelCall& call, const Product& fused, const Product& panel,
             void (*run_separate)(const KernelCall&)) {
  const double fused_ms = MayFuse(fused) ? Tune(call, fused) : 0;
  Tune(call, panel);
  Plans(call).ChooseFusion(fused.problem, fused_ms, [&] {
    return TimeLaunches(StreamOf(call), [&] { run_separate(call); });
  });
  Plans(call).Save();
}

bool RanFused(const KernelCall& call, const Product& fused) {
  return MayFuse(fused) && Plans(call).Fused(fused.problem, true) && TryRun(call, fused);
}

}  // namespace

void MatmulGeluForward(const KernelCall& call) {
  if (!RanFused(call, FusedForward(call))) RunSeparateForward(call);
}

void PrepareMatmulGeluForward(const KernelCall& call) {
  const Panels panels = ForwardPanels(call);
  Prepare(call, FusedForward(call), ForwardPanel(call, panels, 0, panels.rows()),
          RunSeparateForward);
}

void MatmulGeluBackward(const KernelCall& call) {
  if (!RanFused(call, FusedBackward(call))) RunSeparateBackward(call);
}

void PrepareMatmulGeluBackward(const KernelCall& call) {
  const Panels panels = BackwardPanels(call);
  Prepare(call, FusedBackward(call), BackwardPanel(call, panels, 0, panels.rows()),
          RunSeparateBackward);
}

}  // namespace zeroplan::cuda
