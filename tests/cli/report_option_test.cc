#include <doctest/doctest.h>

#include "cli/common/output.h"

namespace zeroplan {
namespace {

TEST_CASE("this process's arguments") {
  const std::vector<std::string> arguments = OwnArguments();
  REQUIRE_FALSE(arguments.empty());
  CHECK(arguments.front().find("tests_cli") != std::string::npos);
}

}  // namespace
}  // namespace zeroplan
