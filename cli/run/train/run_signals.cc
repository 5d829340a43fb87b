#include "cli/run/train/run_signals.h"

#include <signal.h>
#include <unistd.h>

#include <csignal>

namespace zeroplan {
namespace {

volatile std::sig_atomic_t g_hung_up = 0;

// A closing terminal sends it twice, and a second SIGTERM would end the process at once.
void OnHangUp(int) {
  if (g_hung_up != 0) return;
  g_hung_up = 1;
  kill(getpid(), SIGTERM);
}

}  // namespace

void TakeRunSignals() {
  struct sigaction action {};
  if (sigaction(SIGHUP, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_handler = OnHangUp;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGHUP, &action, nullptr);
}

}  // namespace zeroplan
