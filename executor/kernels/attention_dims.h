// The dims of the attention rows, and where heads lie in a row of qkv. Plain: CUDA sources include
// this.
//
// Legend: B micro-batch, T sequence, H heads of queries, G of keys and values, D head size.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <span>

#include "core/base/host_device.h"

namespace zeroplan {

// How many documents a row of a batch may have, and how long (starts_BT of kernel_rows.inc).

// 0: no limit. Padding is documents too.
struct DocumentLimits {
  int64_t most_in_row = 0;
  int64_t longest = 0;  // tokens

  static DocumentLimits Either(const DocumentLimits& a, const DocumentLimits& b) {
    return {std::max(a.most_in_row, b.most_in_row), std::max(a.longest, b.longest)};
  }
};

// The starts of padding from position `begin` of a row on, in documents of at most `longest`: a
// long one would be the longest of its batch, and attention's work for nothing. 0: one document.
inline void FillPaddingStarts(std::span<int32_t> row, int64_t begin, int64_t longest) {
  const auto end = static_cast<int64_t>(row.size());
  const int64_t step = longest > 0 ? longest : end;
  for (int64_t t = begin; t < end; ++t) {
    row[static_cast<size_t>(t)] = static_cast<int32_t>(begin + (t - begin) / step * step);
  }
}

struct KernelCall;

struct AttentionDims {
  int64_t B, T, H, G, D;

  auto operator<=>(const AttentionDims&) const = default;

  // Elements of a token's row in qkv and in out.
  ZEROPLAN_HOST_DEVICE int64_t QkvRow() const { return (H + 2 * G) * D; }
  ZEROPLAN_HOST_DEVICE int64_t OutRow() const { return H * D; }
  // Query heads that share one head of keys and values.
  ZEROPLAN_HOST_DEVICE int64_t Sharing() const { return H / G; }
  // Where in a row of qkv query head h begins, and the keys and values of head g.
  ZEROPLAN_HOST_DEVICE int64_t QueryColumn(int64_t h) const { return h * D; }
  ZEROPLAN_HOST_DEVICE int64_t KeyColumn(int64_t g) const { return (H + g) * D; }
  ZEROPLAN_HOST_DEVICE int64_t ValueColumn(int64_t g) const { return (H + G + g) * D; }
};

// The dims of an attention row's launch. (Not inline: CUDA sources take no fmt.)
AttentionDims AttentionDimsOf(const KernelCall& call);

}  // namespace zeroplan
