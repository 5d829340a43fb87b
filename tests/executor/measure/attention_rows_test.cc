// Rows on their way between two ranks.
#include "executor/measure/attention_rows.h"

#include <doctest/doctest.h>

#include "core/base/error.h"

namespace zeroplan {
namespace {

TEST_CASE("attention's rows arrive to the bit") {
  MachineMeasurement found;
  CHECK(AttentionOfText(AttentionText(found)).empty());
  found.kernels.attention = {{16, 25, 1024, 64, 1e14 / 3, 2e14 / 7}, {1, 12, 512, 128, 1, 2.5}};
  CHECK(AttentionOfText(AttentionText(found)) == found.kernels.attention);
}

TEST_CASE("a failure arrives as one, whatever was measured before") {
  MachineMeasurement found;
  found.kernels.attention = {{16, 25, 1024, 64, 1e14, 2e14}};
  found.failed = {{"gemm", "not this"}, {"attention", "cuDNN: no plan\n  of 25 heads"}};
  CHECK_THROWS_WITH_AS(AttentionOfText(AttentionText(found)), "cuDNN: no plan\n  of 25 heads",
                       Error);
}

TEST_CASE("other texts are refused") {
  for (const char* text :
       {"", "rows", "rows x", "rows 1", "rows 0\n1 2 3 4 5 6", "rows 2\n1 2 3 4 5 6",
        "rows 1\n1 2 3 4 5", "rows 1\n1 2 3 4 5 x", "rows 1\n1 2 3 4 5 6 7", "lines 0"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(AttentionOfText(text), Error);
  }
}

}  // namespace
}  // namespace zeroplan
