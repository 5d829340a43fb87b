#include "executor/train/stragglers.h"

#include <algorithm>
#include <sstream>

#include "core/base/timing.h"

namespace zeroplan {

std::optional<SlowRank> FindSlowest(const std::vector<double>& seconds) {
  if (seconds.size() < 2) return std::nullopt;
  const auto slowest = std::max_element(seconds.begin(), seconds.end());
  std::vector<double> others(seconds.begin(), slowest);
  others.insert(others.end(), slowest + 1, seconds.end());
  const double median = Median(others);
  if (median <= 0) return std::nullopt;
  return SlowRank{static_cast<int>(slowest - seconds.begin()), *slowest, *slowest / median};
}

std::optional<SlowRank> Stragglers::Note(const std::vector<std::optional<double>>& own,
                                         ProcessGroup& group) {
  if (steps_++ == 0) return std::nullopt;
  sums_.resize(own.size(), 0);
  for (size_t i = 0; i < own.size(); ++i) {
    known_ = known_ && own[i].has_value();
    sums_[i] += own[i].value_or(0);
  }
  if (steps_ % kEvery != 0) return std::nullopt;
  const double steps = static_cast<double>(steps_ == kEvery ? kEvery - 1 : kEvery);
  std::string mine = known_ ? "" : "unknown";
  for (const double sum : sums_) mine += known_ ? fmt::format("{} ", sum / steps) : "";
  sums_.assign(sums_.size(), 0);
  known_ = true;
  std::vector<double> all;
  bool all_known = true;
  for (const std::string& text : group.AllGather(mine)) {
    if (text == "unknown") all_known = false;
    std::istringstream words(text);
    for (double seconds = 0; words >> seconds;) all.push_back(seconds);
  }
  return all_known ? FindSlowest(all) : std::nullopt;
}

std::optional<std::string> Stragglers::Warning(const SlowRank& slow,
                                               std::chrono::steady_clock::time_point now) {
  const double more = slow.seconds - slow.seconds / slow.share;
  if (slow.share < kFactor || more < kSeconds) return std::nullopt;
  if (slow.rank == said_of_ && now - said_at_ < kSayAgain) return std::nullopt;
  said_of_ = slow.rank;
  said_at_ = now;
  return fmt::format(
      "rank {} holds the others up: {:.3f} s of its own a step over the last {} steps, {:.1f} "
      "times the median of the other ranks",
      slow.rank, slow.seconds, kEvery, slow.share);
}

}  // namespace zeroplan
