#include "core/base/utf8.h"

#include <doctest/doctest.h>

#include <string>

namespace zeroplan {
namespace {

TEST_CASE("utf8: code points there and back") {
  std::string all;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c < 0xD800 || c >= 0xE000) AppendUtf8(c, &all);
  }
  CHECK(IsValidUtf8(all));
  CHECK((ReplaceInvalidUtf8(all) == all));
  size_t at = 0;
  char32_t expected = 0;
  bool same = true;
  while (at < all.size()) {
    const size_t start = at;
    same = same && NextCodePoint(all, &at) == expected && Utf8Length(all[start]) == at - start &&
           PreviousStart(all, at) == start;
    expected = expected == 0xD7FF ? 0xE000 : expected + 1;
  }
  CHECK(same);
  CHECK(expected == 0x110000);
}

TEST_CASE("utf8: what is not well-formed") {
  for (const char* bad : {"\x80", "abcdefgh\xff", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80",
                          "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xe4\xb8", "\xf5"}) {
    CAPTURE(std::string(bad));
    CHECK_FALSE(IsValidUtf8(bad));
    CHECK(IsValidUtf8(ReplaceInvalidUtf8(bad)));
  }
  CHECK(ReplaceInvalidUtf8("a\xf0\x9f\x98z\xe4\xb8") == "a\xEF\xBF\xBDz\xEF\xBF\xBD");
}

TEST_CASE("utf8: the start of a character at the end") {
  CHECK(IncompleteUtf8Tail("") == 0);
  CHECK(IncompleteUtf8Tail("a\xe4\xb8\xad") == 0);
  CHECK(IncompleteUtf8Tail("a\xe4\xb8") == 2);
  CHECK(IncompleteUtf8Tail("\xe4") == 1);
  CHECK(IncompleteUtf8Tail("\xf0\x9f\x98") == 3);
  CHECK(IncompleteUtf8Tail("\xf0\x8f") == 0);  // no later byte makes it one
  CHECK(IncompleteUtf8Tail("\x80\x80") == 0);
  CHECK(IncompleteUtf8Tail("\xff") == 0);
}

}  // namespace
}  // namespace zeroplan
