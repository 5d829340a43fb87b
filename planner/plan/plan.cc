#include "planner/plan/plan.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/program/bucket_sizes.h"

namespace zeroplan {

TrainSetup ResolveAuto(const Program& program) {
  TrainSetup setup = program.setup;
  setup.zero.reduce_bucket_elements = ReduceBucketElements(program);
  setup.zero.max_live_parameters = LiveParameterLimit(setup.zero, program.layout);
  if (setup.zero.prefetch_bucket_elements == kAuto) {
    // One unit ahead, whatever its size: a bucket that not even the smallest one fits twice.
    uint64_t smallest = UINT64_MAX;
    for (const Unit& unit : program.layout.units) {
      if (!unit.persistent) smallest = std::min(smallest, unit.param_elements);
    }
    constexpr uint64_t kNothingToGather = 50'000'000;  // DeepSpeed's default
    setup.zero.prefetch_bucket_elements =
        smallest == UINT64_MAX ? kNothingToGather : std::max<uint64_t>(1, smallest - 1);
  }
  return setup;
}

Plan MakePlan(const ChoiceSearch& searcher, const SearchResult& result) {
  ZEROPLAN_CHECK(result.best.has_value());
  const StageBest& best = result.stages[*result.best];
  const SearchInputs& inputs = searcher.inputs();
  const SearchCluster& at = searcher.ClusterOf(*best.candidate);
  Plan plan;
  plan.runtime = inputs.runtime;
  plan.compile = inputs.compile;
  plan.model = inputs.model;
  plan.cluster = at.cluster;
  plan.objective = inputs.objective;
  plan.stats = result.stats;
  plan.setup = best.estimate.setup;
  plan.choice = best.estimate;
  if (!plan.runtime->has_programs()) return plan;
  plan.lower = inputs.lower;
  plan.setup = ResolveAuto(Lower(plan.model, SetupOf(*best.candidate, inputs.base), plan.lower));
  plan.choice = EstimateProgram(Lower(plan.model, plan.setup, plan.lower), at.cluster, at.costs);
  const ChoiceEstimate& searched = best.estimate;
  ZEROPLAN_CHECK(plan.choice.footprint.gpu_total() == searched.footprint.gpu_total() &&
                     plan.choice.time.total_seconds == searched.time.total_seconds,
                 "numbers in place of auto lower to another program");
  return plan;
}

}  // namespace zeroplan
