// UTF-8 as the readers of text need it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace zeroplan {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

// Whether `text` is well-formed UTF-8 (Unicode, table 3-7: no overlong forms, no surrogates).
bool IsValidUtf8(std::string_view text);

// Bytes of the code point that starts with `lead`. REQUIRES: it does start one.
inline size_t Utf8Length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The code point at `*at`, which moves behind it. REQUIRES: `text` is well-formed, and *at the
// first byte of a code point.
inline char32_t NextCodePoint(std::string_view text, size_t* at) {
  const auto byte = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[*at + i]));
  };
  const char32_t lead = byte(0);
  char32_t code_point = lead;
  size_t length = 1;
  if (lead >= 0xF0) {
    code_point = (lead & 7) << 18 | (byte(1) & 63) << 12 | (byte(2) & 63) << 6 | (byte(3) & 63);
    length = 4;
  } else if (lead >= 0xE0) {
    code_point = (lead & 15) << 12 | (byte(1) & 63) << 6 | (byte(2) & 63);
    length = 3;
  } else if (lead >= 0x80) {
    code_point = (lead & 31) << 6 | (byte(1) & 63);
    length = 2;
  }
  *at += length;
  return code_point;
}

// The start of the code point that ends at `at`. REQUIRES: at > 0, well-formed text.
inline size_t PreviousStart(std::string_view text, size_t at) {
  do {
    --at;
  } while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

void AppendUtf8(char32_t code_point, std::string* out);

// `bytes` with U+FFFD in place of each longest start of a code point that is not completed, and of
// each byte that starts none: Python's bytes.decode("utf-8", errors="replace").
std::string ReplaceInvalidUtf8(std::string_view bytes);

// How many bytes at the end of `bytes` are the start of a code point that later bytes may complete:
// 0 to 3.
size_t IncompleteUtf8Tail(std::string_view bytes);

}  // namespace zeroplan
