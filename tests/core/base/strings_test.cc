#include "core/base/strings.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

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

TEST_CASE("a shell's words are what was meant") {
  for (const std::string shell : {"sh", "bash", "zsh"}) {
    if (std::system(("command -v " + shell + " > /dev/null").c_str()) != 0) continue;
    CAPTURE(shell);
    const std::vector<std::string> words = {"printf", "%s|",   "it's",  "a b",  "$HOME", "`id`",
                                            "\\",     "",      "\"x\"", "a\nb", "~",     "~/x",
                                            "*",      "#",     "!",     "a=b",  "=ls",   "{a,b}",
                                            "a:~",    "--x=~", "--x=1", "-",    "%1"};
    const std::string command = shell + " -c " + QuoteForShell(ShellCommand(words));
    std::FILE* pipe = popen(command.c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::string out(400, '\0');
    out.resize(std::fread(out.data(), 1, out.size(), pipe));
    CHECK(pclose(pipe) == 0);
    std::string meant;
    for (size_t i = 2; i < words.size(); ++i) meant += words[i] + "|";
    CHECK(out == meant);
  }
}

TEST_CASE("letters of ASCII alone are made small") {
  CHECK(LowerAscii("AdamW-8bit_Z[@") == "adamw-8bit_z[@");
  CHECK(LowerAscii("\xc3\x84 \xff") == "\xc3\x84 \xff");
  CHECK(LowerAscii("").empty());
}

TEST_CASE("a word is quoted where it has to be") {
  CHECK(ShellCommand({"zeroplan", "plan", "--gpus", "8", "--memory=40GB", "runs/a_b.json"}) ==
        "zeroplan plan --gpus 8 --memory=40GB runs/a_b.json");
  CHECK(ShellWord("") == "''");
  CHECK(ShellWord("a b") == "'a b'");
  CHECK(ShellWord("it's") == "'it'\\''s'");
  CHECK(ShellWord("~") == "'~'");
  CHECK(ShellWord("A=b") == "'A=b'");
  CHECK(ShellWord("=ls") == "'=ls'");
  CHECK(ShellWord("\xc3\xa9") == "'\xc3\xa9'");
  CHECK(QuoteForShell("plain") == "'plain'");
  CHECK(ShellCommand({}).empty());
}

TEST_CASE("a word with = before a command sets no variable") {
  const std::string command = ShellCommand({"ZEROPLAN_NO_SUCH=1", "true"}) + " 2> /dev/null";
  CHECK(std::system(command.c_str()) != 0);  // no such command
}

}  // namespace

}  // namespace zeroplan
