#include "executor/train/run_steps.h"

#include <algorithm>
#include <chrono>
#include <span>

#include "core/base/log.h"
#include "core/base/timing.h"
#include "core/model/model_spec.h"
#include "executor/process/stop_signals.h"

namespace zeroplan {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Asking a GPU's driver for its memory takes a while: not at every step.
constexpr int64_t kDeviceUseEvery = 16;

std::optional<double> MfuOf(const RunParts& parts, double tokens_per_second) {
  const std::optional<double> peak = parts.options.dense_peak_flops;
  if (!peak) return std::nullopt;
  return StrictMfu(parts.opened.program.model, parts.batch().seq_len, tokens_per_second,
                   parts.batch().world_size, *peak);
}

}  // namespace

void RunSteps::Run() {
  while (parts_.state.done < parts_.opened.steps && !leaving_.leaving() &&
         !validation_.out_of_patience()) {
    Step();
  }
}

void RunSteps::Step() {
  parts_.group.ThrowIfFailed();
  // Alone there is nobody to agree with.
  if (parts_.group.world_size() == 1) leaving_.LookForReason();
  if (leaving_.leaving()) return;
  if (StopRequested() || leaving_.HasFailed()) parts_.engine.RequestStop();
  parts_.limits.ExpectStep(fmt::format("step {}", parts_.state.done + 1));
  const SteadyClock::time_point begin = SteadyClock::now();
  const StepState state = RunOnEngine();
  if (state.skip == kAbandoned) return leaving_.NoteAbandoned();
  const double seconds = SecondsSince(begin);
  seconds_.push_back(seconds);
  parts_.limits.step.Note(seconds);
  parts_.state.consumed += static_cast<uint64_t>(parts_.batch().global_batch());
  const int64_t done = ++parts_.state.done;
  Report(state, seconds);
  if (bad_steps_.too_many()) EndDiverged(parts_, state, bad_steps_, saves_);
  if (state.stop_requested > 0) leaving_.LookForReason();
  if (done >= parts_.opened.steps || leaving_.leaving()) return;
  if (validation_.IsDue()) validation_.ValidateAndKeep();
  if (leaving_.leaving() || validation_.out_of_patience() || validation_.saved_at() == done) return;
  const int64_t every = parts_.options.save_every;
  if (every == 0 || done % every != 0) return;
  saves_.SaveBetweenSteps(parts_.Meta());
  leaving_.LookForReason();
}

StepState RunSteps::RunOnEngine() {
  return parts_.engine.Step([this](int rank, int64_t m, std::span<int32_t> inputs,
                                   std::span<int32_t> targets, std::span<int32_t> starts) {
    try {
      parts_.opened.sampler->FillTrain(parts_.state.consumed, rank, m, inputs, targets, starts);
    } catch (...) {
      leaving_.KeepFailure(std::current_exception());
      FillWithAnything(inputs, targets, starts, parts_.batch().seq_len,
                       parts_.opened.document_limits());
      parts_.engine.AbandonStep(rank);
    }
  });
}

void RunSteps::Report(const StepState& state, double seconds) {
  StepReport step;
  step.step = parts_.state.done;
  step.state = state;
  step.tokens = parts_.batch().global_batch() * parts_.batch().seq_len;
  step.step_seconds = seconds;
  step.tokens_per_second = static_cast<double>(step.tokens) / seconds;
  step.mfu = MfuOf(parts_, step.tokens_per_second);
  step.times = parts_.engine.LastStepTimes();
  {
    const Watch::Meeting meeting(parts_.watch);
    step.slowest = stragglers_.Note(parts_.engine.LastOwnSeconds(), parts_.group);
  }
  if (parts_.first() && step.slowest) {
    if (const auto warning = stragglers_.Warning(*step.slowest, SteadyClock::now())) {
      LogWarning("{}", *warning);
    }
  }
  saves_.Look(seconds);
  if (seconds_.size() == 1 || step.step % kDeviceUseEvery == 0) LookAtDevice();
  step.device_used_bytes = device_used_bytes_;
  last_loss_ = state.loss_sum;
  bad_steps_.Note(state);
  leaving_.Tell([&] { parts_.observer.OnStep(step); });
}

std::optional<uint64_t> RunSteps::LookAtDevice() {
  const std::optional<uint64_t> used = parts_.engine.DeviceUsedBytes();
  if (used) device_used_bytes_ = std::max(device_used_bytes_.value_or(0), *used);
  return device_used_bytes_;
}

double RunSteps::median_seconds() const { return Median(seconds_); }

}  // namespace zeroplan
