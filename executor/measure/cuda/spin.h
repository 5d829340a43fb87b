// A kernel that only spends time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace zeroplan::cuda {

// Keeps `stream` busy for that long, so that work issued meanwhile runs without gaps afterwards.
void Spin(uint64_t nanoseconds, cudaStream_t stream);

}  // namespace zeroplan::cuda
