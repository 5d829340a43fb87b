// Bytes that a choice's program holds at least.
#pragma once

#include <array>
#include <cstdint>

#include "core/lowering/lower.h"
#include "planner/footprint.h"
#include "planner/search/bound_facts.h"

namespace zeroplan {

using MemoryBound = MemoryTotals;

// A time in the backward pass, where a layer's kernels run.
struct BackwardMoment {
  uint64_t gpu_bytes = 0;     // units that are whole, and gradients
  int64_t segments_done = 0;  // recompute segments, which may have freed what they saved
};

// What the batch does not change of a group's memory.
struct GroupMemory {
  MemoryBound states;                // model states and what is certainly live beside them
  uint64_t tied_head_bytes = 0;      // a tied head's gradient: open from the loss on
  uint64_t filled_bucket_bytes = 0;  // what GPUs hold besides where the reduce bucket is full
  std::array<BackwardMoment, 2> moments{};  // the same at other times
  uint64_t gathered_bytes = 0;  // the same where a backward kernel reads a layer's largest tensor
  bool gathers_fp8 = false;     // GroupTerms'
  uint64_t node_ranks = 1;      // whose activations a host holds
};

// Model states by the closed forms, without alignment; what is kept gathered, the runtime, and of
// host memory a slot through which states are saved.
GroupMemory MemoryOfGroup(const GroupTerms& terms, const Candidate& group, const TrainSetup& base,
                          const LayoutFacts& facts, const Cluster& cluster,
                          const LowerOptions& options);

}  // namespace zeroplan
