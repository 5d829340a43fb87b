// Texts: UTF-8 as readers need it, what a terminal may be shown, parts, words of a shell, and the
// name that was probably meant.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

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

// What follows makes texts of others (names of files, strings of configs, checkpoints, tokenizers
// and peers) fit for a terminal: no byte of them moves its cursor, colours it or ends its line.

// Bytes at `at` that a terminal must not get as they are: a control character (C0, delete, C1), a
// mark that reverses the direction of text (U+202A to U+202E, U+2066 to U+2069), a separator of
// lines (U+2028, U+2029), a byte order mark or what is none (U+FEFF, U+FFFE, U+FFFF), or a byte
// that is no part of well-formed UTF-8. 0: there are none, and *whole is how many bytes the
// character takes.
size_t UnprintableBytes(std::string_view text, size_t at, size_t* whole);

// `text` with these written out: "\x1b" for a byte, "\u202e" for a character beyond Latin-1, "\t"
// and "\r". Line feeds stay. What is printable stays as it is, so that doing it twice changes
// nothing.
std::string Escaped(std::string_view text);

// The same on one line and short, for a part of a message: line feeds are "\n", and what is past
// `limit` bytes of `text` is "...".
std::string PrintableText(std::string_view text, size_t limit);

// The parts of `text` between separators, empty ones too. A separator at the end ends the last
// part; an empty text has none.
std::vector<std::string_view> Split(std::string_view text, char separator);
// The same of a list that a user wrote: what is behind its last comma is a part, even if empty.
std::vector<std::string_view> SplitList(std::string_view text);

// `text` with its letters A to Z made small; all else stays.
std::string LowerAscii(std::string_view text);

// `text` without the blanks at its ends.
std::string_view WithoutBlanks(std::string_view text);

// Words of a POSIX shell's command line: what is printed to be pasted, put into scripts, or handed
// to the shell of another host.

// 'it'\''s': `text` as one word, in quotes whatever it is. No NUL in `text`.
std::string QuoteForShell(std::string_view text);

// The same, without quotes where it is one word anyway, wherever in a command it stands. An `a=b`
// is quoted, as a command that begins with one would set a variable; a `--name=value` is not.
std::string ShellWord(std::string_view text);

// `words` joined by spaces, each a ShellWord.
std::string ShellCommand(const std::vector<std::string>& words);

// "Did you mean ...?" for option values, presets and config keys: the nearest of `known` to `word`
// (edit distance <= 3 and < half its length; of several the one that begins most like it), or "".
std::string NearestName(std::string_view word, const std::vector<std::string>& known);

}  // namespace zeroplan
