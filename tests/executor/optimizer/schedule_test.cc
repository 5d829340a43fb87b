// Learning rates computed by hand from DeepSpeed's formulas (lr_schedules.py).
#include <doctest/doctest.h>

#include <cmath>

#include "executor/optimizer/step_scalars.h"

namespace zeroplan {
namespace {

using doctest::Approx;

OptimizerConfig Config(ScheduleKind kind, bool log_warmup) {
  OptimizerConfig config;
  config.lr = 0.5;
  config.schedule.kind = kind;
  config.schedule.warmup_min_lr = 0.1;
  config.schedule.warmup_max_lr = 0.9;
  config.schedule.warmup_steps = 4;
  config.schedule.log_warmup = log_warmup;
  config.schedule.total_steps = 12;
  config.schedule.cos_min_ratio = 0.2;
  config.schedule.warmup_min_ratio = 0.4;
  return config;
}

TEST_CASE("constant") {
  const OptimizerConfig config = Config(ScheduleKind::kConstant, true);
  CHECK(LearningRate(config, 0) == 0.5);
  CHECK(LearningRate(config, 1'000'000) == 0.5);
}

// n optimizer steps taken are t = n - 1 for a warm-up (t = 0 for n = 0).
TEST_CASE("WarmupLR, linear and logarithmic") {
  const OptimizerConfig linear = Config(ScheduleKind::kWarmup, false);
  CHECK(LearningRate(linear, 0) == Approx(0.1));
  CHECK(LearningRate(linear, 1) == Approx(0.1));
  CHECK(LearningRate(linear, 2) == Approx(0.3));
  CHECK(LearningRate(linear, 4) == Approx(0.7));
  CHECK(LearningRate(linear, 5) == Approx(0.9));
  CHECK(LearningRate(linear, 100) == Approx(0.9));
  const OptimizerConfig log = Config(ScheduleKind::kWarmup, true);
  CHECK(LearningRate(log, 1) == Approx(0.1));
  CHECK(LearningRate(log, 2) == Approx(0.5));  // log 2 / log 4 = 1/2
  CHECK(LearningRate(log, 3) == Approx(0.1 + 0.8 * std::log(3.0) / std::log(4.0)));
  CHECK(LearningRate(log, 4) == Approx(0.9));
}

TEST_CASE("WarmupDecayLR falls to the minimum at the last step and stays") {
  const OptimizerConfig config = Config(ScheduleKind::kWarmupDecay, false);
  CHECK(LearningRate(config, 3) == Approx(0.5));
  CHECK(LearningRate(config, 5) == Approx(0.9));  // (12 - 4) / (12 - 4) = 1
  CHECK(LearningRate(config, 9) == Approx(0.5));  // (12 - 8) / 8 = 1/2
  CHECK(LearningRate(config, 13) == Approx(0.1));
  CHECK(LearningRate(config, 50) == Approx(0.1));
}

TEST_CASE("WarmupCosineLR") {
  const OptimizerConfig config = Config(ScheduleKind::kWarmupCosine, false);
  CHECK(LearningRate(config, 0) == 0);  // DeepSpeed's rate before its schedule has moved
  CHECK(LearningRate(config, 1) == Approx(0.5 * 0.4));
  CHECK(LearningRate(config, 3) == Approx(0.5 * 0.7));  // 0.4 + 0.6 / 2
  // t = 7: (7 - 4 + 1) / 8 = 1/2, cos(pi/2) = 0, so half way between 0.2 and 1.
  CHECK(LearningRate(config, 8) == Approx(0.5 * 0.6));
  CHECK(LearningRate(config, 12) == Approx(0.5 * 0.2));
  CHECK(LearningRate(config, 40) == Approx(0.5 * 0.2));  // does not rise again
  const OptimizerConfig log = Config(ScheduleKind::kWarmupCosine, true);
  CHECK(LearningRate(log, 2) == Approx(0.5 * 0.7));
}

TEST_CASE("OneCycle: up, down and decay") {
  OptimizerConfig config = Config(ScheduleKind::kOneCycle, false);
  OneCycleConfig& cycle = config.schedule.one_cycle;
  cycle = {.min_lr = 0.1, .max_lr = 0.9, .first_steps = 4, .second_steps = 6};
  CHECK(LearningRate(config, 0) == Approx(0.1));
  CHECK(LearningRate(config, 1) == Approx(0.3));
  CHECK(LearningRate(config, 4) == Approx(0.9));
  CHECK(LearningRate(config, 7) == Approx(0.5));  // (10 - 7) / 6 = 1/2
  CHECK(LearningRate(config, 10) == Approx(0.1));
  CHECK(LearningRate(config, 99) == Approx(0.1));  // no decay
  cycle.decay_steps = 2;
  cycle.decay_rate = 0.5;
  CHECK(LearningRate(config, 10) == Approx(0.1));
  CHECK(LearningRate(config, 14) == Approx(0.05));  // 0.1 / (1 + 0.5 * 4 / 2)
  cycle.first_stairs = 2;
  cycle.second_stairs = 3;
  CHECK(LearningRate(config, 1) == Approx(0.1));
  CHECK(LearningRate(config, 2) == Approx(0.5));
  CHECK(LearningRate(config, 3) == Approx(0.5));
  CHECK(LearningRate(config, 4) == Approx(0.9));
  CHECK(LearningRate(config, 5) == Approx(0.1 + 0.8 * 2 / 3));  // floor(5 * 3 / 6) = 2
  CHECK(LearningRate(config, 8) == Approx(0.1 + 0.8 / 3));
  CHECK(LearningRate(config, 9) == Approx(0.1));
  cycle = {.min_lr = 0.1, .max_lr = 0.9, .first_steps = 4, .second_steps = 0};
  CHECK(LearningRate(config, 3) == Approx(0.7));
  CHECK(LearningRate(config, 4) == Approx(0.1));  // no way down
}

TEST_CASE("LRRangeTest, continuous and in stairs") {
  OptimizerConfig config = Config(ScheduleKind::kRangeTest, false);
  config.schedule.range_test = {.min_lr = 0.01, .step_size = 3, .step_rate = 2};
  CHECK(LearningRate(config, 0) == Approx(0.01));
  CHECK(LearningRate(config, 1) == Approx(0.01 * (1 + 2.0 / 3)));
  CHECK(LearningRate(config, 6) == Approx(0.05));
  config.schedule.range_test.staircase = true;
  CHECK(LearningRate(config, 2) == Approx(0.01));
  CHECK(LearningRate(config, 5) == Approx(0.03));
}

TEST_CASE("a warm-up of 0 or 1 steps counts as 2") {
  OptimizerConfig config = Config(ScheduleKind::kWarmup, true);
  config.schedule.warmup_steps = 0;
  CHECK(LearningRate(config, 1) == Approx(0.1));
  CHECK(LearningRate(config, 2) == Approx(0.9));
}

// transformers' get_constant_schedule_with_warmup, get_linear_schedule_with_warmup and
// get_cosine_with_min_lr_schedule_with_warmup; 4 steps of warm-up, 12 in all.
TEST_CASE("of the run: warm-up, then constant, linear or cosine") {
  OptimizerConfig config = Config(ScheduleKind::kOfRun, false);
  RunScheduleConfig& run = config.schedule.of_run;
  run.warmup_steps = 4;
  for (const DecayShape shape : {DecayShape::kConstant, DecayShape::kLinear, DecayShape::kCosine}) {
    run.shape = shape;
    CHECK(LearningRate(config, 0) == 0);
    CHECK(LearningRate(config, 3) == Approx(0.375));
    CHECK(LearningRate(config, 4) == Approx(0.5));
  }
  run.shape = DecayShape::kConstant;
  CHECK(LearningRate(config, 50) == 0.5);
  run.shape = DecayShape::kLinear;
  CHECK(LearningRate(config, 6) == Approx(0.375));  // (12 - 6) / (12 - 4)
  CHECK(LearningRate(config, 12) == 0);
  CHECK(LearningRate(config, 40) == 0);
  run.shape = DecayShape::kCosine;
  CHECK(LearningRate(config, 6) == Approx(0.25 * (1 + std::sqrt(0.5))));  // cos(pi / 4)
  CHECK(LearningRate(config, 8) == Approx(0.25));
  run.min_ratio = 0.2;
  CHECK(LearningRate(config, 8) == Approx(0.3));
  CHECK(LearningRate(config, 12) == Approx(0.1));
  run = {.shape = DecayShape::kLinear};  // no warm-up: the first step has the whole rate
  CHECK(LearningRate(config, 0) == 0.5);
  CHECK(LearningRate(config, 3) == Approx(0.375));
}

}  // namespace
}  // namespace zeroplan
