// Bytes as text.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>

namespace zeroplan {

// Two lower-case hexadecimal digits a byte, in the order of memory.
inline std::string BytesToHex(const void* bytes, std::size_t count) {
  std::string hex;
  for (std::size_t i = 0; i < count; ++i) {
    hex += fmt::format("{:02x}", static_cast<const unsigned char*>(bytes)[i]);
  }
  return hex;
}

}  // namespace zeroplan
