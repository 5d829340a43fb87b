// Functions shared by the parts of an answer.
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
// The predicted phase of a run's phase; none for loading, evaluation and saving, which are not
// predicted.
std::optional<TorchPhase> PredictedPhase(RunPhase phase);
// Seconds of an optimizer step in the log, for steps of `setup`.
std::optional<double> StepSecondsOf(const RunLog& log, const TrainSetup& setup);
// Whether the prediction exceeds a host's memory.
bool HostIsShort(const WhyPrediction& predicted);
// Explains a run that died of its host's memory by the prediction for hosts; adds findings.
void FindHostShortage(const RunFailure& failure, WhyAnswer& answer);

// Explains a run that died in loading, evaluation, saving or resuming by the prediction for that
// phase; adds findings.
void FindAround(const RunFailure& failure, WhyAnswer& answer);
// The least deviation of tensors that is reported: above the errors of measured runs
// (docs/runtimes.md).
inline constexpr double kWorthSaying = 0.05;
// Finds changes after which the run fits, each alone; if there is none the fewest together.
void FindChanges(MergedRequest& merged, WhyAnswer& answer);
// For a run that did not fail: the best choice for the same GPUs and batch, if it is clearly
// faster.
void FindFaster(const MergedRequest& merged, WhyAnswer& answer);
// If tensors deviate from the prediction: finds values of unset fields with which they would not.
void FindAlternatives(const WhyRequest& request, WhyAnswer& answer);
// Appends the run to the file as a row of measured runs (docs/why.md). Returns a description of
// what it wrote where. Throws Error(kUsage) naming the values that a row needs and nothing sets.
std::string AddRow(const WhyRequest& request, const WhyAnswer& answer, const MergedRequest& merged);

}  // namespace zeroplan
