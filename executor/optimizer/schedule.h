// Learning rate schedules, with the formulas of DeepSpeed's WarmupLR, WarmupDecayLR and
// WarmupCosineLR.
#pragma once

#include <cstdint>

#include "core/config/zero_config.h"

namespace zeroplan {

// The learning rate of the optimizer step that comes after `steps_taken` (t) others; t = 0 first.
//   constant:    lr
//   WarmupLR:    min + (max - min) * g(t), g = log(t + 1) / log(warmup_steps) or t / warmup_steps;
//                max from t = warmup_steps on
//   WarmupDecay: the same, then g falls linearly to 0 at total_steps
//   Cosine:      lr * r(t), r from warmup_min_ratio to 1 like g, then along half a cosine to
//                cos_min_ratio at total_steps - 1, where it stays
// Like DeepSpeed, a warm-up counts as at least 2 steps.
double LearningRate(const OptimizerConfig& optimizer, int64_t steps_taken);

}  // namespace zeroplan
