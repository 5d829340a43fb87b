#include "text/tokenizer/regex.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "text/tokenizer/pattern.h"
#include "text/tokenizer/unicode.h"
#include "text/tokenizer/word_scanner.h"

namespace zeroplan {
namespace {

std::vector<std::string> Matches(std::string_view pattern, std::string_view text) {
  std::vector<std::string> found;
  Regex(pattern, "").ForEachMatch(text, [&](size_t begin, size_t end) {
    found.emplace_back(text.substr(begin, end - begin));
  });
  return found;
}

using Texts = std::vector<std::string>;

TEST_CASE("regex: Oniguruma's meaning where PCRE2's differs") {
  // \s has no U+180E, \h is a hexadecimal digit, \v one character.
  CHECK(Matches("\\s", "\xE1\xA0\x8E \xC2\x85") == Texts{" ", "\xC2\x85"});
  CHECK(Matches("\\h+", "xaF09 g") == Texts{"aF09"});
  CHECK(Matches("\\v", "\n\x0b") == Texts{"\x0b"});
  // \w has marks and letter numbers.
  CHECK(Matches("\\w+", "a\xCC\x81_1\xE2\x85\xA0 -") == Texts{"a\xCC\x81_1\xE2\x85\xA0"});
  // ^ and $ are of lines, . is not a line break.
  CHECK(Matches("^.", "ab\ncd") == Texts{"a", "c"});
  CHECK(Matches(".$", "ab\ncd") == Texts{"b", "d"});
  // {n,m}+ repeats, {,m} starts at none.
  CHECK(Matches("a{2,3}+", "aaaaaaa") == Texts{"aaaaaa"});
  CHECK(Matches("ba{,2}", "baaa") == Texts{"baa"});
  CHECK(Matches("a{x}", "a{x}") == Texts{"a{x}"});
  // Classes within classes, and what both have.
  CHECK(Matches("[\\p{L}&&[^a-y]]+", "xyzzy\xC3\xA9") == Texts{"zz", "\xC3\xA9"});
  CHECK(Matches("[a[0-9]]+", "a1b") == Texts{"a1"});
  CHECK(Matches("[\\S]+", "ab cd") == Texts{"ab", "cd"});
  // Possessive ones and looking around.
  CHECK(Matches("a++b|a", "aab a") == Texts{"aab", "a"});
  CHECK(Matches("(?<=a)b(?!c)", "ab abc") == Texts{"b"});
  CHECK(Matches("(?i:LL)", "ll Ll") == Texts{"ll", "Ll"});
  // An empty match does not follow a match directly.
  CHECK(Matches("a*", "aab").size() == 2);
}

TEST_CASE("regex: what may mean something else is refused") {
  for (const char* pattern :
       {"\\b",         "(?m:a)", "\\1(a)", "[[:alpha:]]", "\\p{Han}", "(?i:ss)", "(?i:\xC3\xA9)",
        "(?i:\\w)",    "[b-a]",  "[",      "a)",          "(a",       "*",       "\\",
        "\\x{110000}", "\\xFF",  "a{2}?",  "(?P<n>a)",    "\\K",      "\\R"}) {
    CAPTURE(pattern);
    const std::string message = ErrorOf(ExitCode::kUsage, [&] { Regex(pattern, "f:1: key: "); });
    CHECK(Has(message, "f:1: key: the regular expression"));
  }
}

TEST_CASE("regex: categories do not depend on the version of PCRE2") {
  std::string all;
  for (char32_t c = 0; c < kCodePoints; ++c) {
    if (c < 0xD800 || c >= 0xE000) AppendUtf8(c, &all);
  }
  for (const std::string_view name : {"L", "Lu", "M", "N", "P", "S", "Cn"}) {
    CAPTURE(name);
    const CodePointSet set = CategorySet(name);
    REQUIRE(!set.empty());
    size_t expected = 0;
    for (const CodePointRange& range : set) expected += range.last - range.first + 1;
    size_t count = 0;
    bool all_inside = true;
    Regex(fmt::format("\\p{{{}}}", name), "").ForEachMatch(all, [&](size_t begin, size_t) {
      ++count;
      all_inside = all_inside && Contains(set, NextCodePoint(all, &begin));
    });
    CHECK(count == expected);
    CHECK(all_inside);
  }
}

TEST_CASE("word scanner: the pieces are the matches of the regular expression") {
  constexpr std::string_view kParts[] = {"a",
                                         "Z",
                                         "the",
                                         " ",
                                         "  ",
                                         "\t",
                                         "\n",
                                         "\r\n",
                                         "\r",
                                         "'",
                                         "s",
                                         "'s",
                                         "'LL",
                                         "'re",
                                         "'VE",
                                         "7",
                                         "123",
                                         "4567",
                                         ".",
                                         "!?",
                                         "\xC2\xA0",
                                         "\xE3\x80\x80",
                                         "\xC5\xBF",
                                         "\xE2\x84\xAA",
                                         "\xCC\x81",
                                         "\xE4\xB8\xAD",
                                         "\xF0\x9F\x98\x80",
                                         "\xC2\xBD",
                                         "\xD9\xA1",
                                         "\xE2\x80\x8B",
                                         "\xC2\x85",
                                         "_",
                                         "/",
                                         "\x1c",
                                         "\xE1\xA0\x8E"};
  std::mt19937 random(7);
  for (const std::string_view expression : {kGpt2Pattern, kLlama3Pattern, kQwenPattern}) {
    CAPTURE(expression);
    const WordScanner scanner = ScannerFor(expression);
    REQUIRE((scanner != nullptr));
    const Regex regex(expression, "");
    for (int round = 0; round < 20'000; ++round) {
      std::string text;
      for (size_t n = random() % 12; n > 0; --n) {
        if (random() % 8 == 0) {
          const char32_t c = random() % kCodePoints;
          AppendUtf8(c >= 0xD800 && c < 0xE000 ? U'x' : c, &text);
        } else {
          text += kParts[random() % std::size(kParts)];
        }
      }
      std::vector<Piece> expected;
      regex.ForEachMatch(text, [&](size_t begin, size_t end) { expected.push_back({begin, end}); });
      std::vector<Piece> found;
      for (size_t at = 0; at < text.size(); at = found.back().end) {
        found.push_back({at, scanner(text, at)});
      }
      if (found != expected) FAIL("pieces of " << text);
    }
  }
  CHECK((ScannerFor("\\s+") == nullptr));
}

}  // namespace
}  // namespace zeroplan
