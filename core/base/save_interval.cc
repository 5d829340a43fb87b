#include "core/base/save_interval.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace zeroplan {
namespace {

// From the end of one save to that of the next: `seconds` of work and the wait for the save, after
// an interruption of which it takes `restart` to be where the first save was.
double BetweenSaves(double rate, double restart, double seconds) {
  return std::exp(restart * rate) * std::expm1(seconds * rate) / rate;
}

}  // namespace

double BestSaveInterval(double rate, double save_seconds) {
  ZEROPLAN_CHECK(rate > 0 && save_seconds > 0);
  const double save = save_seconds * rate;
  double x = std::sqrt(2 * save);
  // Of (1 - x) e^x = e^-save. The left side is concave and falls, so that Newton's steps come from
  // Young's interval, which is longer, straight down to the root. Where a save is less than this
  // share of M, the digits of a double no longer tell the two apart.
  constexpr double kLeast = 1e-12;
  if (save < kLeast) return x / rate;
  x = std::min(x, 1.0);
  for (int i = 0; i < 100; ++i) {
    const double change = ((1 - x) * std::exp(x) - std::exp(-save)) / (x * std::exp(x));
    x += change;
    if (std::abs(change) < 1e-12 * x) break;
  }
  return x / rate;
}

double InterruptedShare(const InterruptedRun& run, int64_t every) {
  const double work = static_cast<double>(every) * run.step_seconds;
  return BetweenSaves(run.rate, run.restart_seconds + run.lag_seconds, work + run.save_seconds) /
         work;
}

int64_t BestStepsBetweenSaves(const InterruptedRun& run, int64_t most) {
  ZEROPLAN_CHECK(run.rate > 0 && run.step_seconds > 0 && most >= 1);
  const auto steps = [&](double seconds) {
    return std::min(seconds / run.step_seconds, static_cast<double>(most));
  };
  const auto least = std::max(static_cast<int64_t>(std::ceil(steps(run.lag_seconds))), int64_t{1});
  if (run.save_seconds <= 0) return least;
  const auto below =
      std::max(static_cast<int64_t>(steps(BestSaveInterval(run.rate, run.save_seconds))), least);
  const int64_t above = std::min(below + 1, most);
  return InterruptedShare(run, above) < InterruptedShare(run, below) ? above : below;
}

double InterruptedSeconds(const InterruptedRun& run, int64_t steps, int64_t every) {
  ZEROPLAN_CHECK(steps >= 1 && every >= 1);
  const double restart = run.restart_seconds, lag = run.lag_seconds;
  const auto work = [&](int64_t count) {
    return static_cast<double>(count) * run.step_seconds + run.save_seconds;
  };
  // The first save is complete `lag` later; each of the others so long after the one before as its
  // steps took, which had gone on for `lag` by then.
  const int64_t first = std::min(steps, every);
  const int64_t whole = (steps - first) / every, rest = (steps - first) % every;
  double seconds = BetweenSaves(run.rate, restart, work(first) + lag);
  if (whole > 0) {
    seconds += static_cast<double>(whole) * BetweenSaves(run.rate, restart + lag, work(every));
  }
  if (rest > 0) seconds += BetweenSaves(run.rate, restart + lag, work(rest));
  return seconds;
}

}  // namespace zeroplan
