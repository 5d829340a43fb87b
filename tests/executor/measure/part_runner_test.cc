// One part's failure and the other parts.
#include "executor/measure/part_runner.h"

#include <doctest/doctest.h>

#include "core/base/error.h"

namespace zeroplan {
namespace {

struct Fixture {
  MachineMeasurement result;
  std::vector<std::string> said;
  PartRunner runner{result, [this](const std::string& line) { said.push_back(line); }};
};

TEST_CASE("a part says what it does and how long it took") {
  Fixture f;
  CHECK(f.runner.Try("gemm", "matrix products",
                     [](MachineMeasurement& out) { out.kernels.launch_seconds = 1e-6; }));
  CHECK(f.result.kernels.launch_seconds == 1e-6);
  CHECK(f.result.measured == std::vector<std::string>{"gemm"});
  CHECK(f.result.failed.empty());
  REQUIRE(f.said.size() == 2);
  CHECK(f.said[0] == "gemm: matrix products");
  CHECK(f.said[1].starts_with("gemm: 0."));
  CHECK(f.said[1].ends_with(" s"));
}

TEST_CASE("what a failed part has found is dropped, what was there before stays") {
  Fixture f;
  f.result.collectives.push_back({CollectiveOp::kAllReduce, 2, 1024, 1e-5});
  const auto fails = [](MachineMeasurement& out) {
    out.collectives.push_back({CollectiveOp::kAllReduce, 4, 1024, 1e-5});
    ThrowRuntime("NCCL: no way");
  };
  SUBCASE("and the others go on") {
    CHECK_FALSE(f.runner.Try("collectives", "NCCL", fails));
    CHECK(f.runner.Try("pcie", "copies", [](MachineMeasurement&) {}));
    CHECK(f.result.measured == std::vector<std::string>{"pcie"});
  }
  SUBCASE("and the error names it where nothing can go on") {
    CHECK_THROWS_WITH_AS(f.runner.Run("collectives", "NCCL", fails),
                         "measuring collectives: NCCL: no way", Error);
    CHECK(f.result.measured.empty());
  }
  CHECK(f.result.collectives.size() == 1);
  REQUIRE(f.result.failed.size() == 1);
  CHECK(f.result.failed[0].name == "collectives");
  CHECK(f.result.failed[0].why == "NCCL: no way");
  CHECK(f.said[1].find("collectives: failed after") == 0);
}

TEST_CASE("bugs fail a part, errors of the command line end everything") {
  Fixture f;
  CHECK_FALSE(f.runner.Try("gemm", "products",
                           [](MachineMeasurement&) { ZEROPLAN_CHECK(false, "a bug"); }));
  REQUIRE(f.result.failed.size() == 1);
  CHECK(f.result.failed[0].why.find("a bug") != std::string::npos);
  CHECK_THROWS_AS(
      f.runner.Try("disk", "x", [](MachineMeasurement&) { ThrowUsage("--nvme-path: no"); }), Error);
  CHECK(f.result.failed.size() == 1);
}

}  // namespace
}  // namespace zeroplan
