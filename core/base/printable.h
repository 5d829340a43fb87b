// Texts of others (names of files, strings of configs, checkpoints, tokenizers and peers) as a
// terminal may show them: no byte of them moves its cursor, colours it or ends its line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace zeroplan {

// Bytes at `at` that a terminal must not get as they are: a control character (C0, delete, C1), a
// mark that reverses the direction of text (U+202A to U+202E, U+2066 to U+2069), a separator of
// lines (U+2028, U+2029), or a byte that is no part of well-formed UTF-8. 0: there are none, and
// *whole is how many bytes the character takes.
size_t UnprintableBytes(std::string_view text, size_t at, size_t* whole);

// `text` with these written out: "\x1b" for a byte, "\u202e" for a character beyond Latin-1, "\t"
// and
// "\r". Line feeds stay. What is printable stays as it is, so that doing it twice changes nothing.
std::string Escaped(std::string_view text);

// The same on one line and short, for a part of a message: line feeds are "\n", and what is past
// `limit` bytes of `text` is "...".
std::string PrintableText(std::string_view text, size_t limit);

}  // namespace zeroplan
