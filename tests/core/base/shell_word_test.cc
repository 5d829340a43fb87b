#include "core/base/shell_word.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace zeroplan {
namespace {

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
