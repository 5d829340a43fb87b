// Elapsed wall time, and medians, which represent several timings of one thing.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace zeroplan {

inline double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The median; the mean of the two middle values of an even number, 0 of none.
inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Median wall time of `rounds` calls, after one that warms up.
template <typename Fn>
double MedianSeconds(int rounds, Fn&& run) {
  run();
  std::vector<double> seconds;
  for (int i = 0; i < rounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    seconds.push_back(SecondsSince(begin));
  }
  return Median(std::move(seconds));
}

}  // namespace zeroplan
