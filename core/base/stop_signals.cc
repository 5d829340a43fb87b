#include "core/base/stop_signals.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "core/base/error.h"
#include "core/base/full_screen.h"

namespace zeroplan {

SignalFile::SignalFile() {
  sigset_t mask = StopSignals();
  sigaddset(&mask, SIGCHLD);
  fd_ = UniqueFd(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) ThrowRuntime("cannot watch for signals: {}", std::strerror(errno));
  pthread_sigmask(SIG_BLOCK, &mask, &before_);
}

SignalFile::~SignalFile() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

sigset_t SignalFile::MaskOfRanks() const {
  sigset_t mask = before_;
  for (const int signal : kStopSignals) sigdelset(&mask, signal);
  return mask;
}

std::vector<int> SignalFile::TakeStops() {
  std::vector<int> stops;
  signalfd_siginfo info;
  while (read(fd_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo != SIGCHLD) stops.push_back(static_cast<int>(info.ssi_signo));
  }
  return stops;
}

namespace {

// A signal handler reaches nothing but such flags: stops asked for by others, and the launcher's
// count of those that it passed on.
volatile std::sig_atomic_t g_direct = 0;
volatile std::sig_atomic_t g_forwarded = 0;
volatile std::sig_atomic_t g_notices = 0;            // that the run's end is near
volatile std::sig_atomic_t g_forwarded_notices = 0;  // of them, the launcher's, which it counts too

// The answer: one of two texts, so that a signal that comes while the other is written finds a
// whole one.
char g_answers[2][kMostAnswer];
volatile std::sig_atomic_t g_answer_bytes[2] = {0, 0};
volatile std::sig_atomic_t g_answer = 0;
volatile std::sig_atomic_t g_answered = 0;

void Answer() {
  if (g_answered != 0) return;
  g_answered = 1;
  const std::sig_atomic_t which = g_answer;
  const auto bytes = static_cast<size_t>(g_answer_bytes[which]);
  const int before = errno;
  if (bytes > 0 && write(STDERR_FILENO, g_answers[which], bytes) < 0) {
    // There is nobody left to answer.
  }
  errno = before;
}

void OnSignal(int signal, siginfo_t* info, void*) {
  const int count = CountOfForwarded(*info);
  Answer();
  if (signal != SIGINT && signal != SIGTERM) {
    g_notices = 1;
    const std::sig_atomic_t before = g_forwarded_notices;
    if (count > 0) g_forwarded_notices = before + 1;
    return;
  }
  if (count > 0) {
    g_forwarded = count - g_forwarded_notices;
  } else {
    const std::sig_atomic_t before = g_direct;
    g_direct = before + 1;
  }
  if (g_direct > 1 || g_forwarded > 1) {
    LeaveFullScreenNow();
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

void Forget() {
  g_direct = 0;
  g_forwarded = 0;
  g_notices = 0;
  g_forwarded_notices = 0;
  g_answer_bytes[0] = 0;
  g_answer_bytes[1] = 0;
  g_answered = 0;
}

}  // namespace

InterruptScope::InterruptScope() {
  Forget();
  struct sigaction action {};
  action.sa_sigaction = OnSignal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&action.sa_mask);
  const sigset_t signals = StopSignals();
  for (const int signal : kStopSignals) {
    if (sigismember(&signals, signal) == 1) sigaction(signal, &action, nullptr);
  }
  pthread_sigmask(SIG_UNBLOCK, &signals, &before_);
  HearStops(StopRequested);
}

InterruptScope::~InterruptScope() {
  HearStops(nullptr);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  const sigset_t signals = StopSignals();
  for (const int signal : kStopSignals) {
    if (sigismember(&signals, signal) == 1) std::signal(signal, SIG_DFL);
  }
  Forget();
}

void AnswerStopsWith(const std::string& line) {
  const std::sig_atomic_t other = 1 - g_answer;
  const size_t bytes = std::min(line.size(), kMostAnswer);
  std::memcpy(g_answers[other], line.data(), bytes);
  g_answer_bytes[other] = static_cast<std::sig_atomic_t>(bytes);
  g_answer = other;
}

bool StopRequested() { return g_direct != 0 || g_forwarded != 0 || g_notices != 0; }

}  // namespace zeroplan
