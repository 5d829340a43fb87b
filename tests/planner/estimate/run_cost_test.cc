#include <doctest/doctest.h>

#include "planner/estimate/estimate.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

BatchSpec Batch() {
  BatchSpec batch;
  batch.micro_batch = 4;
  batch.grad_accum = 2;
  batch.world_size = 16;
  batch.seq_len = 1024;  // 131072 tokens a step
  return batch;
}

TEST_CASE("a run is its steps: hours, GPU-hours and price") {
  const RunCost cost = CostOf({.tokens = 131'072'000, .gpu_hour_price = 2.5}, Batch(), 0.72);
  CHECK(cost.steps == 1000);
  CHECK(cost.seconds == doctest::Approx(720));
  CHECK(cost.gpu_hours == doctest::Approx(16 * 0.2));
  REQUIRE(cost.price);
  CHECK(*cost.price == doctest::Approx(8));
  // The last step is a whole one.
  CHECK(CostOf({.tokens = 131'072'001}, Batch(), 1).steps == 1001);
  CHECK(CostOf({.tokens = 1}, Batch(), 1).steps == 1);
  CHECK_FALSE(CostOf({.tokens = 1}, Batch(), 1).price);
  CHECK_FALSE(cost.gpu_kwh);
  const RunCost known = CostOf({.tokens = 131'072'000, .gpu_watts = 700}, Batch(), 0.72);
  REQUIRE(known.gpu_kwh);
  CHECK(*known.gpu_kwh == doctest::Approx(16 * 0.2 * 0.7));
}

TEST_CASE("a run in words") {
  const std::string text =
      RunCostText({.tokens = 300'000'000'000, .gpu_hour_price = 2.5}, Batch(), 0.5);
  // 300e9 / 131072 = 2288818.4 steps of half a second.
  CHECK(
      text.starts_with("Training on 300B tokens: 2288819 steps, 318 h (13.2 days) on 16 GPUs, "
                       "5086 GPU-hours, 12716 at 2.5 a GPU-hour;"));
  CHECK(text.find("kWh") == std::string::npos);
  CHECK(RunCostText({.tokens = 131'072'000, .gpu_watts = 700}, Batch(), 0.72)
            .ends_with("At their power limit of 700 W the GPUs take 2.24 kWh at most, hosts and "
                       "cooling apart."));
  const std::string one = RunCostText({.tokens = 1000}, Batch(), 3.6);
  CHECK(one.starts_with("Training on 1.00K tokens: 1 step, 0.00 h on 16 GPUs, 0.02 GPU-hours;"));
}

}  // namespace
}  // namespace zeroplan
