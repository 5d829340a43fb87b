// The GPU's attention kernels have as many heads of keys and values as of queries.
#pragma once

#include "core/base/error.h"
#include "executor/kernels/kernel_call.h"

namespace zeroplan::cuda {

struct UngroupedDims {
  int64_t B, T, C, H;  // C = H times the head size
};

inline UngroupedDims UngroupedDimsOf(const KernelCall& call) {
  const auto [B, T, H, G, D] = FirstDims<5>(call.dims);
  if (G != H) {
    ThrowRuntime("{} on a GPU takes as many heads of keys as of queries, not {} of {}",
                 KernelInfo(call.id).name, G, H);
  }
  return {B, T, H * D, H};
}

}  // namespace zeroplan::cuda
