// Host measurements are of this machine, whatever it is: they can only be held to be sane.
#include <doctest/doctest.h>

#include <cmath>

#include "core/base/timing.h"
#include "executor/measure/measure_host.h"

namespace zeroplan {
namespace {

TEST_CASE("medians") {
  CHECK(Median({}) == 0);
  CHECK(Median({3}) == 3);
  CHECK(Median({9, 1, 5}) == 5);
  CHECK(Median({9, 1, 5, 3}) == 4);
}

TEST_CASE("host bandwidths are positive, finite and below any machine's") {
  const HostBandwidths rates = MeasureHostMemory(48 * kMib, 2, 3);
  CHECK(rates.light.size() == 8);
  for (const LightUpdate& update : rates.light) {
    CHECK(update.seconds > 0);
    CHECK(!(update.masters == Dtype::kF32 && update.moments == Dtype::kF32));
  }
  CHECK(rates.threads == 2);
  CHECK(rates.triad_bytes <= 48 * kMib);
  CHECK(rates.triad_bytes > 47 * kMib);
  for (const double rate : {rates.triad, rates.adam}) {
    CHECK(std::isfinite(rate));
    CHECK(rate > 1e5);  // a busy machine is slow, wrong units are far below
    CHECK(rate < 20e12);
  }
  // 3 million elements: calls of two thousand to half a million, again in other parts.
  REQUIRE(rates.kernels.size() == 9);
  for (const NamedKernelTime& row : rates.kernels) {
    CHECK(row.bytes / row.seconds > 1e5);
    CHECK(row.bytes / row.seconds < 20e12);
  }
  CHECK(rates.updates.empty());  // 64 MiB are more than it may take
}

TEST_CASE("memory to measure with is a part of what is there") {
  CHECK(HostMeasureBytes(400'000 * kMib, false) == 8192 * kMib);
  CHECK(HostMeasureBytes(400'000 * kMib, true) == 3072 * kMib);
  CHECK(HostMeasureBytes(4096 * kMib, false) == 1024 * kMib);
  CHECK(HostMeasureBytes(0, false) == 64 * kMib);
}

}  // namespace
}  // namespace zeroplan
