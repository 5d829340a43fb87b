// The interval between saves of a run with interruptions, and the run's expected time.
//
// The model is Daly's (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
// restart dumps", Future Generation Computer Systems 22, 2006). Interruptions are a Poisson process
// with the mean time M between them. They may come at any time, during saves and restarts too. Work
// since the last complete save is repeated, after a restart of R. Steps wait d for a save, and work
// w is done between two saves. From the end of one save to that of the next the mean time is
//
//     M e^(R/M) (e^((w + d)/M) - 1)
//
// A save that is written concurrently with steps is complete only L after the steps go on. So each
// interruption loses L more of work, which equals a restart that is L longer.
#pragma once

#include <cstdint>

namespace zeroplan {

struct InterruptedRun {
  double rate = 0;          // interruptions a second, over all machines of the run: 1/M
  double step_seconds = 0;  // time of one step
  double save_seconds = 0;  // d: time that steps wait for a save
  // L: from then until the save is complete; 0: steps wait for the whole save
  double lag_seconds = 0;
  double restart_seconds = 0;  // R: from an interruption until steps run again
};

// Seconds of work between two saves that minimise a run's time: the solution of (1 - w/M) e^(w/M) =
// e^(-d/M). It depends on neither R nor L. It is below Young's sqrt(2 d M) ("A first order
// approximation to the optimum checkpoint interval", CACM 17, 1974), by at most d. REQUIRES: both
// above 0.
double BestSaveInterval(double rate, double save_seconds);

// The same in whole steps, from 1 to `most`: the better of the two neighbouring numbers. If saves
// are written concurrently with steps, the interval is at least the time until a save is complete,
// because only one save is written at a time. REQUIRES: rate, step_seconds above 0.
int64_t BestStepsBetweenSaves(const InterruptedRun& run, int64_t most);

// The mean time of a long run that saves every `every` steps, over the time of its steps alone
// without interruptions. Infinity if the result exceeds any number.
double InterruptedShare(const InterruptedRun& run, int64_t every);

// Mean seconds of a run of `steps` steps that saves every `every` steps and at its end. REQUIRES:
// both at least 1.
double InterruptedSeconds(const InterruptedRun& run, int64_t steps, int64_t every);

}  // namespace zeroplan
