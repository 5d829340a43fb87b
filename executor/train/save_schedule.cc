#include "executor/train/save_schedule.h"

#include <fmt/format.h>

#include <limits>
#include <sstream>

#include "core/base/error.h"
#include "core/base/save_interval.h"
#include "core/base/timing.h"

namespace zeroplan {
namespace {

void Keep(std::vector<double>& last, size_t most, double value) {
  if (last.size() == most) last.erase(last.begin());
  last.push_back(value);
}

}  // namespace

void SaveSchedule::NoteStep(double seconds) {
  ++since_;
  if (is_auto()) Keep(steps_, kWindow, seconds);
}

bool SaveSchedule::IsDue(int64_t done) const {
  if (!is_auto()) return every_ > 0 && done % every_ == 0;
  if (chosen_) return since_ >= chosen_->steps;
  return !begun_ && since_ >= kFirst;
}

void SaveSchedule::NoteBegun() {
  since_ = 0;
  begun_ = true;
}

void SaveSchedule::NoteSaved(double save_seconds, double write_seconds) {
  if (!is_auto()) return;
  Keep(saves_, kWindow, save_seconds);
  Keep(writes_, kWindow, write_seconds);
}

ChosenInterval SaveSchedule::Choose() const {
  ZEROPLAN_CHECK(is_auto() && !saves_.empty());
  ChosenInterval chosen = {.rate = rate_,
                           .step_seconds = Median(steps_),
                           .save_seconds = Median(saves_),
                           .write_seconds = Median(writes_)};
  // A save may come before the first step, and a clock may be coarse.
  if (chosen.step_seconds <= 0) {
    chosen.steps = kFirst;
    return chosen;
  }
  const InterruptedRun run = {.rate = rate_,
                              .step_seconds = chosen.step_seconds,
                              .save_seconds = chosen.save_seconds,
                              .lag_seconds = chosen.write_seconds};
  chosen.steps = BestStepsBetweenSaves(run, std::numeric_limits<int32_t>::max());
  return chosen;
}

std::string SaveSchedule::Write(const ChosenInterval& chosen) {
  return fmt::format("{} {} {} {} {}", chosen.steps, chosen.rate, chosen.step_seconds,
                     chosen.save_seconds, chosen.write_seconds);
}

void SaveSchedule::Take(const std::string& written) {
  std::istringstream words(written);
  ChosenInterval taken;
  words >> taken.steps >> taken.rate >> taken.step_seconds >> taken.save_seconds >>
      taken.write_seconds;
  ZEROPLAN_CHECK(!words.fail() && taken.steps >= 1, "rank 0's interval of saves: {}", written);
  chosen_ = taken;
}

}  // namespace zeroplan
