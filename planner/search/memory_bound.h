// Lower bounds on the bytes of a choice's program.
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
  uint64_t gpu_bytes = 0;     // units gathered whole, and gradients
  int64_t segments_done = 0;  // recompute segments whose saved activations may be freed
};

// The memory terms of a group that its batch does not change.
struct GroupMemory {
  MemoryBound states;                // model states and other bytes certainly live with them
  uint64_t kept_bytes = 0;           // units kept for the backward pass, while its first part runs
  uint64_t tied_head_bytes = 0;      // a tied head's gradient: live from the loss on
  uint64_t filled_bucket_bytes = 0;  // other bytes on a GPU while the reduce bucket is full
  std::array<BackwardMoment, 2> moments{};  // the same at other times
  uint64_t gathered_bytes = 0;  // the same while a backward kernel reads a layer's largest tensor
  bool gathers_fp8 = false;     // as in GroupTerms
  uint64_t node_ranks = 1;      // ranks whose activations one host holds
};

// Adds up model states by the closed forms, without alignment; persistently gathered parameters;
// the runtime; and, in host memory, one slot through which states are saved.
GroupMemory MemoryOfGroup(const GroupTerms& terms, const Candidate& group, const TrainSetup& base,
                          const LayoutFacts& facts, const Cluster& cluster,
                          const LowerOptions& options);

}  // namespace zeroplan
