// Text functions: UTF-8 for readers, escaping for terminals, splitting, quoting for a shell, and
// suggestions of known names.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

// Whether `text` is well-formed UTF-8 (Unicode, table 3-7: no overlong forms, no surrogates).
bool IsValidUtf8(std::string_view text);

// Bytes of the code point that starts with `lead`. REQUIRES: `lead` does start one.
inline size_t Utf8Length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Returns the code point at `*at`, and moves `*at` behind it. REQUIRES: `text` is well-formed, and
// *at the first byte of a code point.
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

// `bytes` with U+FFFD in place of each longest prefix of an incomplete code point, and of each byte
// that starts none: Python's bytes.decode("utf-8", errors="replace").
std::string ReplaceInvalidUtf8(std::string_view bytes);

// The number of bytes at the end of `bytes` that start a code point which later bytes may complete:
// 0 to 3.
size_t IncompleteUtf8Tail(std::string_view bytes);

// The next functions make texts of others (names of files, strings of configs, checkpoints,
// tokenizers and peers) safe for a terminal: no byte of them moves its cursor, colours it or ends
// its line.

// The number of bytes at `at` that must not reach a terminal unescaped: a control character (C0,
// delete, C1), a mark that reverses the direction of text (U+202A to U+202E, U+2066 to U+2069), a
// line separator (U+2028, U+2029), a byte order mark or noncharacter (U+FEFF, U+FFFE, U+FFFF), or a
// byte outside well-formed UTF-8. If 0, `*whole` is the number of bytes of the character there.
size_t UnprintableBytes(std::string_view text, size_t at, size_t* whole);

// `text` with unprintable bytes written out: "\x1b" for a byte, "\u202e" for a character beyond
// Latin-1, "\t" and "\r". Line feeds stay. Printable text stays as it is, so that escaping twice
// changes nothing.
std::string Escaped(std::string_view text);

// The same on one line and short, for a part of a message: line feeds become "
// ", and the text past `limit` bytes of `text` becomes "...".
std::string PrintableText(std::string_view text, size_t limit);

// The parts of `text` between separators, empty ones too. A separator at the end ends the last
// part; an empty text has none.
std::vector<std::string_view> Split(std::string_view text, char separator);
// The same for a list that a user wrote: the text behind its last comma is a part, even if empty.
std::vector<std::string_view> SplitList(std::string_view text);

// `text` with its letters A to Z in lower case; all else stays.
std::string LowerAscii(std::string_view text);

// `text` without the blanks at its ends.
std::string_view WithoutBlanks(std::string_view text);

// Words of a POSIX shell's command line, for text that is printed to be pasted, put into scripts,
// or passed to the shell of another host.

// 'it'\''s': `text` as one word, always in quotes. REQUIRES: no NUL in `text`.
std::string QuoteForShell(std::string_view text);

// The same, but without quotes if `text` is one word anyway, in any place of a command. `a=b` is
// quoted, because a command that begins with it would set a variable; `--name=value` is not.
std::string ShellWord(std::string_view text);

// `words` joined by spaces, each a ShellWord.
std::string ShellCommand(const std::vector<std::string>& words);

// "Did you mean ...?" for option values, presets and config keys: the nearest of `known` to `word`
// (edit distance <= 3 and < half its length; of several the one that begins most like it), or "".
std::string NearestName(std::string_view word, const std::vector<std::string>& known);

}  // namespace zeroplan
