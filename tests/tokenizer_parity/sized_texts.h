// Texts in one file, each behind its number of bytes (uint64), as the Python scripts write them.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace zeroplan {

// Views into `all`, the file's content.
inline std::vector<std::string_view> SplitSizedTexts(std::string_view all) {
  std::vector<std::string_view> texts;
  for (size_t at = 0; at < all.size();) {
    uint64_t size = 0;
    std::memcpy(&size, all.data() + at, sizeof size);
    texts.push_back(all.substr(at + sizeof size, size));
    at += sizeof size + size;
  }
  return texts;
}

}  // namespace zeroplan
