// --network and --intra-node-bandwidth over a profile.
#include "hwprofiles/overrides.h"

#include <doctest/doctest.h>

#include <string>

#include "core/base/error.h"
#include "hwprofiles/loader.h"

namespace zeroplan {
namespace {

TEST_CASE("a network by name or by rate") {
  const HardwareProfile with = LoadProfile("hgx-h200");
  const HardwareProfile without = LoadProfile("rtx4090");
  HardwareProfile profile = with;
  ApplyNetwork(profile, "eth-25");
  CHECK(*profile.network == LoadNetwork("eth-25"));
  CHECK(profile.network->bandwidth_per_node.value == doctest::Approx(25e9 / 8));
  const struct {
    const char* text;
    double bytes_per_second;
  } rates[] = {{"25Gb", 25e9 / 8},
               {"100Gb/s", 100e9 / 8},
               {"8x400Gb", 400e9},
               {"2x12.5GB/s", 25e9},
               {"12.5GB/s", 12.5e9}};
  for (const auto& rate : rates) {
    INFO(std::string(rate.text));
    profile = with;
    ApplyNetwork(profile, rate.text);
    CHECK(profile.network->bandwidth_per_node.value == doctest::Approx(rate.bytes_per_second));
    CHECK(profile.network->bandwidth_per_node.reference.find(rate.text) != std::string::npos);
    CHECK(profile.network->latency == with.network->latency);
    CHECK(profile.node == with.node);
    profile = without;
    ApplyNetwork(profile, rate.text);
    CHECK(profile.network->latency == LoadNetwork("eth-10").latency);
  }
}

TEST_CASE("a link replaces the bandwidth and what was measured over the old one") {
  HardwareProfile profile = LoadProfile("hgx-h200");
  REQUIRE(profile.node.collectives.has_value());
  ApplyGpuLink(profile, "300GB/s");
  CHECK(profile.node.gpu_link.value == doctest::Approx(300e9));
  CHECK(!profile.node.collectives.has_value());
  CHECK(profile.node.overlapped_compute.has_value());
  ApplyGpuLink(profile, "200Gb/s");
  CHECK(profile.node.gpu_link.value == doctest::Approx(25e9));
}

TEST_CASE("rates that are none") {
  for (const char* text : {"", "fast", "ib-399", "25", "-25Gb", "0Gb", "0x400Gb", "8x", "x400Gb",
                           "8x8x400Gb", "1e30Gb", "1Kb/s", "9999x400Gb", "nanGb"}) {
    INFO(std::string(text));
    HardwareProfile profile = LoadProfile("rtx4090");
    CHECK_THROWS_WITH_AS(ApplyNetwork(profile, text), doctest::Contains("@@network"), Error);
    CHECK(!profile.network.has_value());
  }
  for (const char* text : {"", "eth-25", "25", "0GB/s", "1Kb/s", "1e9GB/s"}) {
    INFO(std::string(text));
    HardwareProfile profile = LoadProfile("rtx4090");
    CHECK_THROWS_WITH_AS(ApplyGpuLink(profile, text), doctest::Contains("@@intra_node_bandwidth"),
                         Error);
  }
  HardwareProfile profile = LoadProfile("rtx4090");
  CHECK_THROWS_WITH_AS(ApplyNetwork(profile, "ib-40"), doctest::Contains("did you mean"), Error);
}

}  // namespace
}  // namespace zeroplan
