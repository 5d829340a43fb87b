// What a run that is interrupted takes, from a checkpoint's times and a goal.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "core/base/save_interval.h"
#include "planner/estimate/estimate.h"
#include "planner/report/report_text.h"
#include "planner/request/parse.h"
#include "planner/request/resolve.h"
#include "tests/cost_models/plain_profile.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

BatchSpec StepsOf16Ranks() {
  BatchSpec batch;
  batch.micro_batch = 4;
  batch.grad_accum = 2;
  batch.world_size = 16;
  batch.seq_len = 1024;  // 131072 tokens a step
  return batch;
}

HardwareProfile WithDisk() {
  HardwareProfile hardware = PlainProfile();
  hardware.node.nvme_read = Number(4e9);
  hardware.node.nvme_write = Number(2e9);
  return hardware;
}

RunGoal GoalOf(double rate) {
  RunGoal goal = {.tokens = 131'072'000, .gpu_hour_price = 2.5};  // 1000 steps
  goal.interruptions = Interruptions{.rate = rate, .restart_seconds = 300};
  return goal;
}

// A node writes 80 GB in 40 s; the copy takes 2 s.
SaveCost Save() {
  SaveCost save;
  save.node_bytes = 80'000'000'000;
  save.write_seconds = 40;
  save.copy_seconds = 2;
  return save;
}

