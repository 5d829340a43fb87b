// How tests wait, so that no verdict hangs on a clock. What has to come is waited for without
// limit: CTest ends what hangs (tests/CMakeLists.txt). Where a limit of zeroplan's own is tested,
// whoever has to keep it gets longer ones until it does. A test case that is about time itself
// belongs to the test suite "timing", which the default tests leave out.
#pragma once

#include <chrono>
#include <thread>

namespace zeroplan {

// A limit of zeroplan's that a test must not run into.
inline constexpr std::chrono::milliseconds kNoLimit = std::chrono::hours(24);

// Until `holds()`.
template <typename Condition>
void Await(const Condition& holds) {
  while (!holds()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Calls attempt(limit) with limits that double from `first` until it says that all who had to keep
// the limit did. The last attempt is with a limit of minutes, so that what never holds still ends.
template <typename Attempt>
bool WithLongerLimits(std::chrono::milliseconds first, const Attempt& attempt) {
  for (auto limit = first;; limit *= 2) {
    if (attempt(limit)) return true;
    if (limit > std::chrono::minutes(2)) return false;
  }
}

}  // namespace zeroplan
