#include "cost_models/power_limit.h"

#include <doctest/doctest.h>

#include "cost_models/gemm_cost.h"
#include "tests/cost_models/plain_profile.h"

namespace zeroplan {
namespace {

using doctest::Approx;

// Watts over `base` that `work` draws on average at a clock.
double WattsAt(const GpuWork& work, double clock) {
  return (work.joules + work.clocked_joules * clock) / work.SecondsAt(clock);
}

TEST_CASE("without figures of power every clock is the top one") {
  const PowerLimit power(PlainProfile().gpu);
  const GpuWork work = power.Product(1, 1e15, 1e9);
  CHECK(power.Clock(work) == 1);
  CHECK(work.SecondsAt(0.5) == 1);
  CHECK(power.ProductAtTopClock(2, 1e15, 1e9) == 2);
}

TEST_CASE("the clock is the one at which the limit is drawn") {
  const PowerLimit power(LimitedProfile().gpu);
  // 50 TFLOPs and 0.5 TB in a second: 550 W over the base.
  CHECK(power.Clock(power.Product(1, 50e12, 0.5e12)) == 1);
  for (const double share : {0.1, 0.3, 0.5}) {  // of copies beside it
    CAPTURE(share);
    GpuWork work = power.Product(1, 90e12, 0.5e12);
    work += power.Memory(share, share * 1e12);
    const double clock = power.Clock(work);
    CHECK(clock < 1);
    CHECK(clock > 0.5);
    CHECK(WattsAt(work, clock) == Approx(600));
    // Waiting lets the GPU cool: a higher clock, and no shorter a step.
    GpuWork waiting = work;
    waiting.fixed_seconds += 0.2;
    CHECK(power.Clock(waiting) > clock);
    CHECK(waiting.SecondsAt(power.Clock(waiting)) >= work.SecondsAt(clock));
  }
  // Attention is clocked as a whole, half of a product is.
  CHECK(power.Attention(1, 1e12, 0).SecondsAt(0.5) == Approx(2));
  CHECK(power.Product(1, 1e12, 0).SecondsAt(0.5) == Approx(1.5));
  CHECK(power.Memory(1, 1e12).SecondsAt(0.5) == Approx(1));
}

TEST_CASE("what was measured over and over is brought to the top clock and back") {
  const PowerLimit power(LimitedProfile().gpu);
  for (const double flops : {20e12, 80e12, 120e12}) {
    CAPTURE(flops);
    const GpuWork product = power.Product(1, flops, 0.4e12);
    const double measured = product.SecondsAt(power.Clock(product));
    CHECK(power.ProductAtTopClock(measured, flops, 0.4e12) == Approx(1));
    const GpuWork attention = power.Attention(1, flops, 0);
    CHECK(power.AttentionAtTopClock(attention.SecondsAt(power.Clock(attention)), flops, 0) ==
          Approx(1));
  }
}

TEST_CASE("rows of products under the limit are faster where the clock is higher") {
  HardwareProfile profile = LimitedProfile();
  profile.gpu.gemm.emplace();
  profile.gpu.gemm->rows = {{GemmKind::kForward, Dtype::kBF16, 8192, 8192, 8192, 70e12},
                            {GemmKind::kForward, Dtype::kBF16, 4096, 4096, 4096, 70e12}};
  const auto seconds = [](const HardwareProfile& of) {
    return GemmCost(of.gpu).Seconds(GemmKind::kForward, Dtype::kBF16, 8192, 8192, 8192);
  };
  const double at_top_clock = seconds(profile);
  profile.gpu.power.reset();
  CHECK(at_top_clock < 0.95 * seconds(profile));
}

}  // namespace
}  // namespace zeroplan
