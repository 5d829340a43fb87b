// Learning rate schedules, with the formulas of DeepSpeed's lr_schedules.py.
#pragma once

#include <cstdint>

#include "core/config/zero_config.h"

namespace zeroplan {

// The learning rate of the optimizer step that comes after `steps_taken` (n) others; n = 0 first.
// DeepSpeed's engine moves a schedule after each optimizer step, and its warm-ups begin to count
// with the first move: t = max(0, n - 1), so that the first two steps have the same rate.
//   constant:    lr
//   WarmupLR:    min + (max - min) * g(t), g = log(t + 1) / log(warmup_steps) or t / warmup_steps;
//                max from t = warmup_steps on
//   WarmupDecay: the same, then g falls linearly to 0 at t = total_steps
//   Cosine:      lr * r(t), r from warmup_min_ratio to 1 like g, then along half a cosine to
//                cos_min_ratio at t = total_steps - 1, where it stays; the very first step has rate
//                0
//   OneCycle:    min_lr + (max_lr - min_lr) * c(n), c from 0 to 1 over first_steps, back over
//                second_steps, straight or in stairs; then min_lr / (1 + decay_rate * past /
//                decay_steps)
//   LRRangeTest: min_lr * (1 + step_rate * n / step_size), the quotient rounded down if staircase
// Like DeepSpeed, a warm-up counts as at least 2 steps. tests/deepspeed compares all of them with
// DeepSpeed's own classes.
double LearningRate(const OptimizerConfig& optimizer, int64_t steps_taken);

}  // namespace zeroplan
