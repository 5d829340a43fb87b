#include "core/base/utf8.h"

#include <cstdint>
#include <cstring>

namespace zeroplan {
namespace {

// Of the code point at `at`: its bytes if it is well-formed, else 0, and in *taken how many bytes
// one U+FFFD stands for (Unicode, chapter 3.9, "maximal subparts").
size_t SequenceAt(std::string_view text, size_t at, size_t* taken) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  *taken = 1;
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const size_t length = Utf8Length(text[at]);
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < length; ++i, low = 0x80, high = 0xBF) {
    if (at + i >= text.size() || byte(i) < low || byte(i) > high) return 0;
    *taken = i + 1;
  }
  return length;
}

// Where the first byte at or after `at` stands that is not ASCII.
size_t SkipAscii(std::string_view text, size_t at) {
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + at, sizeof word);
    if ((word & 0x8080808080808080u) != 0) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

}  // namespace

bool IsValidUtf8(std::string_view text) {
  size_t taken = 0;
  for (size_t at = SkipAscii(text, 0); at < text.size();) {
    const size_t length = SequenceAt(text, at, &taken);
    if (length == 0) return false;
    at += length;
    if (length == 1) at = SkipAscii(text, at);
  }
  return true;
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto put = [&](char32_t byte) { *out += static_cast<char>(byte); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 63));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 63));
    put(0x80 | (code_point & 63));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 63));
    put(0x80 | (code_point >> 6 & 63));
    put(0x80 | (code_point & 63));
  }
}

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    size_t taken = 0;
    if (SequenceAt(bytes, at, &taken) == 0) {
      AppendUtf8(kReplacementCharacter, &out);
    } else {
      out += bytes.substr(at, taken);
    }
    at += taken;
  }
  return out;
}

size_t IncompleteUtf8Tail(std::string_view bytes) {
  for (size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const size_t at = bytes.size() - back;
    if ((static_cast<unsigned char>(bytes[at]) & 0xC0) == 0x80) continue;
    size_t taken = 0;
    const bool starts = static_cast<unsigned char>(bytes[at]) >= 0xC2 &&
                        static_cast<unsigned char>(bytes[at]) <= 0xF4;
    return starts && SequenceAt(bytes, at, &taken) == 0 && taken == back ? back : 0;
  }
  return 0;
}

}  // namespace zeroplan
