// Time that passes when a test says so, for a Watch.
#pragma once

#include <atomic>
#include <chrono>

#include "executor/engine/watch.h"
#include "tests/patience.h"

namespace zeroplan {

class FakeTime {
 public:
  // The watch looks often, and finds this time. This outlives it.
  void Drive(WatchOptions& options) {
    options.look_every = kLookEvery;
    options.now = [this] {
      ++asked_;
      return std::chrono::steady_clock::time_point(time_.load());
    };
  }
  // In steps that the watch does not take for those of a process that was stopped, each of which it
  // sees. REQUIRES: a watch looks.
  void Pass(std::chrono::milliseconds time) {
    for (auto left = time; left.count() > 0; left -= kStep) {
      time_ = time_.load() + std::min(left, kStep);
      // One look may be under way, which asked before.
      Await([this, before = asked_.load()] { return asked_ >= before + 2; });
    }
  }

 private:
  static constexpr std::chrono::milliseconds kLookEvery{5}, kStep{20};

  std::atomic<std::chrono::milliseconds> time_{std::chrono::hours(1)};
  std::atomic<int64_t> asked_ = 0;
};

}  // namespace zeroplan
