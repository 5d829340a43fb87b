// How long a run is, and its learning rate's way over that length.
#pragma once

#include <cstdint>

#include "core/config/zero_config.h"

namespace zeroplan {

struct EpochCount {
  double epochs = 1;           // > 0; what is no whole number ends within one
  uint64_t train_samples = 1;  // of an epoch
  int64_t global_batch = 1;    // sequences of a step, from here on
  int64_t done = 0;            // steps before, of whatever batch
  uint64_t consumed = 0;       // samples of those
};

// The number of optimizer steps, those before included, after which each sample was trained on
// `epochs` times. Steps are whole and the order goes on from one epoch into the next, so the last
// step may take some samples of an epoch more. Throws Error(kUsage) for more than 2^31 - 1 steps.
int64_t StepsOfEpochs(const EpochCount& count);

// What a schedule leaves to the run's length: the step at which a decay ends, a warm-up's share.
ScheduleConfig ScheduleOfRun(ScheduleConfig schedule, int64_t steps);

}  // namespace zeroplan
