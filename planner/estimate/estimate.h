// Memory, traffic and time of every choice, and whether it fits. Of zeroplan's own executor each
// number comes from lowering the choice to the step program that it would run, less the events that
// neither its memory nor its step's time depends on, and walking it.
#pragma once

#include <cstdint>
#include <memory>
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
#include "planner/runtime.h"

namespace zeroplan {

// What is not known is unset.
struct TimeEstimate {
  std::optional<double> compute_seconds, exposed_comm_seconds, exposed_offload_seconds,
      optimizer_seconds, total_seconds;
  // Of PyTorch processes, whose update on the GPU counts as compute: the update on the host, which
  // is part of exposed_offload, and what the GPU waits for the Python thread.
  std::optional<double> host_update_seconds, host_overhead_seconds;
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

// How sure it is that a choice stays within GPU memory.
enum class MemoryRoom : uint8_t {
  kAmple,         // with its margin of error on top
  kTight,         // as predicted, not with the margin: then the allocator would empty its cache
  kEmptiesCache,  // only where the allocator gives cached memory back while it runs
  kAtRisk,        // tensors larger by the margin of allocated memory would not fit
  kNone,          // it does not fit
};
std::string_view MemoryRoomName(MemoryRoom room);  // "ample", "tight", "empties-cache", ...

struct ChoiceEstimate {
  TrainSetup setup;
  EffectiveSettings settings;
  MemoryReport memory;                 // of a program, one rank: peaks and what makes them
  std::optional<StepTraffic> traffic;  // of a program, one rank, one optimizer step
  Footprint footprint;
  TimeEstimate time;
  bool fits = false;
  MemoryRoom room = MemoryRoom::kNone;
  std::string why_not;  // empty if it fits
};

struct Estimate {
  ModelSpec model;
  int64_t seq_len = 0;
  const Runtime* runtime = &OwnExecutor();
  TorchCompile compile;
  Cluster cluster;
  RunGoal goal;                         // what reports count a run by
  std::vector<ChoiceEstimate> choices;  // in the order of the setups asked for
};

struct EstimateInputs {
  const Runtime* runtime = &OwnExecutor();
  ModelSpec model;
  Cluster cluster;
  std::vector<TrainSetup> setups;  // at least one; each validated
  LowerOptions lower;              // of programs
  TorchCompile compile;
  RunGoal goal;
  // The cluster's cost model, for programs, and its profile, for others; without them times are
  // left unset. They must outlive the call.
  const CostModel* costs = nullptr;
  const HardwareProfile* hardware = nullptr;
};

// REQUIRES: ValidateModelSpec and ValidateSetup passed for all.
Estimate EstimateChoices(const EstimateInputs& inputs);

// Of step programs.
std::unique_ptr<ChoiceJudge> MakeProgramJudge(const JudgeInputs& inputs);

// One choice, from its program. Without `costs` its times are unset.
ChoiceEstimate EstimateProgram(const Program& program, const Cluster& cluster,
                               const CostModel* costs);

}  // namespace zeroplan
