// Memory and traffic of every choice, and whether it fits. Each number comes from lowering the
// choice to the step program that the executor would run, less the events that neither its memory
// nor its step's time depends on, and walking it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/lowering/lower.h"
#include "core/model/model_spec.h"
#include "cost_models/cost_model.h"
#include "cost_models/memory_walk.h"
#include "cost_models/traffic.h"
#include "planner/estimate/run_cost.h"
#include "planner/footprint.h"

namespace zeroplan {

// What is not known is unset.
struct TimeEstimate {
  std::optional<double> compute_seconds, exposed_comm_seconds, exposed_offload_seconds,
      optimizer_seconds, total_seconds;
  std::optional<double> tokens_per_second, mfu;  // tokens of all GPUs together
  std::optional<SectionTime> by_stream;          // of the whole step: busy and exposed streams
};

// Settings after zeroplan's own choices; what a ZeroConfig field may leave to "auto".
struct EffectiveSettings {
  uint64_t reduce_bucket_elements = 0;
  uint64_t prefetch_bucket_elements = 0;
  uint64_t persistence_threshold = 0;
  uint64_t reuse_distance = 0;
  bool overlap = true;
};

struct ChoiceEstimate {
  TrainSetup setup;
  EffectiveSettings settings;
  MemoryReport memory;  // one rank: peaks and what makes them
  StepTraffic traffic;  // one rank, one optimizer step
  Footprint footprint;
  TimeEstimate time;
  bool fits = false;
  std::string why_not;  // empty if it fits
};

struct Estimate {
  ModelSpec model;
  int64_t seq_len = 0;
  Cluster cluster;
  RunGoal goal;                         // what reports count a run by
  std::vector<ChoiceEstimate> choices;  // in the order of the setups asked for
};

struct EstimateInputs {
  ModelSpec model;
  Cluster cluster;
  std::vector<TrainSetup> setups;  // at least one; each validated
  LowerOptions lower;
  RunGoal goal;
  // The cluster's cost model; without it times are left unset. Must outlive the call.
  const CostModel* costs = nullptr;
};

// REQUIRES: ValidateModelSpec and ValidateSetup passed for all.
Estimate EstimateChoices(const EstimateInputs& inputs);

// One choice, from its program. Without `costs` its times are unset.
ChoiceEstimate EstimateProgram(const Program& program, const Cluster& cluster,
                               const CostModel* costs);

}  // namespace zeroplan
