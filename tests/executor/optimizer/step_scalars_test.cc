// Step settlement and loss scaling, with sequences computed by hand.
#include "executor/optimizer/step_scalars.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

namespace zeroplan {
namespace {

using doctest::Approx;

TrainSetup Setup(Dtype dtype) {
  TrainSetup setup;
  setup.precision.dtype = dtype;
  setup.precision.initial_scale_power = 4;
  setup.precision.loss_scale_window = 3;
  setup.batch = {.micro_batch = 2, .grad_accum = 3, .world_size = 4, .seq_len = 8};
  setup.optimizer.lr = 0.01;
  setup.optimizer.betas = {0.5, 0.75};
  setup.optimizer.gradient_clipping = 1.0;
  return setup;
}
constexpr double kTokens = 2 * 3 * 4 * 8;

TEST_CASE("initial state") {
  const StepState bf16 = InitialStepState(Setup(Dtype::kBF16));
  CHECK(bf16.loss_scale == 1);
  CHECK(bf16.grad_scale == Approx(1 / kTokens));
  CHECK(bf16.step == 0);
  const StepState fp16 = InitialStepState(Setup(Dtype::kF16));
  CHECK(fp16.loss_scale == 16);
  CHECK(fp16.grad_scale == Approx(16 / kTokens));
  CHECK(fp16.hysteresis_left == 2);
  TrainSetup fixed = Setup(Dtype::kF16);
  fixed.precision.loss_scale = 128;
  CHECK(InitialStepState(fixed).loss_scale == 128);
}

// Of 192 targets 144 do not count: the mean over the others is 4 times that over all.
TEST_CASE("loss and gradients are means over the targets that count, whoever has them") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16}) {
    TrainSetup setup = Setup(dtype);
    setup.optimizer.gradient_clipping = 3;
    for (const int stops : {0, 1, 4}) {
      StepState state = InitialStepState(setup);
      const double scale = state.loss_scale;
      state.loss_sum = 24;  // over 4 ranks and 3 micro-steps
      state.grad_norm_sq = 16 * scale * scale;
      // As the ranks' votes add up.
      for (const int uncounted : {0, 48, 48, 48}) {
        state.stop_requested += StepVote(uncounted >= 48 && stops > 0, uncounted);
      }
      if (stops == 4) state.stop_requested += StepVote(true, 0);
      SettleStep(setup, state);
      CHECK(state.stop_requested == (stops == 0 ? 0 : stops == 1 ? 3 : 4));
      CHECK(state.skip == kTaken);
      CHECK(state.loss_sum == 8);
      CHECK(state.grad_norm == 16);
      CHECK(state.grad_factor == Approx(4 * (3.0 / 16) / scale));
      // What the next step's kernels multiply with does not know its batch.
      CHECK(state.grad_scale == Approx(scale / kTokens));
    }
  }
}

TEST_CASE("a step of which no target counts changes nothing and is no bad one") {
  const TrainSetup setup = Setup(Dtype::kF16);
  StepState state = InitialStepState(setup);
  const StepState before = state;
  for (int rank = 0; rank < 4; ++rank) state.stop_requested += StepVote(false, 48);
  SettleStep(setup, state);
  CHECK(state.skip == kNothingCounts);
  CHECK(state.loss_sum == 0);
  CHECK(state.stop_requested == 0);
  CHECK(state.step == 0);
  CHECK(state.skipped_steps == 1);
  CHECK(state.loss_scale == before.loss_scale);
  CHECK(state.good_steps == before.good_steps);
  CHECK(state.hysteresis_left == before.hysteresis_left);
  CHECK(state.recent_loss[0] == 0);
}

// Sums of the largest batches are exact.
TEST_CASE("votes of many ranks and targets add up exactly") {
  TrainSetup setup = Setup(Dtype::kBF16);
  setup.batch = {.micro_batch = 16, .grad_accum = 64, .world_size = 1024, .seq_len = 32768};
  const int64_t of_rank = 16 * 64 * 32768;
  StepState state = InitialStepState(setup);
  state.loss_sum = 1024 * 64;
  for (int rank = 0; rank < 1024; ++rank) state.stop_requested += StepVote(true, of_rank - 1);
  SettleStep(setup, state);
  CHECK(state.stop_requested == 1024);
  CHECK(state.loss_sum == static_cast<double>(of_rank));  // 1024 targets count
}

