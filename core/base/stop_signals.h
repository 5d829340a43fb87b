// Signals that request a stop: blocked in the threads of libraries, passed on to ranks, and handled
// by a run between two steps. A signal to a process goes to any thread that does not block it: an
// unblocked one of a driver's thread would end the process.
#pragma once

#include <signal.h>

#include <string>
#include <vector>

#include "core/base/files.h"
#include "core/base/long_work.h"

namespace zeroplan {

// The mark of a signal that the launcher passes on to its ranks, so that a rank that also got it
// from the terminal does not count it as a second one.
inline constexpr int kForwardedMark = 0x7a70'0000;
inline constexpr int kForwardedCount = 0xffff;

// The launcher's `count`th stop signal, from 1.
inline sigval ForwardedSignal(int count) {
  sigval value{};
  value.sival_int = kForwardedMark | (count & kForwardedCount);
  return value;
}

// The count; 0 if the signal came from elsewhere. Async-signal-safe.
inline int CountOfForwarded(const siginfo_t& info) {
  if (info.si_code != SI_QUEUE) return 0;
  const int value = info.si_value.sival_int;
  return (value & ~kForwardedCount) == kForwardedMark ? value & kForwardedCount : 0;
}

// Stop signals and SIGCHLD as a file to read and to poll. Blocks them in this thread during its
// lifetime, and restores the old mask.
class SignalFile {
 public:
  SignalFile();  // throws Error(kRuntime)
  ~SignalFile();
  SignalFile(const SignalFile&) = delete;
  SignalFile& operator=(const SignalFile&) = delete;

  int fd() const { return fd_.get(); }
  // The mask for ranks: the earlier one, without the stop signals.
  sigset_t MaskOfRanks() const;
  // The signals that requested a stop since the last call.
  std::vector<int> TakeStops();

 private:
  sigset_t before_;
  UniqueFd fd_;
};

// Ctrl-C and SIGTERM request a stop after the current step; a second one ends the process at once.
// SIGUSR1 and SIGUSR2, which schedulers send before they take a node away (Slurm's --signal),
// SIGXCPU, and the SIGHUP of a terminal that closes also request a stop, but never count: a SIGTERM
// that follows is then the first. A rank gets a Ctrl-C from the terminal and from its launcher
// (executor/process/launcher.h): they count as one.
//
// Installs the handlers during its lifetime, with these signals unblocked in this thread, and
// restores the default ones and the thread's mask. ThrowIfInterrupted uses them until
// HearStops(nullptr).
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  sigset_t before_;
};

// Since the scope began; false outside one.
bool StopRequested();

// Sets the line that the handler writes to stderr at the first request to stop, at once; cut at
// kMostAnswer bytes. "", the default of a scope: no answer. Called in the scope's thread.
inline constexpr size_t kMostAnswer = 240;
void AnswerStopsWith(const std::string& line);

}  // namespace zeroplan
