// Makes the library's problem from a matmul row's arguments, for the rows' files.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/units.h"
#include "executor/kernels/cuda/cuda_launch.h"
#include "executor/kernels/cuda/float_array.h"
#include "executor/kernels/cuda/gemm/gemm_plans.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan::cuda {

struct Product {
  GemmProblem problem;
  GemmPointers pointers;
};

struct ProductExtras {
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  const KernelArg& c = kAbsent;  // added to the result; has d's dtype
  void* bias = nullptr;
  void* aux = nullptr;
  float scale = 1;  // factor of the matmul
  // Scales of 8-bit inputs.
  const void *first_scale = nullptr, *second_scale = nullptr;
  GemmScale first_mode = GemmScale::kNone, second_mode = GemmScale::kNone;
  bool fast_sums = false;
  uint64_t workspace_offset = 0;  // bytes at the start of the workspace that are used otherwise
};

// d = first * second with `layout`. Throws Error(kRuntime) for dtypes that the library does not
// multiply: both inputs must have one float dtype and the result that one or fp32, or both are
// 8-bit, at least one in E4M3, and the result has any float dtype.
inline Product MakeProduct(std::string_view row, const GemmLayout& layout, const KernelArg& first,
                           const KernelArg& second, const KernelArg& d, const KernelArg& workspace,
                           const ProductExtras& extras = {}) {
  const auto is_float = [](Dtype t) {
    return t == Dtype::kF32 || t == Dtype::kBF16 || t == Dtype::kF16;
  };
  const auto is_fp8 = [](Dtype t) { return t == Dtype::kE4M3 || t == Dtype::kE5M2; };
  const bool floats = first.dtype == second.dtype && is_float(first.dtype) &&
                      (d.dtype == first.dtype || d.dtype == Dtype::kF32);
  const bool fp8 = is_fp8(first.dtype) && is_fp8(second.dtype) && is_float(d.dtype) &&
                   (first.dtype == Dtype::kE4M3 || second.dtype == Dtype::kE4M3);
  if (!floats && !fp8) [[unlikely]] {
    ThrowRuntime(
        "{}: cuBLASLt does not multiply {} by {} into {}; give both inputs one float dtype and the "
        "result the same or fp32, or both inputs eight bits, one of them e4m3",
        row, DtypeName(first.dtype), DtypeName(second.dtype), DtypeName(d.dtype));
  }
  Product product;
  GemmPointers& p = product.pointers;
  p.a = layout.swapped ? second.data : first.data;
  p.b = layout.swapped ? first.data : second.data;
  p.c = extras.c.data;
  p.d = d.data;
  p.bias = extras.bias;
  p.aux = extras.aux;
  p.alpha = extras.scale;
  p.scale_a = layout.swapped ? extras.second_scale : extras.first_scale;
  p.scale_b = layout.swapped ? extras.first_scale : extras.second_scale;
  uint64_t bytes = 0;
  // The library refuses a workspace that is not aligned to 256 bytes; a program's buffers are
  // aligned to 128.
  constexpr uint64_t kAlign = 256;
  const auto begin = reinterpret_cast<uint64_t>(workspace.data);
  const uint64_t aligned = AlignUp(begin + extras.workspace_offset, kAlign);
  if (Present(workspace) && aligned + kAlign < begin + workspace.bytes) {
    p.workspace = reinterpret_cast<void*>(aligned);
    // The same for every buffer of one size, so that plans are found again.
    bytes = workspace.bytes - AlignUp(extras.workspace_offset, kAlign) - kAlign;
  }
  product.problem =
      MakeGemmProblem(layout, first.dtype, d.dtype, extras.epilogue, Present(extras.c), p, bytes);
  GemmProblem& problem = product.problem;
  if (layout.swapped) problem.in = second.dtype;
  problem.in_b = layout.swapped ? first.dtype : second.dtype;
  problem.scale_a = layout.swapped ? extras.second_mode : extras.first_mode;
  problem.scale_b = layout.swapped ? extras.first_mode : extras.second_mode;
  problem.fast_sums = extras.fast_sums;
  return product;
}

inline FloatArray ArrayOf(const KernelArg& arg) { return {arg.data, arg.dtype}; }

inline GemmPlans& Plans(const KernelCall& call) { return *call.context.cuda->gemm; }
inline cudaStream_t StreamOf(const KernelCall& call) { return call.context.cuda->stream; }

inline void Run(const KernelCall& call, const Product& product) {
  Plans(call).Run(product.problem, product.pointers, StreamOf(call));
}
inline bool TryRun(const KernelCall& call, const Product& product) {
  return Plans(call).TryRun(product.problem, product.pointers, StreamOf(call));
}
inline double Tune(const KernelCall& call, const Product& product) {
  return Plans(call).Tune(product.problem, product.pointers, StreamOf(call));
}

}  // namespace zeroplan::cuda
