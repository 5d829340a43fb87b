#include "core/base/terminal.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

#include "core/base/strings.h"

namespace zeroplan {
namespace {

TEST_CASE("columns of characters") {
  CHECK(ColumnsOf("abc") == 3);
  CHECK(ColumnsOf("\x1b[1mabc\x1b[0m") == 3);
  CHECK(ColumnsOf("\xc3\xa4") == 1);                  // a with two dots
  CHECK(ColumnsOf("a\xcc\x88") == 1);                 // the same, composed
  CHECK(ColumnsOf("\xe6\xbc\xa2\xe5\xad\x97") == 4);  // two Chinese characters
  CHECK(ColumnsOf("\xff") == 1);
}

TEST_CASE("lines are broken at words, under what they go on from") {
  CHECK(FitLines("one two three", 80) == "one two three");
  CHECK(FitLines("one two three", 0) == "one two three");
  CHECK(FitLines("one two three\n", 9) == "one two\n  three\n");
  CHECK(FitLines("  one two three", 9) == "  one two\n    three");
  // The last column of a table goes on in its column.
  CHECK(FitLines("name  12  what it is for", 20) == "name  12  what it is\n          for");
  // A word that no line holds breaks behind a border of its own, else anywhere.
  CHECK(FitLines("at /home/somebody/else", 12) == "at\n  /home/\n  somebody/\n  else");
  CHECK(FitLines("abcdefghij", 4) == "abcd\n  ef\n  gh\n  ij");
  CHECK(FitLines("\n\na\n", 1) == "\n\na\n");
  // A wide character is never cut.
  CHECK(FitLines("\xe6\xbc\xa2\xe5\xad\x97\xe6\xbc\xa2", 5) ==
        "\xe6\xbc\xa2\xe5\xad\x97\n  \xe6\xbc\xa2");
  for (size_t columns = 3; columns < 40; ++columns) {
    const std::string text =
        FitLines("x  yy  a sentence of words, some/path/in/it and more", columns);
    for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
      end = std::min(text.find('\n', begin), text.size());
      CAPTURE(text);
      CHECK(end - begin <= columns);
    }
  }
}

TEST_CASE("a progress line leaves out what matters least") {
  const std::vector<LinePart> parts = {{"step 1", 0}, {"lr", 2}, {"", 0}, {"speed", 1}};
  CHECK(JoinParts(parts, 80) == "step 1  lr  speed");
  CHECK(JoinParts(parts, 16) == "step 1  speed");
  CHECK(JoinParts(parts, 12) == "step 1");
  CHECK(JoinParts(parts, 5) == "st...");
  CHECK(JoinParts(parts, 2) == "..");
  CHECK(JoinParts(parts, 0) == "");
}

TEST_CASE("the width is the terminal's, else that of COLUMNS, else 80") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  CHECK(TerminalColumns(ends[1]) == 0);
  CHECK_FALSE(TerminalTakesControl(ends[1]));
  int master = -1, terminal = -1;
  winsize size{};
  REQUIRE(openpty(&master, &terminal, nullptr, nullptr, &size) == 0);
  unsetenv("COLUMNS");
  CHECK(TerminalColumns(terminal) == 80);
  setenv("COLUMNS", "132", 1);
  CHECK(TerminalColumns(terminal) == 132);
  setenv("COLUMNS", "nonsense", 1);
  CHECK(TerminalColumns(terminal) == 80);
  size.ws_col = 55;
  ioctl(terminal, TIOCSWINSZ, &size);
  CHECK(TerminalColumns(terminal) == 55);
  unsetenv("COLUMNS");
  // Messages are fitted and escaped there; elsewhere escaped.
  const std::string text = "forty columns of text and then some more, and a \x1b[1m name";
  CHECK(MessageFor(ends[1], text) == Escaped(text));
  CHECK(MessageFor(terminal, text) ==
        "forty columns of text and then some more, and a \\x1b[1m\n  name");
  for (const int fd : {ends[0], ends[1], master, terminal}) close(fd);
}

}  // namespace
}  // namespace zeroplan
