// CSV cells (RFC 4180).
#pragma once

#include <string>
#include <string_view>

namespace zeroplan {

// `text` as a cell, with quotes only if it needs them, and with its own quotes doubled.
inline std::string CsvCell(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

}  // namespace zeroplan
