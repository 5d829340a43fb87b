// Products of eight bits. Legend: M, K, N as the row's.
#include <string>

#include "core/settings/setup_facts.h"
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/gemm/gemm_kernels.h"
#include "executor/kernels/cuda/gemm/matmul_product.h"
#include "executor/kernels/cuda/library_check.h"

namespace zeroplan::cuda {
namespace {

GemmScale ScaleOf(int64_t rows) {
  return rows == 0 ? GemmScale::kOne : rows == 1 ? GemmScale::kRows : GemmScale::kBlocks;
}

struct Fp8Product {
  // Whether the library adds bias and residual; else y starts from them, and the product is added.
  bool whole;
  Product product;
};

Fp8Product MakeFp8Product(const KernelCall& call, bool may_fuse) {
  const auto [M, K, N, rows_a, rows_b, fast] = FirstDims<6>(call.dims);
  const KernelArg &bias_N = Arg(call, 4), &residual_MN = Arg(call, 5), &y_MN = Arg(call, 6);
  const bool starts = Present(bias_N) || Present(residual_MN), adds = call.has(kAccumulate);
  ZEROPLAN_CHECK(!starts || !adds, "fp8_matmul: added to y with a bias or a residual");
  // The library's bias of an fp32 result is another dtype's.
  const bool may_bias =
      !Present(bias_N) || (bias_N.dtype == y_MN.dtype && y_MN.dtype != Dtype::kF32);
  const bool whole =
      may_fuse && may_bias && (!Present(residual_MN) || residual_MN.dtype == y_MN.dtype);
  const bool biased = whole && Present(bias_N);
  // The library has no fast sums with scales of blocks.
  const bool may_be_fast = fast != 0 && rows_a == 0 && rows_b == 0;
  const KernelArg& c = adds || (starts && !whole) ? y_MN : residual_MN;
  return {whole, MakeProduct("fp8_matmul", ForwardLayout(M, K, N, true), Arg(call, 0), Arg(call, 2),
                             y_MN, Arg(call, 7),
                             {.epilogue = biased ? GemmEpilogue::kBias : GemmEpilogue::kNone,
                              .c = c,
                              .bias = biased ? bias_N.data : nullptr,
                              .first_scale = Arg(call, 1).data,
                              .second_scale = Arg(call, 3).data,
                              .first_mode = ScaleOf(rows_a),
                              .second_mode = ScaleOf(rows_b),
                              .fast_sums = may_be_fast})};
}

void CheckGpuMultiplies() {
  const std::string lacks = Fp8GpuLacks({}, ComputeCapabilityHere());
  if (lacks.empty()) return;
  ThrowRuntime("fp8_matmul is not for this GPU: {}; leave out ⟦matmul_dtype⟧ fp8", lacks);
}

// The library has no algorithm, as `product` says: throws what that means.
[[noreturn]] void Refuse(const Product& product) {
  CheckGpuMultiplies();
  const int capability = ComputeCapabilityHere();
  const bool one_scale =
      product.problem.scale_a == GemmScale::kOne && product.problem.scale_b == GemmScale::kOne;
  ThrowRuntime(
      "fp8_matmul: cuBLASLt {} has no algorithm on a GPU of compute capability {}.{} for {}; {}",
      Lt().GetVersion(), capability / 10, capability % 10, GemmProblemText(product.problem),
      one_scale ? "leave out ⟦matmul_dtype⟧ fp8" : "use ⟦fp8_recipe⟧ tensor");
}

bool HasStart(const KernelCall& call) { return Present(Arg(call, 4)) || Present(Arg(call, 5)); }

}  // namespace

void Fp8Matmul(const KernelCall& call) {
  const Fp8Product first = MakeFp8Product(call, true);
  if (first.whole && TryRun(call, first.product)) return;
  if (!HasStart(call)) Refuse(first.product);
  StartFromBias(ArrayOf(Arg(call, 4)), ArrayOf(Arg(call, 5)), ArrayOf(Arg(call, 6)), call.dims[0],
                call.dims[2], StreamOf(call));
  CheckKernelLaunch("starting from a bias");
  const Product added = MakeFp8Product(call, false).product;
  if (!TryRun(call, added)) Refuse(added);
}

void PrepareFp8Matmul(const KernelCall& call) {
  CheckGpuMultiplies();
  const Fp8Product first = MakeFp8Product(call, true);
  if (!first.whole || Tune(call, first.product) == 0) {
    if (!HasStart(call)) Refuse(first.product);
    const Product added = MakeFp8Product(call, false).product;
    if (Tune(call, added) == 0) Refuse(added);
  }
  Plans(call).Save();
}

}  // namespace zeroplan::cuda
