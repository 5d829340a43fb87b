#include "executor/train/interrupt.h"

#include <signal.h>

#include <csignal>

#include "executor/process/forwarded_signal.h"
#include "executor/process/stop_signals.h"

namespace zeroplan {
namespace {

// A signal handler reaches nothing but such flags: stops asked for by others, and the launcher's
// count of those that it passed on.
volatile std::sig_atomic_t g_direct = 0;
volatile std::sig_atomic_t g_forwarded = 0;

void OnSignal(int signal, siginfo_t* info, void*) {
  const int count = CountOfForwarded(*info);
  if (count > 0) {
    g_forwarded = count;
  } else {
    const std::sig_atomic_t before = g_direct;
    g_direct = before + 1;
  }
  if (g_direct > 1 || g_forwarded > 1) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

}  // namespace

InterruptScope::InterruptScope() {
  g_direct = 0;
  g_forwarded = 0;
  struct sigaction action {};
  action.sa_sigaction = OnSignal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_UNBLOCK, &signals, &before_);
}

InterruptScope::~InterruptScope() {
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool StopRequested() { return g_direct != 0 || g_forwarded != 0; }

}  // namespace zeroplan
