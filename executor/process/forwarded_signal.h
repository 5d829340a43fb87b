// A signal that the launcher passes on to its ranks, marked so that a rank which got it from the
// terminal too does not take it for a second one.
#pragma once

#include <signal.h>

namespace zeroplan {

inline constexpr int kForwardedMark = 0x7a70'0000;
inline constexpr int kForwardedCount = 0xffff;

// The launcher's `count`th stop signal, from 1.
inline sigval ForwardedSignal(int count) {
  sigval value{};
  value.sival_int = kForwardedMark | (count & kForwardedCount);
  return value;
}

// The count; 0 if the signal came from elsewhere. Safe in a signal handler.
inline int CountOfForwarded(const siginfo_t& info) {
  if (info.si_code != SI_QUEUE) return 0;
  const int value = info.si_value.sival_int;
  return (value & ~kForwardedCount) == kForwardedMark ? value & kForwardedCount : 0;
}

}  // namespace zeroplan
