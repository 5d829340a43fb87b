#include "core/base/printable.h"

#include <fmt/format.h>

#include "core/base/utf8.h"

namespace zeroplan {
namespace {

bool IsUnprintable(char32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x2028 && c <= 0x202e) ||
         (c >= 0x2066 && c <= 0x2069);
}

bool IsPlain(char c) { return c >= 0x20 && c < 0x7f; }

void AppendEscaped(std::string_view unit, std::string& out) {
  if (unit == "\t") {
    out += "\\t";
  } else if (unit == "\r") {
    out += "\\r";
  } else if (unit == "\n") {
    out += "\\n";
  } else if (size_t at = 0; unit.size() > 2) {
    out += fmt::format("\\u{:04x}", static_cast<uint32_t>(NextCodePoint(unit, &at)));
  } else {
    for (const char byte : unit) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  }
}

std::string Escape(std::string_view text, bool lines) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    size_t whole = 1;
    const size_t unprintable =
        IsPlain(text[at]) || (lines && text[at] == '\n') ? 0 : UnprintableBytes(text, at, &whole);
    if (unprintable == 0) {
      out.append(text, at, whole);
      at += whole;
    } else {
      AppendEscaped(text.substr(at, unprintable), out);
      at += unprintable;
    }
  }
  return out;
}

}  // namespace

size_t UnprintableBytes(std::string_view text, size_t at, size_t* whole) {
  *whole = 1;
  if (IsPlain(text[at])) return 0;
  const auto lead = static_cast<unsigned char>(text[at]);
  const size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : Utf8Length(text[at]);
  if (length == 0 || at + length > text.size() || !IsValidUtf8(text.substr(at, length))) return 1;
  size_t next = at;
  if (IsUnprintable(NextCodePoint(text, &next))) return length;
  *whole = length;
  return 0;
}

std::string Escaped(std::string_view text) { return Escape(text, /*lines=*/true); }

std::string PrintableText(std::string_view text, size_t limit) {
  if (text.size() <= limit) return Escape(text, /*lines=*/false);
  // No part of a character.
  const std::string_view begin = text.substr(0, limit);
  return Escape(begin.substr(0, limit - IncompleteUtf8Tail(begin)), /*lines=*/false) + "...";
}

}  // namespace zeroplan
