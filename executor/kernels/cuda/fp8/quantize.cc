// What makes tensors of eight bits. Legend: M rows, K columns.
#include "executor/kernels/cuda/fp8/quantize.h"

#include "core/base/fp8.h"
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/gemm/gemm_kernels.h"
#include "executor/kernels/cuda/launch_util.h"

namespace zeroplan::cuda {
namespace {

bool IsFp8(Dtype dtype) { return dtype == Dtype::kE4M3 || dtype == Dtype::kE5M2; }

}  // namespace

void LargestMagnitude(const KernelCall& call) {
  LaunchLargestMagnitude(Floats(call, 0), call.dims[0], Arg(call, 1).as<float>(),
                         LaunchStream(call));
  CheckLaunched(call);
}

void Quantize(const KernelCall& call) {
  const auto [M, K, rows] = FirstDims<3>(call.dims);
  const KernelArg &x_MK = Arg(call, 0), &amax = Arg(call, 1), &qt_KM = Arg(call, 2),
                  &q_MK = Arg(call, 4);
  const Dtype dtype = Present(q_MK) ? q_MK.dtype : qt_KM.dtype;
  const bool codes = IsFp8(x_MK.dtype);
  ZEROPLAN_CHECK(IsFp8(dtype) && (!codes || (dtype == x_MK.dtype && rows == 0)) &&
                     (codes || Floats(call, 0).data != nullptr),
                 "quantize: {} to {}", DtypeName(x_MK.dtype), DtypeName(dtype));
  ZEROPLAN_CHECK(codes || rows > 0 || Present(amax), "quantize without a largest magnitude");
  const int64_t multiple = rows == 0 ? kFp8Multiple : kFp8Block;
  ZEROPLAN_CHECK(M % multiple == 0 && K % multiple == 0, "quantize: {} x {}, not multiples of {}",
                 M, K, multiple);
  ZEROPLAN_CHECK(Aligned(x_MK.data) && Aligned(q_MK.data) && Aligned(qt_KM.data),
                 "quantize: x at {}, copies at {} and {}", x_MK.data, q_MK.data, qt_KM.data);
  LaunchQuantize({.x_MK = {x_MK.data, x_MK.dtype},
                  .amax = amax.as<const float>(),
                  .e5m2 = dtype == Dtype::kE5M2,
                  .q_MK = q_MK.as<uint8_t>(),
                  .qt_KM = qt_KM.as<uint8_t>(),
                  .scale = Arg(call, 5).as<float>(),
                  .scale_t = Arg(call, 3).as<float>(),
                  .M = M,
                  .K = K,
                  .rows = rows},
                 LaunchStream(call));
  CheckLaunched(call);
}

void BiasBackward(const KernelCall& call) {
  const KernelArg& workspace = Arg(call, 2);
  ColumnSums(Floats(call, 0), call.dims[0], call.dims[1], Floats(call, 1), call.has(kAccumulate),
             workspace.data, workspace.bytes, LaunchStream(call));
  CheckLaunched(call);
}

}  // namespace zeroplan::cuda
