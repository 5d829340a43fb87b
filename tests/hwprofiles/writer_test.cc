// What is written reads back to the same profile.
#include "hwprofiles/writer.h"

#include <doctest/doctest.h>

#include "hwprofiles/loader.h"

namespace zeroplan {
namespace {

TEST_CASE("every built-in profile is read back from what is written of it") {
  for (const std::string& name : ProfileNames()) {
    CAPTURE(name);
    const HardwareProfile profile = LoadProfile(name);
    const HardwareProfile read = ParseProfile(WriteProfile(profile), profile.source);
    CHECK(read.gpu == profile.gpu);
    CHECK(read.node == profile.node);
    CHECK(read == profile);
  }
}

TEST_CASE("tables are in the units people read") {
  const std::string text = WriteProfile(LoadProfile(std::string(kDefaultProfile)));
  CHECK(text.find(R"(["forward", "bf16", 512, 256, 768, 55.64])") != std::string::npos);
  CHECK(text.find(R"(["all_gather", 2, 16384, 6.733])") != std::string::npos);
  CHECK(text.find("\"FLOP/s\"") == std::string::npos);
}

TEST_CASE("rows and figures of eight bits are written and read back") {
  HardwareProfile profile = LoadProfile(std::string(kDefaultProfile));
  profile.gpu.gemm->rows.push_back({GemmKind::kData, Dtype::kE4M3, 8192, 4096, 4112, 1234.5e12});
  const auto measured = [](double written, double scale, const char* unit) {
    return Figure{written * scale, written, unit, FigureSource::kMeasured, "ours"};
  };
  profile.gpu.power = PowerProfile{measured(690, 1, "W"),     measured(120, 1, "W"),
                                   measured(1, 1e-12, "pJ"),  measured(70, 1e-12, "pJ"),
                                   measured(0.5, 1, "ratio"), measured(0.6, 1e-12, "pJ")};
  const std::string text = WriteProfile(profile);
  CHECK(text.find(R"(["data", "e4m3", 8192, 4096, 4112, 1234.5])") != std::string::npos);
  const HardwareProfile read = ParseProfile(text, profile.source);
  CHECK(read == profile);
  CHECK(read.gpu.power->flop_e4m3->value == doctest::Approx(0.6e-12));
}

// 1e-6 times no double is every double: such a table is written in seconds instead.
TEST_CASE("times of any bits survive") {
  HardwareProfile profile = LoadProfile(std::string(kDefaultProfile));
  REQUIRE(profile.node.collectives.has_value());
  double seconds = 1.0 / 3 * 1e-3;
  for (CollectiveTime& row : profile.node.collectives->rows) {
    row.seconds = seconds = seconds * 1.0001 + 1.1e-3;
  }
  const HardwareProfile read = ParseProfile(WriteProfile(profile), profile.source);
  CHECK(read == profile);
}

TEST_CASE("a profile without tables, options and network") {
  HardwareProfile profile = LoadProfile(std::string(kDefaultProfile));
  profile.network.reset();
  profile.gpu.gemm.reset();
  profile.gpu.attention.reset();
  profile.gpu.memory_kernels.reset();
  profile.gpu.copy_bandwidth.reset();
  profile.gpu.reachable_peaks.clear();
  profile.node.collectives.reset();
  profile.node.triad_bandwidth.reset();
  profile.node.nvme_read.reset();
  profile.node.pcie.copies.reset();
  profile.node.pcie.both_all.reset();
  profile.node.overlapped_compute.reset();
  CHECK(ParseProfile(WriteProfile(profile), profile.source) == profile);
}

}  // namespace
}  // namespace zeroplan
