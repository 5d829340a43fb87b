#include "core/base/printable.h"

#include <doctest/doctest.h>

namespace zeroplan {
namespace {

TEST_CASE("what a terminal would obey is written out") {
  CHECK(Escaped("plain, \xc3\xa4 and \xe6\xbc\xa2\n") == "plain, \xc3\xa4 and \xe6\xbc\xa2\n");
  CHECK(Escaped("\x1b[31m") == "\\x1b[31m");
  CHECK(Escaped(std::string("\0\t\r\x7f", 4)) == "\\x00\\t\\r\\x7f");
  CHECK(Escaped("\xc2\x9b") == "\\xc2\\x9b");  // C1: a control sequence in one character
  CHECK(Escaped("\x9b") == "\\x9b");
  CHECK(Escaped("\xe2\x80\xae"
                "exe.txt") == "\\u202eexe.txt");
  CHECK(Escaped("\xe2\x81\xa6") == "\\u2066");
  CHECK(Escaped("\xe2\x80\xa8") == "\\u2028");
  CHECK(Escaped("a\xff\xe6\xbc") == "a\\xff\\xe6\\xbc");
  CHECK(Escaped("\xed\xa0\x80\xc0\xaf") == "\\xed\\xa0\\x80\\xc0\\xaf");  // a surrogate; too long
  CHECK(Escaped(Escaped("\x1b\xff")) == Escaped("\x1b\xff"));
}

TEST_CASE("a part of a message is one line and short") {
  CHECK(PrintableText("a\nb", 10) == "a\\nb");
  CHECK(PrintableText("abcdef", 3) == "abc...");
  CHECK(PrintableText("ab\xe6\xbc\xa2", 4) == "ab...");  // no part of a character
  CHECK(PrintableText("\xe6", 1) == "\\xe6");
}

}  // namespace
}  // namespace zeroplan
