// The dims of an attention row's launch.
#pragma once

#include "core/base/error.h"
#include "executor/kernels/attention_dims.h"
#include "executor/kernels/kernel_call.h"

namespace zeroplan {

inline AttentionDims AttentionDimsOf(const KernelCall& call) {
  const auto [B, T, H, G, D] = FirstDims<5>(call.dims);
  ZEROPLAN_CHECK(G > 0 && H % G == 0, "{} heads of queries, {} of keys", H, G);
  return {B, T, H, G, D};
}

}  // namespace zeroplan
