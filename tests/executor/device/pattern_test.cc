#include "executor/device/pattern.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace zeroplan {
namespace {

TEST_CASE("pattern: depends on the position in the arena alone") {
  std::vector<std::byte> whole(1000), part(300);
  FillPattern(whole, 0);
  FillPattern(part, 500);
  CHECK(std::equal(part.begin(), part.end(), whole.begin() + 500));
  CHECK_FALSE(std::equal(part.begin(), part.end(), whole.begin()));
}

TEST_CASE("pattern: the end is past the last changed byte") {
  std::vector<std::byte> bytes(1000);
  FillPattern(bytes, 64);
  CHECK(PatternEnd(bytes, 64) == 0);
  bytes[0] = std::byte{0};
  CHECK(PatternEnd(bytes, 64) == 1);
  bytes[998] = std::byte{0x3f};
  CHECK(PatternEnd(bytes, 64) == 999);
}

TEST_CASE("pattern: a buffer of it holds no value that training writes") {
  std::vector<std::byte> bytes(4096);
  FillPattern(bytes, 0);
  for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, &bytes[i], sizeof(value));
    CHECK(std::isfinite(value));
    CHECK(std::fabs(value) > 1e19f);
  }
}

}  // namespace
}  // namespace zeroplan
