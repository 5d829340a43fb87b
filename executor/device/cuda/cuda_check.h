// Turns failures of the CUDA runtime into errors that name call, place and device.
#pragma once

#include <cuda_runtime_api.h>

namespace zeroplan {

// Throws Error(kRuntime) unless `status` is success.
void CheckCuda(cudaError_t status, const char* call, const char* file, int line);
// For destructors: logs instead.
void WarnCuda(cudaError_t status, const char* call) noexcept;

}  // namespace zeroplan

#define ZEROPLAN_CUDA(call) ::zeroplan::CheckCuda((call), #call, __FILE__, __LINE__)
