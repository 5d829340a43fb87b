#include "executor/device/cuda/cuda_handles.h"

#include <cstring>

#include "core/base/error.h"
#include "core/base/log.h"

namespace zeroplan {

void CheckCuda(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  int device = -1;
  cudaGetDevice(&device);
  const char* name = std::strrchr(file, '/');
  ThrowRuntime("CUDA device {}: {} ({}) in {} at {}:{}", device, cudaGetErrorString(status),
               cudaGetErrorName(status), call, name == nullptr ? file : name + 1, line);
}

void WarnCuda(cudaError_t status, const char* call) noexcept {
  if (status == cudaSuccess) return;
  try {
    LogWarning("{}: {}", call, cudaGetErrorString(status));
  } catch (...) {
  }
}

}  // namespace zeroplan
