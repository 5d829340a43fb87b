#include "executor/train/interrupt.h"

#include <csignal>

namespace zeroplan {
namespace {

// A signal handler reaches nothing but such a flag.
volatile std::sig_atomic_t g_stop = 0;

void OnSignal(int signal) {
  if (g_stop != 0) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  g_stop = 1;
}

}  // namespace

InterruptScope::InterruptScope() {
  g_stop = 0;
  std::signal(SIGINT, OnSignal);
  std::signal(SIGTERM, OnSignal);
}

InterruptScope::~InterruptScope() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool StopRequested() { return g_stop != 0; }

}  // namespace zeroplan
