#include <algorithm>

#include "core/base/error.h"
#include "core/program/bucket_sizes.h"
#include "planner/plan/plan_file.h"
#include "planner/runtimes/deepspeed_engine.h"

namespace zeroplan {

TrainSetup ResolveAuto(const Program& program) {
  TrainSetup setup = program.setup;
  setup.zero.reduce_bucket_elements = ReduceBucketElements(program);
  setup.zero.max_live_parameters = LiveParameterLimit(setup.zero, program.layout);
  if (setup.zero.prefetch_bucket_elements == kAuto) {
    // The prefetch is one unit ahead, regardless of its size: the bucket is too small for even two
    // of the smallest units.
    uint64_t smallest = UINT64_MAX;
    for (const Unit& unit : program.layout.units) {
      if (!unit.persistent) smallest = std::min(smallest, unit.param_elements);
    }
    constexpr uint64_t kNothingToGather = 50'000'000;  // DeepSpeed's default
    setup.zero.prefetch_bucket_elements =
        smallest == UINT64_MAX ? kNothingToGather : std::max<uint64_t>(1, smallest - 1);
  }
  // DeepSpeed's alone: so that it runs the config, too.
  FitParamBuffers(program.model, setup);
  return setup;
}

Plan MakePlan(const ChoiceSearch& searcher, const SearchResult& result) {
  ZEROPLAN_CHECK(result.best.has_value());
  const StageBest& best = result.stages[*result.best];
  const SearchInputs& inputs = searcher.inputs();
  const SearchCluster& at = searcher.ClusterOf(*best.candidate);
  Plan plan;
  plan.runtime = inputs.runtime;
  plan.recipe = inputs.recipe;
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

namespace {

constexpr uint64_t kBytesPerLogit = 20;
constexpr uint64_t kFixedBytes = 4'700'000'000;
// Bytes a parameter, by the home of parameters.
constexpr double kWhole = 2.8;      // stages 0 to 2: each GPU has all of them
constexpr double kSharded = 1.2;    // stage 3
constexpr double kOffloaded = 0.5;  // stage 3, parameters on host or disk

}  // namespace

ExtraMemory DeepSpeedExtraMemory(const ModelSpec& model, const TrainSetup& setup) {
  const ZeroConfig& zero = setup.zero;
  const double bytes = zero.stage < 3                                      ? kWhole
                       : zero.offload_param.device == OffloadDevice::kNone ? kSharded
                                                                           : kOffloaded;
  ExtraMemory extra;
  extra.fixed_bytes =
      kFixedBytes + static_cast<uint64_t>(bytes * static_cast<double>(model.ParamCount()));
  extra.bytes_per_sequence = kBytesPerLogit * static_cast<uint64_t>(setup.batch.local_seq()) *
                             static_cast<uint64_t>(model.padded_vocab);
  return extra;
}

}  // namespace zeroplan