TEST_CASE("two good steps in fp32: mean loss, norm, clipping, bias corrections") {
  const TrainSetup setup = Setup(Dtype::kF32);
  StepState state = InitialStepState(setup);
  state.loss_sum = 24;  // over 4 ranks and 3 micro-steps
  state.grad_norm_sq = 16;
  SettleStep(setup, state);
  CHECK(state.loss_sum == 2);
  CHECK(state.grad_norm == 4);
  CHECK(state.grad_factor == Approx(0.25));  // clipped to norm 1
  CHECK(state.skip == 0);
  CHECK(state.step == 1);
  CHECK(state.lr == Approx(0.01));
  CHECK(state.bias_correction1 == 0.5f);
  CHECK(state.bias_correction2 == 0.25f);

  state.grad_norm_sq = 0.25;
  SettleStep(setup, state);
  CHECK(state.grad_factor == 1);  // norm 0.5 is below the limit
  CHECK(state.step == 2);
  CHECK(state.bias_correction1 == 0.75f);
  CHECK(state.bias_correction2 == 0.4375f);  // 1 - 0.75^2

  TrainSetup plain = setup;
  plain.optimizer.gradient_clipping = 0;
  plain.optimizer.bias_correction = false;
  state.grad_norm_sq = 1e6;
  SettleStep(plain, state);
  CHECK(state.grad_factor == 1);
  CHECK(state.bias_correction1 == 1);
}

TEST_CASE("a step in two parts: scalars before the norm, the norm after the updates") {
  TrainSetup setup = Setup(Dtype::kF32);
  setup.optimizer.gradient_clipping = 0;
  const auto settle = [&](KernelFlag part, StepState& state) {
    SettleStep(SettingsOf(setup, part), state);
  };
  for (const double norm_sq : {16.0, 0.25}) {
    StepState whole = InitialStepState(setup), parts = whole;
    whole.loss_sum = parts.loss_sum = 24;
    for (int rank = 0; rank < 4; ++rank) {
      whole.stop_requested += StepVote(rank == 1, 12);
      parts.stop_requested += StepVote(rank == 1, 12);
    }
    whole.grad_norm_sq = norm_sq;
    SettleStep(setup, whole);
    parts.grad_norm_sq = std::numeric_limits<double>::infinity();  // of a step before
    settle(kBeforeNorm, parts);
    CHECK(parts.skip == kTaken);
    CHECK(parts.grad_factor == whole.grad_factor);
    CHECK(parts.lr == whole.lr);
    parts.grad_norm_sq = norm_sq;
    settle(kAfterNorm, parts);
    CHECK(std::memcmp(&parts, &whole, sizeof(StepState)) == 0);
  }
  StepState state = InitialStepState(setup);
  state.loss_sum = 24;
  settle(kBeforeNorm, state);
  state.grad_norm_sq = std::numeric_limits<double>::quiet_NaN();
  settle(kAfterNorm, state);
  CHECK(state.skip == kGradientsNotFinite);
  CHECK(state.skipped_steps == 0);
  CHECK(state.step == 1);  // its updates ran
}

TEST_CASE("the schedule counts steps taken, and skipped steps do not count") {
  TrainSetup setup = Setup(Dtype::kBF16);
  setup.optimizer.schedule = {
      .kind = ScheduleKind::kWarmup, .warmup_max_lr = 1, .warmup_steps = 4, .log_warmup = false};
  StepState state = InitialStepState(setup);
  const auto settle = [&](double norm_sq) {
    state.grad_norm_sq = norm_sq;
    SettleStep(setup, state);
  };
  settle(1);
  CHECK(state.lr == 0);
  settle(1);
  CHECK(state.lr == 0);  // the schedule moves after the first step
  settle(1);
  CHECK(state.lr == 0.25f);
  const StepState before = state;
  settle(NAN);
  CHECK(state.skip == 1);
  CHECK(state.skipped_steps == 1);
  CHECK(state.step == before.step);
  CHECK(state.lr == before.lr);
  CHECK(state.loss_scale == 1);
  CHECK_FALSE(std::isfinite(state.grad_norm));
  settle(1);
  CHECK(state.skip == 0);
  CHECK(state.lr == 0.5f);
  settle(INFINITY);
  CHECK(state.skip == 1);
  CHECK(state.skipped_steps == 2);
}

