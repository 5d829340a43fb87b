#include "cost_models/power_limit.h"

#include <algorithm>
#include <cmath>

namespace zeroplan {
namespace {

// A GPU that cannot stay within its limit above this is broken, or the figures are.
constexpr double kLowestClock = 0.2;

}  // namespace

GpuWork& GpuWork::operator+=(const GpuWork& other) {
  fixed_seconds += other.fixed_seconds;
  clocked_seconds += other.clocked_seconds;
  joules += other.joules;
  clocked_joules += other.clocked_joules;
  return *this;
}

GpuWork GpuWork::operator*(double times) const {
  return {fixed_seconds * times, clocked_seconds * times, joules * times, clocked_joules * times};
}

PowerLimit::PowerLimit(const GpuProfile& gpu) : known_(gpu.power.has_value()) {
  if (!known_) return;
  spare_watts_ = gpu.power->limit.value - gpu.power->base.value;
  flop_ = gpu.power->flop.value;
  byte_ = gpu.power->byte.value;
  clocked_ = gpu.power->clocked.value;
  if (gpu.power->flop_e4m3) eight_bit_flop_ = gpu.power->flop_e4m3->value / flop_;
}

GpuWork PowerLimit::Kernel(double seconds, double flops, double bytes, double share) const {
  if (!known_) return {seconds, 0, 0, 0};
  return {(1 - share) * seconds, share * seconds, byte_ * bytes, flop_ * flops};
}

// spare * (fixed + clocked / c) = joules + clocked_joules * c, a quadratic equation in c.
double PowerLimit::Clock(const GpuWork& work) const {
  const double a = work.clocked_joules;
  if (!known_ || work.joules + a <= spare_watts_ * work.seconds()) return 1;
  const double b = work.joules - spare_watts_ * work.fixed_seconds;
  const double c = spare_watts_ * work.clocked_seconds;
  // Only bytes: no clock helps.
  if (a <= 0) return b > 0 ? std::clamp(c / b, kLowestClock, 1.0) : 1;
  return std::clamp((std::sqrt(b * b + 4 * a * c) - b) / (2 * a), kLowestClock, 1.0);
}

double PowerLimit::AtTopClock(double seconds, double flops, double bytes, double share) const {
  if (!known_ || flops <= 0) return seconds;
  const double clock =
      std::clamp((spare_watts_ * seconds - byte_ * bytes) / (flop_ * flops), kLowestClock, 1.0);
  return seconds / (1 - share + share / clock);
}

}  // namespace zeroplan
