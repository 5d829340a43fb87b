// Bytes that a choice's program holds at least.
#pragma once

#include <cstdint>

#include "core/lowering/lower.h"
#include "planner/footprint.h"
#include "planner/search/bound_facts.h"

namespace zeroplan {

using MemoryBound = MemoryTotals;

// What the batch does not change of a group's memory.
struct GroupMemory {
  MemoryBound states;                // model states and what is certainly live beside them
  uint64_t filled_bucket_bytes = 0;  // what GPUs hold besides where the reduce bucket is full
};

// Model states by the closed forms, without alignment; the gradient of a tied head, what is
// kept gathered, the runtime, and of host memory a slot through which states are saved.
GroupMemory MemoryOfGroup(const GroupTerms& terms, const Candidate& group, const TrainSetup& base,
                          const LayoutFacts& facts, const Cluster& cluster,
                          const LowerOptions& options);

}  // namespace zeroplan