TEST_CASE("interruptions: steps that wait for saves") {
  RunGoal goal = GoalOf(1.0 / 7200);
  const InterruptedCost cost =
      InterruptedCostOf(goal, Save(), StepsOf16Ranks(), 10, false, WithDisk());
  REQUIRE(cost.known);
  // Young: sqrt(2 * 40 * 7200) = 759 s; Daly's is shorter by two thirds of the save.
  CHECK(cost.interval_steps == 73);
  CHECK(cost.interval_seconds == doctest::Approx(730));
  CHECK(cost.save_seconds == 40);
  CHECK(cost.whole_save_seconds == 40);
  CHECK(cost.restart_seconds == doctest::Approx(300 + 2 * 80e9 / 4e9));
  // 13 times 73 steps, and 51 more: (e^(340/7200)) * 7200 * (13 * (e^(770/7200) - 1) +
  // (e^(550/7200) - 1)).
  const double expected =
      std::exp(340.0 / 7200) * 7200 * (13 * std::expm1(770.0 / 7200) + std::expm1(550.0 / 7200));
  REQUIRE(cost.expected_seconds);
  CHECK(*cost.expected_seconds == doctest::Approx(expected));
  CHECK(*cost.expected_gpu_hours == doctest::Approx(expected / 3600 * 16));
  CHECK(*cost.expected_price == doctest::Approx(expected / 3600 * 16 * 2.5));
  CHECK(cost.lost_share == doctest::Approx(1 - 10'000 / expected));
  CHECK_FALSE(cost.fits_notice);
  CHECK(cost.notice_needs_seconds == doctest::Approx(10 + 40));
  goal.interruptions->notice_seconds = 49;
  CHECK(InterruptedCostOf(goal, Save(), StepsOf16Ranks(), 10, false, WithDisk()).fits_notice ==
        false);
  goal.interruptions->notice_seconds = 50;
  CHECK(InterruptedCostOf(goal, Save(), StepsOf16Ranks(), 10, false, WithDisk()).fits_notice ==
        true);
}

TEST_CASE("interruptions: saves beside the steps") {
  const RunGoal goal = GoalOf(1.0 / 7200);
  const InterruptedCost cost =
      InterruptedCostOf(goal, Save(), StepsOf16Ranks(), 10, true, WithDisk());
  CHECK(cost.interval_steps == 17);  // sqrt(2 * 2 * 7200) = 169.7 s, less two thirds of 2
  CHECK(cost.save_seconds == 2);
  CHECK(cost.whole_save_seconds == 42);
  CHECK(cost.notice_needs_seconds == doctest::Approx(10 + 40 + 42));
  const InterruptedRun run = {1.0 / 7200, 10, 2, 40, 340};
  CHECK(*cost.expected_seconds == doctest::Approx(InterruptedSeconds(run, 1000, 17)));
  // Without tokens the share is that of a long run.
  RunGoal endless = goal;
  endless.tokens.reset();
  endless.gpu_hour_price.reset();
  const InterruptedCost share =
      InterruptedCostOf(endless, Save(), StepsOf16Ranks(), 10, true, WithDisk());
  CHECK(share.lost_share == doctest::Approx(1 - 1 / InterruptedShare(run, 17)));
  CHECK_FALSE(share.expected_seconds);
  CHECK_FALSE(share.expected_price);
  // Never more often than a save takes: 42 s of steps of 1 s.
  CHECK(InterruptedCostOf(GoalOf(1.0 / 60), Save(), StepsOf16Ranks(), 1, true, WithDisk())
            .interval_steps == 40);
}

TEST_CASE("interruptions: what is not known is said, and so is what has no end") {
  SaveCost unknown = Save();
  unknown.write_seconds.reset();
  const RunGoal goal = GoalOf(1.0 / 7200);
  const InterruptedCost none =
      InterruptedCostOf(goal, unknown, StepsOf16Ranks(), 10, false, PlainProfile());
  CHECK_FALSE(none.known);
  CHECK(Has(InterruptedText(goal, none), wording::kWhatSaveTakesIsNot));
  const InterruptedCost hopeless =
      InterruptedCostOf(GoalOf(1), Save(), StepsOf16Ranks(), 10, false, WithDisk());
  CHECK(hopeless.interval_steps == 1);
  CHECK(hopeless.lost_share == doctest::Approx(1));
  CHECK(Has(InterruptedText(GoalOf(1), hopeless), wording::kSuchRunHardlyGetsOn));
}

TEST_CASE("interruptions in words") {
  RunGoal goal = GoalOf(1.0 / 7200);
  goal.interruptions->notice_seconds = 30;
  const auto text = [&](bool beside) {
    return InterruptedText(
        goal, InterruptedCostOf(goal, Save(), StepsOf16Ranks(), 10, beside, WithDisk()));
  };
  const std::string waits = text(false);
  CAPTURE(waits);
  CHECK(waits.starts_with(
      "Interrupted once in 2.00 h on average, all machines together: save every 73 steps (12.2 "
      "min), for which steps wait 40.0 s. Of the time "));
  CHECK(Has(waits, wording::kAndToRestartsOfMin));
  CHECK(Has(waits, wording::kAtGpuHour));
  CHECK(Has(waits, wording::kNoticeOfMayBeToo));
  goal.interruptions->notice_seconds = 120;
  const std::string beside = text(true);
  CAPTURE(beside);
  CHECK(Has(beside, wording::kForWhichStepsWaitAnd));
  CHECK(Has(beside, wording::kNoticeOfMinIsEnough));
}

TEST_CASE("rates and times: with their units, and nothing else") {
  CHECK(ParseRate("0.1/h", "⟦x⟧") == doctest::Approx(0.1 / 3600));
  CHECK(ParseRate("2/day", "⟦x⟧") == doctest::Approx(2.0 / 86400));
  CHECK(ParseRate("1/6h", "⟦x⟧") == doctest::Approx(1.0 / 21600));
  CHECK(ParseRate("3/week", "⟦x⟧") == doctest::Approx(3 / (7 * 86400.0)));
  CHECK(ParseRate("1/30min", "⟦x⟧") == doctest::Approx(1.0 / 1800));
  CHECK(ParseRate("1/s", "⟦x⟧") == 1);
  for (const char* wrong : {"", "0.1", "/h", "0/h", "-1/h", "1/0h", "2/s", "1/m", "1/", "h",
                            "1/h/h", "nan/h", "inf/h", "1e99/h", "1 /h", "1/6x"}) {
    CAPTURE(wrong);
    CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { ParseRate(wrong, "⟦x⟧"); }), "⟦x⟧: "));
    CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { ParseRate(wrong, "⟦x⟧"); }), wording::kSuchAsDayOr));
  }
  CHECK(ParseSeconds("30s", "⟦x⟧") == 30);
  CHECK(ParseSeconds("2min", "⟦x⟧") == 120);
  CHECK(ParseSeconds("1.5h", "⟦x⟧") == 5400);
  for (const char* wrong : {"", "30", "s", "0s", "-3s", "5m", "1e9h", "30 seconds please"}) {
    CAPTURE(wrong);
    CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { ParseSeconds(wrong, "⟦x⟧"); }),
              wording::kWithItsUnitSuchAs));
  }
}

TEST_CASE("interruptions: what has no effect without them") {
  GoalFields fields;
  CHECK_FALSE(ResolveInterruptions(fields));
  fields.notice.emplace(30);
  fields.notice.text = "30s";
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { ResolveInterruptions(fields); }),
            wording::kHasNoEffectWithout));
  fields.interruptions.emplace(0.1);
  CHECK(ResolveInterruptions(fields)->restart_seconds == 600);
  fields.restart_time.emplace(60);
  const auto asked = ResolveInterruptions(fields);
  CHECK(asked->restart_seconds == 60);
  CHECK(asked->notice_seconds == 30);
  fields.interruptions.reset();
  fields.notice.reset();
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { ResolveInterruptions(fields); }), "⟦restart_time⟧: "));
}

}  // namespace
}  // namespace zeroplan
