#include "core/base/strings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace zeroplan {
namespace {

// Bytes of the code point at `at` if it is well-formed, else 0, and in *taken how many bytes one
// U+FFFD stands for (Unicode, chapter 3.9, "maximal subparts").
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

namespace {

bool IsUnprintable(char32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x2028 && c <= 0x202e) ||
         (c >= 0x2066 && c <= 0x2069) || c == 0xfeff || c == 0xfffe || c == 0xffff;
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

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::vector<std::string_view> SplitList(std::string_view text) {
  std::vector<std::string_view> parts = Split(text, ',');
  if (text.empty() || text.back() == ',') parts.push_back(text.substr(text.size()));
  return parts;
}

std::string LowerAscii(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string_view WithoutBlanks(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

std::string QuoteForShell(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + '\'';
}

std::string ShellWord(std::string_view text) {
  // Not "~", which is a home folder, nor "=" but in an option: zsh looks up "=name" as a command.
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,+@%";
  const bool option = text.starts_with('-');
  bool plain = !text.empty();
  for (const char c : text) {
    plain = plain && (kPlain.find(c) != std::string_view::npos || (option && c == '='));
  }
  return plain ? std::string(text) : QuoteForShell(text);
}

std::string ShellCommand(const std::vector<std::string>& words) {
  std::string command;
  for (const std::string& word : words) {
    if (!command.empty()) command += ' ';
    command += ShellWord(word);
  }
  return command;
}

namespace {

// Insertions, deletions, substitutions and swaps of neighbours ("satge") count one each.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, substituted});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before[j - 2] + 1);
      }
    }
    before.swap(previous);
    previous.swap(current);
  }
  return previous[b.size()];
}

// Characters that both begin with.
size_t Shared(std::string_view a, std::string_view b) {
  size_t count = 0;
  while (count < std::min(a.size(), b.size()) && a[count] == b[count]) ++count;
  return count;
}

}  // namespace

std::string NearestName(std::string_view word, const std::vector<std::string>& known) {
  constexpr size_t kMaxDistance = 3;
  size_t best = kMaxDistance + 1;
  std::string nearest;
  for (const std::string& name : known) {
    const size_t gap =
        name.size() > word.size() ? name.size() - word.size() : word.size() - name.size();
    if (gap > best) continue;  // also keeps a hostile, very long word cheap
    const size_t distance = EditDistance(word, name);
    if (distance > kMaxDistance || 2 * distance >= word.size()) continue;
    if (distance < best || (distance == best && Shared(word, name) > Shared(word, nearest))) {
      best = distance;
      nearest = name;
    }
  }
  return nearest;
}

}  // namespace zeroplan
