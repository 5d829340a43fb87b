// The dims of the attention rows, and the places of heads in a row of qkv. Plain C++, because CUDA
// sources include this.
//
// Legend: B micro-batch, T sequence, H heads of queries, G of keys and values, D head size.
#pragma once

#include <compare>
#include <cstdint>

#include "core/base/host_device.h"

namespace zeroplan {

struct KernelCall;

struct AttentionDims {
  int64_t B, T, H, G, D;

  auto operator<=>(const AttentionDims&) const = default;

  // Elements of a token's row in qkv and in out.
  ZEROPLAN_HOST_DEVICE int64_t QkvRow() const { return (H + 2 * G) * D; }
  ZEROPLAN_HOST_DEVICE int64_t OutRow() const { return H * D; }
  // Query heads that share one head of keys and values.
  ZEROPLAN_HOST_DEVICE int64_t Sharing() const { return H / G; }
  // The columns in a row of qkv where query head h, and the keys and values of head g begin.
  ZEROPLAN_HOST_DEVICE int64_t QueryColumn(int64_t h) const { return h * D; }
  ZEROPLAN_HOST_DEVICE int64_t KeyColumn(int64_t g) const { return (H + g) * D; }
  ZEROPLAN_HOST_DEVICE int64_t ValueColumn(int64_t g) const { return (H + G + g) * D; }
};

// The dims of an attention row's launch. (Not inline, because CUDA sources do not include fmt.)
AttentionDims AttentionDimsOf(const KernelCall& call);

}  // namespace zeroplan
