// What `train --trace` shows beside what was measured.
#pragma once

#include <functional>

#include "cli/run/train/train_work.h"
#include "core/program/chrome_trace.h"

namespace zeroplan {

// Adds the step as predicted: on GPUs with the run's hardware profile, of which one host has
// `ranks_per_host` ranks; where a plan for GPUs is rehearsed on the CPU with the plan's. Nothing,
// and a line that says why, where nothing is predicted. `program` is the run's, and outlives it.
std::function<void(ChromeTrace&)> PredictionForTrace(const TrainWork& work, const Program& program,
                                                     Backend backend, int ranks_per_host);

}  // namespace zeroplan
