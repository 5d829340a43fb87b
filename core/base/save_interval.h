// How often a run saves that is interrupted, and how long it then takes.
//
// The model is Daly's (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
// restart dumps", Future Generation Computer Systems 22, 2006): interruptions are a Poisson process
// with the mean time M between them. They may come at any time, in a save and in a restart too.
// Work since the last complete save is done again, after a restart of R. A save that steps wait for
// takes d, and work w lies between two of them. From the end of one save to that of the next it
// then takes, on average,
//
//     M e^(R/M) (e^((w + d)/M) - 1)
//
// A save that is written beside the steps is complete only L after the steps go on. So L more of
// work is lost with each interruption, which is the same as a restart that is L longer.
#pragma once

#include <cstdint>

namespace zeroplan {

struct InterruptedRun {
  double rate = 0;             // interruptions a second, of all machines of the run together: 1/M
  double step_seconds = 0;     // of one step
  double save_seconds = 0;     // d: what steps wait for a save
  double lag_seconds = 0;      // L: from then until the save is complete; 0: steps wait for all
  double restart_seconds = 0;  // R: from an interruption until steps are made again
};

// Seconds of work between two saves for which a run takes the least time: where
// (1 - w/M) e^(w/M) = e^(-d/M). It depends on neither R nor L. Below Young's sqrt(2 d M) ("A first
// order approximation to the optimum checkpoint interval", CACM 17, 1974), by at most d.
// REQUIRES: both above 0.
double BestSaveInterval(double rate, double save_seconds);

// The same in whole steps, from 1 to `most`: the better of the two beside it. Where saves are
// written beside the steps, it is no less than one takes to be complete, as there is one at a time.
// REQUIRES: rate, step_seconds above 0.
int64_t BestStepsBetweenSaves(const InterruptedRun& run, int64_t most);

// How many times as long a long run takes that saves every `every` steps as its steps alone would
// without an interruption. Infinite where that is too long to be a number.
double InterruptedShare(const InterruptedRun& run, int64_t every);

// Seconds that a run of `steps` steps takes on average which saves every `every` steps and at its
// end. REQUIRES: both at least 1.
double InterruptedSeconds(const InterruptedRun& run, int64_t steps, int64_t every);

}  // namespace zeroplan
