#include "core/base/long_work.h"

#include <signal.h>

#include <atomic>

#include "core/base/error.h"

namespace zeroplan {
namespace {

std::atomic<bool (*)()> g_asked = nullptr;

// Of those that a run blocks until it can hear them.
bool IsPending() {
  sigset_t pending;
  if (sigpending(&pending) != 0) return false;
  for (const int signal : kStopSignals) {
    if (sigismember(&pending, signal) == 1) return true;
  }
  return false;
}

}  // namespace

void HearStops(bool (*asked)()) { g_asked = asked; }

void ThrowIfInterrupted() {
  bool (*const asked)() = g_asked.load(std::memory_order_relaxed);
  if (asked == nullptr ? !IsPending() : !asked()) return;
  throw Error(ExitCode::kInterrupted, "interrupted; nothing was saved");
}

}  // namespace zeroplan
