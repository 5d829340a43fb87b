// The answer as a function of GPU memory. Of a step program both its bytes and its seconds are
// exact, so the best with so much memory is a step function; bounds say which programs decide its
// steps.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/search/judge.h"

namespace zeroplan {

// Up to `most` bytes, down to the least that anything fits in, as far as a budget of programs goes
// in either direction. At every byte of a range the answer is of its kind. REQUIRES: the objective
// is throughput, one number of GPUs.
std::vector<MemoryAnswer> SweepMemory(Judge& judge, const Found& now, uint64_t most);

}  // namespace zeroplan