TEST_CASE("what is wrong with a step is said, and it changes nothing") {
  const TrainSetup setup = Setup(Dtype::kBF16);
  StepState state = InitialStepState(setup);
  const auto settle = [&](double loss, double norm, double stop = 0) {
    state.loss_sum = loss * 12;  // over 4 ranks and 3 micro-steps
    state.grad_norm_sq = norm * norm;
    state.stop_requested = stop;
    SettleStep(setup, state);
    return state.skip;
  };
  state.spike_factor = 3;
  CHECK(settle(1, 2) == kTaken);
  CHECK(settle(INFINITY, 2) == kLossNotFinite);
  CHECK(settle(NAN, NAN) == kGradientsNotFinite);
  CHECK(settle(1, 2, NAN) == kAbandoned);
  CHECK(state.step == 1);
  CHECK(state.skipped_steps == 2);  // an abandoned step is made again
  // No median of fewer than five steps.
  CHECK(settle(100, 2) == kTaken);
  CHECK(settle(3, 2) == kTaken);
  CHECK(settle(4, 500) == kTaken);
  CHECK(RunningMedian(state.recent_loss) == 0);
  CHECK(settle(2, 4) == kTaken);
  CHECK(RunningMedian(state.recent_loss) == 3);  // of 1, 100, 3, 4, 2
  CHECK(RunningMedian(state.recent_norm) == 2);  // of 2, 2, 2, 500, 4
  CHECK(settle(9.1, 2) == kLossSpike);
  CHECK(settle(2, 6.1) == kGradientSpike);
  CHECK(state.step == 5);
  CHECK(state.skipped_steps == 4);
  CHECK(RunningMedian(state.recent_loss) == 3);  // of steps taken
  CHECK(settle(8.9, 5.9) == kTaken);
  CHECK(RunningMedian(state.recent_loss) == 4);  // of 100, 3, 4, 2, 8.9
  state.spike_factor = 0;
  CHECK(settle(1e6, 1e6) == kTaken);
}

TEST_CASE("a spike says nothing about the loss scale") {
  const TrainSetup setup = Setup(Dtype::kF16);
  StepState state = InitialStepState(setup);
  state.good_steps = 1;
  state.loss_sum = NAN;
  state.grad_norm_sq = 1;
  SettleStep(setup, state);
  CHECK(state.skip == kLossNotFinite);
  CHECK(state.good_steps == 1);
  CHECK(state.loss_scale == 16);
}

TEST_CASE("fp16: this step unscales with the old scale, the next one uses the new") {
  const TrainSetup setup = Setup(Dtype::kF16);
  StepState state = InitialStepState(setup);
  state.good_steps = 2;  // the coming step is the third: the window
  state.grad_norm_sq = 64;
  SettleStep(setup, state);
  CHECK(state.grad_norm == 0.5f);            // 8 / 16
  CHECK(state.grad_factor == 1.0f / 16.0f);  // not clipped, unscaled by 16
  CHECK(state.loss_scale == 32);
  CHECK(state.grad_scale == Approx(32 / kTokens));
}

// G: a good step, O: an overflow. Returns the scale after each step.
std::string Scales(const PrecisionConfig& precision, const std::string& steps) {
  StepState state;
  state.loss_scale = InitialLossScale(precision);
  state.hysteresis_left = precision.hysteresis;
  std::string scales;
  for (char step : steps) {
    UpdateLossScale(precision, step == 'O', state);
    scales += std::to_string(static_cast<int64_t>(state.loss_scale)) + " ";
  }
  return scales;
}

TEST_CASE("dynamic loss scale, by the rules of DeepSpeed's DynamicLossScaler") {
  PrecisionConfig p = Setup(Dtype::kF16).precision;  // 16, window 3, hysteresis 2
  CHECK(Scales(p, "GGGGGGG") == "16 16 32 32 32 64 64 ");
  // The first overflow uses up hysteresis, later ones halve until a window of good steps refills
  // it.
  CHECK(Scales(p, "OOO") == "16 8 4 ");
  CHECK(Scales(p, "OGOGGGOO") == "16 16 8 8 8 16 16 8 ");
  // An overflow starts the window anew.
  CHECK(Scales(p, "GGOGGG") == "16 16 16 16 16 32 ");
  p.consecutive_hysteresis = true;
  CHECK(Scales(p, "OGOGO") == "16 16 16 16 16 ");
  p.consecutive_hysteresis = false;
  p.hysteresis = 1;
  p.min_loss_scale = 4;
  CHECK(Scales(p, "OOO") == "8 4 4 ");
  p.loss_scale = 64;  // static
  CHECK(Scales(p, "OGGGO") == "64 64 64 64 64 ");
  p.dtype = Dtype::kBF16;
  CHECK(Scales(p, "OO") == "1 1 ");
}

}  // namespace
}  // namespace zeroplan
