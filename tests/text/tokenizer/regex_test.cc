
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "text/tokenizer/pattern.h"
#include "text/tokenizer/unicode.h"

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

TEST_CASE("regex: Oniguruma's syntax") {
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

// What the PyPI package `tokenizers` 0.23.3 finds: Split(Regex(pattern), "removed", invert=True).
TEST_CASE("regex: boundaries, scripts, groups and back references as the package has them") {
  CHECK(Matches("\\b\\w", "two words, \"one\"") == Texts{"t", "w", "o"});
  CHECK(Matches("\\B.", "abc d") == Texts{"b", "c"});
  CHECK(Matches("(\\w)\\1", "aabbc dd") == Texts{"aa", "bb", "dd"});
  CHECK(Matches("(?<q>['\"]).*?\\k<q>", "say \"it's\" 'so'") == Texts{"\"it's\"", "'so'"});
  CHECK(Matches("(?<p>\\((?:[^()]|\\g<p>)*\\))", "f(a(b)c) (d") == Texts{"(a(b)c)"});
  CHECK(Matches("\\p{Han}+|\\p{Hiragana}+", "漢字かな漢a") == Texts{"漢字", "かな", "漢"});
  CHECK(Matches("\\p{Greek}+", "αβγ abc δ") == Texts{"αβγ", "δ"});
  CHECK(Matches("\\p{^Han}+", "a漢b") == Texts{"a", "b"});
  CHECK(Matches("\\p{Emoji}+", "a😀1") == Texts{"😀1"});
  CHECK(Matches("[[:alpha:]]+", "aé1中_") == Texts{"aé", "中"});
  std::string punctuation;
  try {
    for (const std::string& match : Matches("[[:punct:]]+", "a,b.$+")) punctuation += match + ' ';
  } catch (const Error& error) {
    punctuation = error.what();  // of Oniguruma before 6.9.9
  }
  CHECK((punctuation == ", .$+ " || Has(punctuation, "another [[:punct:]] than the package")));
  CHECK(Matches("(?i:ss)", "SS ß ẞ ſs") == Texts{"SS", "ß", "ẞ", "ſs"});
  CHECK(Matches("(?i:é)+", "ÉéE") == Texts{"Éé"});
  CHECK(Matches("(?i)straße", "STRASSE Straße") == Texts{"STRASSE", "Straße"});
  CHECK(Matches("(?m:a.)", "a\nab") == Texts{"a\n", "ab"});
  CHECK(Matches("(?W:\\w)+", "aé1") == Texts{"a", "1"});
  CHECK(Matches("(?x) a b # c", "ab") == Texts{"ab"});
  CHECK(Matches("a{2}?", "aaaaa") == Texts{"aa", "aa", ""});
  CHECK(Matches("a{2}+", "aaaaa") == Texts{"aaaa"});
  CHECK(Matches("a\\Kb", "ab b") == Texts{"b"});
  CHECK(Matches("\\R", "a\r\nb\nc\xE2\x80\xA8 d") == Texts{"\r\n", "\n", "\xE2\x80\xA8"});
  CHECK(Matches("\\X",
                "e\xCC\x81"
                "a👩\u200D👩") == Texts{"e\xCC\x81", "a", "👩\u200D👩"});
  CHECK(Matches("\\A.|.\\z", "abc\nd") == Texts{"a", "d"});
  CHECK(Matches("\\Ga", "aaba") == Texts{"a", "a"});
  CHECK(Matches("(?~ab)", "xxabyy") == Texts{"xx", "byy"});
  CHECK(Matches("\\x{110000}|\\xFF", "a\xC3\xBF").empty());
}

TEST_CASE("regex: what the package refuses is refused, with the file, the key and the reason") {
  for (const char* pattern : {"[b-a]", "[", "a)", "(a", "*", "\\", "(?P<n>a)", "(?s)a", "\\p{Nope}",
                              "\\k<n>", "\\1", "[[:foo:]]", "\\p{Script=Han}", "\xff"}) {
    CAPTURE(std::string(pattern));
    const std::string message = ErrorOf(ExitCode::kUsage, [&] { Regex(pattern, "f:1: key: "); });
    CHECK(Has(message, "f:1: key: the regular expression"));
    CHECK(Has(message, "; rewrite it"));
  }
  CHECK(ErrorOf(ExitCode::kUsage, [] { Regex("a)", "f:1: key: "); }) ==
        "f:1: key: the regular expression a) cannot be used: unmatched close parenthesis; rewrite "
        "it");
  CHECK(Has(ErrorOf(ExitCode::kUsage, [] { Regex(std::string(300, '('), ""); }),
            "parse depth limit over"));
  // A long one is not printed whole.
  CHECK(ErrorOf(ExitCode::kUsage, [] { Regex(std::string(1'500'000, 'a') + ")", "f: "); }).size() <
        500);
}

TEST_CASE("regex: an expression that runs away gives up with an error") {
  const auto message_of = [](std::string_view pattern, const std::string& text) {
    return ErrorOf(ExitCode::kUsage,
                   [&] { Regex(pattern, "f:1: key: ").ForEachMatch(text, [](size_t, size_t) {}); });
  };
  // Retries of one match.
  CHECK(Has(message_of("(?:a|a)*[bc]", std::string(40, 'a') + "d b"),
            "f:1: key: the regular expression (?:a|a)*[bc] gave up on a text (retry-limit-in-match "
            "over); simplify it"));
  // Memory.
  CHECK(Has(message_of("(?:a|b)*", std::string(9'000'000, 'a')), "match-stack limit over"));
}

TEST_CASE("regex: categories do not depend on the version of Oniguruma") {
  std::string all;
  for (char32_t c = 0; c < kCodePoints; ++c) {
    if (c < 0xD800 || c >= 0xE000) AppendUtf8(c, &all);
  }
  std::vector<std::string_view> names(std::begin(kCategoryNames), std::end(kCategoryNames));
  names.insert(names.end(), {"L", "M", "N", "P", "S", "Z", "C"});
  for (const std::string_view name : names) {
    if (name == "Cs") continue;
    CAPTURE(name);
    const CodePointSet set = CategorySet(name);
    REQUIRE(!set.empty());
    size_t expected = 0;
    for (const CodePointRange& range : set) expected += range.last - range.first + 1;
    if (name == "C") expected -= 0x800;  // surrogates, which no text has
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
