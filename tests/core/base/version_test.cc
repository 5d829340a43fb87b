// The version is said twice: to CMake and to the code.
#include "core/base/version.h"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "tests/paths.h"

namespace zeroplan {
namespace {

TEST_CASE("the code's version is the project's") {
  std::ifstream file(SourcePath("CMakeLists.txt"));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::string before = "project(zeroplan VERSION ";
  const size_t begin = text.find(before);
  REQUIRE(begin != std::string::npos);
  const size_t at = begin + before.size();
  CHECK(text.substr(at, text.find(' ', at) - at) == kVersion);
}

}  // namespace
}  // namespace zeroplan
