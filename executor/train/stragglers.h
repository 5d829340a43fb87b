// Finds the rank that the others wait for, while it is still alive.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor/process/process_group.h"

namespace zeroplan {

struct SlowRank {
  int rank = 0;
  double seconds = 0;  // a step's, without its waits for others
  double share = 1;    // relative to the median of the other ranks' seconds
};

// The slowest of `seconds` by rank; none for fewer than two ranks.
std::optional<SlowRank> FindSlowest(const std::vector<double>& seconds);

class Stragglers {
 public:
  // Ranks compare their times every kEvery steps only, because it costs a meeting of the processes.
  static constexpr int64_t kEvery = 16;
  // Thresholds of a warning: this many times the others' median, and by a margin.
  static constexpr double kFactor = 2, kSeconds = 0.01;
  static constexpr std::chrono::minutes kSayAgain{10};

  // Called after each step, on all ranks of the group, with the own times of this process's ranks.
  // Leaves out the first step, which loads everything that is loaded at first use. Every kEvery
  // steps returns the slowest rank over them, if all times are known.
  std::optional<SlowRank> Note(const std::vector<std::optional<double>>& own, ProcessGroup& group);
  // The warning about it, unless it was given a moment ago.
  std::optional<std::string> Warning(const SlowRank& slow,
                                     std::chrono::steady_clock::time_point now);

 private:
  int64_t steps_ = 0;
  std::vector<double> sums_;
  bool known_ = true;
  int said_of_ = -1;
  std::chrono::steady_clock::time_point said_at_;
};

}  // namespace zeroplan
