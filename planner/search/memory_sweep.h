// The answer as a function of GPU memory. A step program's bytes and seconds are exact, so the best
// choice by memory is a step function; bounds tell which programs determine its steps.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/search/judge.h"

namespace zeroplan {

// Answers up to `most` bytes, and down to the least in which anything fits, as far as a budget of
// programs allows in either direction. The answer is of its kind at every byte of a range.
// REQUIRES: the objective is throughput, one number of GPUs.
std::vector<MemoryAnswer> SweepMemory(Judge& judge, const Found& now, uint64_t most);

}  // namespace zeroplan
