// Functions shared by the code that unpacks a KernelCall for a CUDA launcher.
#pragma once

#include <cuda_runtime_api.h>

#include "core/base/error.h"
#include "core/program/step_state.h"
#include "executor/kernels/cuda/cuda_launch.h"
#include "executor/kernels/cuda/float_array.h"
#include "executor/kernels/kernel_call.h"

namespace zeroplan::cuda {

// An argument of a float dtype; absent arguments stay absent.
inline FloatArray Floats(const KernelCall& call, size_t index) {
  const KernelArg& arg = Arg(call, index);
  if (arg.data == nullptr) return {};
  ZEROPLAN_CHECK(arg.dtype == Dtype::kF32 || arg.dtype == Dtype::kBF16 || arg.dtype == Dtype::kF16,
                 "{}: argument {} is {}", KernelInfo(call.id).name, index, DtypeName(arg.dtype));
  return {arg.data, arg.dtype};
}

inline cudaStream_t LaunchStream(const KernelCall& call) {
  ZEROPLAN_CHECK(call.context.cuda != nullptr, "{}: launched without a GPU",
                 KernelInfo(call.id).name);
  return call.context.cuda->stream;
}

// The scratch argument. REQUIRES: it has `bytes`.
inline void* ScratchOf(const KernelCall& call, size_t index, uint64_t bytes) {
  const KernelArg& arg = Arg(call, index);
  ZEROPLAN_CHECK(arg.data != nullptr && arg.bytes >= bytes, "{}: {} bytes of scratch, needs {}",
                 KernelInfo(call.id).name, arg.bytes, bytes);
  return arg.data;
}

// Called after a launcher: throws for a launch that the runtime refused.
inline void CheckLaunched(const KernelCall& call) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return;
  ThrowRuntime("the GPU refused kernel {} ({}): {}", KernelInfo(call.id).name,
               FormatDims(call.id, call.dims, call.scalars), cudaGetErrorString(error));
}

}  // namespace zeroplan::cuda
