#include "executor/process/pipe_lines.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <string_view>

namespace zeroplan {
namespace {

TEST_CASE("a pipe's lines come whole, and its end makes no line of nothing") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  PipeLines lines{UniqueFd(ends[0])};
  UniqueFd write_end(ends[1]);
  const auto say = [&](std::string_view text) {
    REQUIRE(write(write_end.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  };
  using Texts = std::vector<std::string>;
  CHECK(lines.Read().empty());
  say("one\ntw");
  CHECK(lines.Read() == Texts{"one"});
  CHECK(lines.open());
  say("o\n\nthree");
  CHECK(lines.Read() == Texts{"two", ""});
  SUBCASE("with the last line's line feed") {
    say("\n");
    write_end.Close();
    CHECK(lines.Read() == Texts{"three"});
  }
  SUBCASE("or without") {
    write_end.Close();
    CHECK(lines.Read() == Texts{"three"});
  }
  CHECK_FALSE(lines.open());
  CHECK(lines.Read().empty());
}

}  // namespace
}  // namespace zeroplan
