#include "executor/train/run_parts.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/terminal.h"
#include "core/base/timing.h"

namespace zeroplan {
namespace {

constexpr std::chrono::hours kForEver(24 * 365);

}  // namespace

void StepLimit::Note(double seconds) {
  if (last_.size() < kWindow) {
    last_.push_back(seconds);
  } else {
    last_[noted_ % kWindow] = seconds;
  }
  ++noted_;
}

double StepLimit::seconds() const {
  if (asked_) return *asked_;
  const double known = std::max(predicted_, Median(last_));
  return known > 0 ? std::max(kFloor, kFactor * known) : kFirst;
}

void RunLimits::ExpectMoves(std::string what) const {
  if (group_.rank() == 0) ShowProgress(what);
  SetMeeting(still_seconds(), what);
  watch_.Expect(std::move(what), Watch::Seconds(still_seconds()), /*renews=*/true);
}

void RunLimits::ExpectStep(std::string what) const {
  watch_.Expect(std::move(what), Watch::Seconds(step.seconds()));
}

void RunLimits::SetMeeting(double seconds, const std::string& purpose) const {
  group_.SetDeadline(
      seconds > 0 ? std::chrono::seconds(static_cast<int64_t>(seconds) + 1) : kForEver, purpose);
}

std::vector<std::string> RunParts::Gather(const std::string& mine) const {
  const Watch::Meeting meeting(watch);
  return group.AllGather(mine);
}

CheckpointMeta RunParts::Meta() const {
  CheckpointMeta meta;
  meta.step = state.done;
  meta.samples_consumed = state.consumed;
  meta.seed = opened.seed;
  meta.world_size = batch().world_size;
  meta.model = opened.program.model;
  meta.train_tokens = opened.sampler->train_tokens();
  meta.validation = state.best.record();
  meta.is_best = options.keep_best && state.best.IsAt(state.done);
  for (const auto& [name, value] : opened.facts) meta.run[name] = value;
  if (!options.choice.empty()) meta.run[kChoiceFact] = options.choice;
  return meta;
}

}  // namespace zeroplan
