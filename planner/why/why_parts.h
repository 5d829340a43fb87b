// What the parts of an answer share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "planner/footprint.h"
#include "planner/why/merged_request.h"
#include "planner/why/why.h"

namespace zeroplan {

// "79.15 GiB", as PyTorch prints it.
std::string GiBText(uint64_t bytes);
// Of predicted phases the one that a run was in; none is predicted of loading, evaluation and
// saving.
std::optional<TorchPhase> PredictedPhase(RunPhase phase);
// Seconds of an optimizer step that the log tells, steps of `setup`.
std::optional<double> StepSecondsOf(const RunLog& log, const TrainSetup& setup);
// Whether by prediction a host does not hold the run.
bool HostIsShort(const WhyPrediction& predicted);
// What is predicted of hosts, of a run that died of their memory; adds findings.
void FindHostShortage(const RunFailure& failure, WhyAnswer& answer);

// What is predicted of loading, evaluation, saving and resuming, of a run that died there; adds
// findings.
void FindAround(const RunFailure& failure, WhyAnswer& answer);
// Beyond what measured runs were off by, in tensors (docs/runtimes.md).
inline constexpr double kWorthSaying = 0.05;
// Changes after which the run fits, each alone; where there is none the fewest together.
void FindChanges(MergedRequest& merged, WhyAnswer& answer);
// Of a run that ran: the best choice for the same GPUs and batch, where that is worth a word.
void FindFaster(const MergedRequest& merged, WhyAnswer& answer);
// Where tensors are not as predicted: values of fields that nobody said with which they would be.
void FindAlternatives(const WhyRequest& request, WhyAnswer& answer);
// Writes the run as a row of measured runs (docs/why.md) behind those of the file. Returns what was
// written where. Throws Error(kUsage) naming what a row takes and nobody says.
std::string AddRow(const WhyRequest& request, const WhyAnswer& answer, const MergedRequest& merged);

}  // namespace zeroplan
