// Which rank the others wait for, before it is dead.
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
  double seconds = 0;  // a step, without what it waited for others
  double share = 1;    // of the median of the other ranks' seconds
};

// The slowest of `seconds` by rank; none of fewer than two ranks.
std::optional<SlowRank> FindSlowest(const std::vector<double>& seconds);

class Stragglers {
 public:
  // Ranks compare what they took every kEvery steps: it costs a meeting of the processes.
  static constexpr int64_t kEvery = 16;
  // Worth a warning: this many times the others' median, and by a margin.
  static constexpr double kFactor = 2, kSeconds = 0.01;
  static constexpr std::chrono::minutes kSayAgain{10};

  // Called after each step, on all ranks of the group, with what this process's ranks took by
  // themselves. The first step is left out: it loads what is loaded at first use. Returns every
  // kEvery steps the slowest rank over these, where all are known.
  std::optional<SlowRank> Note(const std::vector<std::optional<double>>& own, ProcessGroup& group);
  // What to warn of, if it was not said a moment ago.
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
