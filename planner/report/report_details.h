// Lines about one choice alone.
#pragma once

#include <string>

#include "planner/estimate/estimate.h"

namespace zeroplan {

// Device peaks by phase, with the buffers that make them; a line a phase.
std::string PhasePeaks(const ChoiceEstimate& choice);

// For each stream that does anything: seconds busy in one step, and seconds that the compute stream
// waits for it. REQUIRES: times are known.
std::string StreamTimes(const SectionTime& time);

// "gpt2-xl: 1.56B parameters, ..." and "8 x NVIDIA H200 SXM, ...".
std::string ModelLine(const ModelSpec& model, int64_t seq_len);
std::string ClusterLine(const Cluster& cluster);
// "bf16, micro-batch 4, 2 micro-steps a step: 64 sequences, 65.5k tokens".
std::string BatchLine(const TrainSetup& setup);

}  // namespace zeroplan
