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

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kStopSignals) sigaddset(&signals, signal);
  struct sigaction action {};
  if (sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) {
    sigdelset(&signals, SIGHUP);
  }
  return signals;
}

StopSignalsBlocked::StopSignalsBlocked() {
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
}

StopSignalsBlocked::~StopSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

void HearStops(bool (*asked)()) { g_asked = asked; }

void ThrowIfInterrupted() {
  bool (*const asked)() = g_asked.load(std::memory_order_relaxed);
  if (asked == nullptr ? !IsPending() : !asked()) return;
  throw Error(ExitCode::kInterrupted, "interrupted; nothing was saved");
}

}  // namespace zeroplan
