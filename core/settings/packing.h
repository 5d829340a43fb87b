// How documents become sequences of the length that is trained on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/words.h"

namespace zeroplan {

enum class Packing : uint8_t {
  kStream,     // windows of one stream of tokens, over the borders of documents
  kDocuments,  // whole documents, several a sequence; no document attends to another or continues
               // one
  kOff,        // one document a sequence, padded
};

template <>
inline constexpr WordTable<Packing, 3> kWords<Packing> = {
    {{"stream", Packing::kStream}, {"documents", Packing::kDocuments}, {"off", Packing::kOff}}};
constexpr std::string_view PackingName(Packing packing) { return WordOf(packing); }

// Below: limits on the number and length of the documents in a row of a batch (starts_BT of
// kernel_rows.inc).

// 0: no limit. Padding counts as documents.
struct DocumentLimits {
  int64_t most_in_row = 0;
  int64_t longest = 0;  // tokens

  static DocumentLimits Either(const DocumentLimits& a, const DocumentLimits& b) {
    return {std::max(a.most_in_row, b.most_in_row), std::max(a.longest, b.longest)};
  }
};

// Fills in the document starts of padding from position `begin` of a row on. Padding is cut into
// documents of at most `longest` tokens, because a longer one would be the longest of its batch and
// would cost attention work for nothing. `longest` 0: one document.
inline void FillPaddingStarts(std::span<int32_t> row, int64_t begin, int64_t longest) {
  const auto end = static_cast<int64_t>(row.size());
  const int64_t step = longest > 0 ? longest : end;
  for (int64_t t = begin; t < end; ++t) {
    row[static_cast<size_t>(t)] = static_cast<int32_t>(begin + (t - begin) / step * step);
  }
}

}  // namespace zeroplan
