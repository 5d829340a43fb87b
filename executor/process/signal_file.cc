#include "executor/process/signal_file.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/base/error.h"
#include "executor/process/stop_signals.h"

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

}  // namespace zeroplan
