// Seconds of a kernel that only moves memory.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "hwprofiles/profile.h"

namespace zeroplan {

// Measured times of kernels by name and bytes. Interpolates linearly between a kernel's rows, so
// each row is met. Below the smallest row the time is that row's, the cost of a call; beyond the
// largest the rate is that row's.
class KernelTimes {
 public:
  explicit KernelTimes(const std::optional<Measured<NamedKernelTime>>& table);

  // Nothing for a kernel with fewer than two rows.
  std::optional<double> Seconds(KernelId kernel, double bytes) const;
  // The highest rate that Seconds implies; 0 without rows.
  double BytesPerSecond() const { return fastest_; }

 private:
  struct Point {
    double bytes, seconds;
  };
  std::array<std::vector<Point>, kKernelSlots> points_;  // by rising bytes
  double fastest_ = 0;
};

// Uses the kernel's own measured rows (KernelTimes), else
//
//   t = max(floor, launch + bytes / bandwidth), bytes read plus written
//
// the roofline's sloped part (Williams, Waterman, Patterson 2009) with Hockney's half-performance
// length (1994) for small sizes. With measured rows of other kernels, launch and bandwidth are
// fitted, and floor is the fastest row (the cost of one call). Without rows: the profile's launch
// overhead, and its copy bandwidth or kCopyShare of the HBM datasheet bandwidth.
inline constexpr double kCopyShare = 0.885;  // H200: a device copy reaches 4.25 of 4.8 TB/s

class MemoryCost {
 public:
  explicit MemoryCost(const GpuProfile& gpu);

  // `side_seconds`: the time of its row's side launches; the kernel's own measured rows include it.
  double Seconds(KernelId kernel, double bytes, double side_seconds) const {
    const std::optional<double> own = kernels_.Seconds(kernel, bytes);
    return own ? *own : Seconds(bytes) + side_seconds;
  }
  double Seconds(double bytes) const {
    const double seconds = launch_seconds_ + bytes * seconds_per_byte_;
    return seconds > floor_seconds_ ? seconds : floor_seconds_;
  }
  double BytesPerSecond() const { return 1 / seconds_per_byte_; }  // for large sizes
  // The highest rate of any kernel.
  double MostBytesPerSecond() const {
    return std::max(BytesPerSecond(), kernels_.BytesPerSecond());
  }

 private:
  KernelTimes kernels_;
  double floor_seconds_ = 0;
  double launch_seconds_ = 0;
  double seconds_per_byte_ = 0;
};

}  // namespace zeroplan
