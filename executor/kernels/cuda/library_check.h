// Turns failed calls of CUDA's libraries into errors that name the operation.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "core/base/error.h"
#include "executor/device/cuda/cuda_libraries.h"

namespace zeroplan {

inline void CheckRuntimeCall(cudaError_t status, std::string_view what) {
  if (status != cudaSuccess) [[unlikely]] {
    ThrowRuntime("CUDA failed at {}: {} ({})", what, cudaGetErrorString(status),
                 cudaGetErrorName(status));
  }
}

// A GPU's compute capability, 10 * major + minor: 89 of 8.9.
inline int ComputeCapabilityOf(int device) {
  int major = 0, minor = 0;
  CheckRuntimeCall(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                   "asking a GPU's compute capability");
  CheckRuntimeCall(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
                   "asking a GPU's compute capability");
  return 10 * major + minor;
}
// The same of this thread's GPU.
inline int ComputeCapabilityHere() {
  int device = 0;
  CheckRuntimeCall(cudaGetDevice(&device), "asking for a GPU");
  return ComputeCapabilityOf(device);
}

// Called after a launch of a kernel of our own.
inline void CheckKernelLaunch(std::string_view what) { CheckRuntimeCall(cudaGetLastError(), what); }

inline void CheckLtCall(cublasStatus_t status, std::string_view what) {
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]] {
    ThrowRuntime("cuBLASLt failed at {}: {}", what, Lt().GetStatusString(status));
  }
}

}  // namespace zeroplan
