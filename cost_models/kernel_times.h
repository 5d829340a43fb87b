// Measured times of kernels by name and bytes.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "hwprofiles/profile.h"

namespace zeroplan {

// Linear between a kernel's rows, so that each is met. Below the smallest row it takes as long as
// that one, the time of a call; beyond the largest it runs at that one's rate.
class KernelTimes {
 public:
  explicit KernelTimes(const std::optional<Measured<NamedKernelTime>>& table);

  // Nothing for a kernel of fewer than two rows.
  std::optional<double> Seconds(KernelId kernel, double bytes) const;
  // The fastest that Seconds implies; 0 without rows.
  double BytesPerSecond() const { return fastest_; }

 private:
  struct Point {
    double bytes, seconds;
  };
  std::array<std::vector<Point>, kKernelSlots> points_;  // by rising bytes
  double fastest_ = 0;
};

}  // namespace zeroplan
