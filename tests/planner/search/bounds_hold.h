// A choice's bounds beside its program.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "core/lowering/lower.h"
#include "cost_models/memory_walk.h"
#include "cost_models/step_time.h"
#include "planner/estimate/choices.h"
#include "planner/search/bounds.h"
#include "planner/search/search.h"

namespace zeroplan {

// What `candidate` is bounded by, beside its program.
inline void CheckHolds(Bounds& bounds, const SearchInputs& in, const Candidate& candidate) {
  const SearchCluster& cluster = in.clusters[0];
  const Program program = Lower(in.model, SetupOf(candidate, in.base), in.lower);
  const GroupBound group = bounds.Group(candidate, cluster.cluster, *cluster.costs);
  const ComputeBound& compute =
      bounds.Compute(candidate.micro_batch, candidate.recompute, *cluster.costs, candidate.products,
                     candidate.sequence_ranks);
  CAPTURE(SetupLabel(program.setup));
  CAPTURE(candidate.grad_accum);
  CHECK(Bounds::StepSeconds(group, compute, candidate.grad_accum) <=
        StepTimer(*cluster.costs).Time(program).total_seconds * (1 + 1e-9));
  const MemoryTotals totals =
      TotalsOf(program.arena_bytes, OutsideArenasOf(program), cluster.cluster);
  const MemoryBound bound = Bounds::Memory(group, compute);
  CHECK(bound.gpu_bytes <= totals.gpu_bytes);
  CHECK(bound.host_bytes <= totals.host_bytes);
  CHECK(bound.nvme_bytes <= totals.nvme_bytes);
}

inline Bounds BoundsOf(const SearchInputs& in) {
  return Bounds(in.model,
                std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(in.model)),
                in.base, in.lower);
}

inline void Shrink(ModelSpec& model) {
  model.hidden = 256;
  model.heads = 4;
  model.ffn = 1024;
  model.vocab = model.padded_vocab = 1024;
}

}  // namespace zeroplan
