// Plain types and constants that launchers in .cu files and their callers share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/base/dtype.h"

namespace zeroplan::cuda {

// Elements of a float dtype in device memory; data == nullptr: absent.
struct FloatArray {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
};

// Elements of a vector access: 16 bytes in 16 bit, twice 16 bytes in fp32.
inline constexpr int kVector = 8;

inline bool Aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

}  // namespace zeroplan::cuda
