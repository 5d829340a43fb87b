// Memory, traffic and time of every choice, and whether it fits. Of zeroplan's own executor each
// number comes from lowering the choice to the step program that it would run, less the events that
// neither its memory nor its step's time depends on, and walking it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config/data_facts.h"
#include "core/config/zero_config.h"
#include "core/lowering/lower.h"
#include "core/model/model_spec.h"
#include "cost_models/cost_model.h"
#include "cost_models/memory_walk.h"
#include "cost_models/traffic.h"
#include "planner/footprint.h"
#include "planner/runtime.h"

namespace zeroplan {

// What a whole training run takes: steps times the step time, nothing else. Saving, validation and
// interruptions come on top.

// How a run is interrupted, all its machines counted together.
struct Interruptions {
  double rate = 0;  // a second
  // From one until the program runs again on all machines: a new machine, its start, the program's.
  double restart_seconds = 600;
  std::optional<double> notice_seconds;  // from the notice to the stop; unset: there is none
};

// What a run's cost is asked for. Unset: nobody asked.
struct RunGoal {
  std::optional<int64_t> tokens;         // to train on, in all; of `data` positions, padding too
  std::optional<double> gpu_hour_price;  // of one GPU, in any currency
  std::optional<double> gpu_watts;       // its power limit, where the profile knows it
  std::optional<Interruptions> interruptions;
  std::optional<DataFacts> data;  // what is trained on, in batches of the plan's
  double epochs = 1;              // of it
};

struct RunCost {
  int64_t steps = 0;  // the last may go beyond the tokens
  double seconds = 0;
  double gpu_hours = 0;
  std::optional<double> price;    // in the currency of the goal's
  std::optional<double> gpu_kwh;  // of the GPUs alone, at their power limit: at most so much
};

// REQUIRES: goal.tokens.
RunCost CostOf(const RunGoal& goal, const BatchSpec& batch, double step_seconds);

// What a checkpoint of zeroplan's own executor takes (docs/checkpoints.md): predicted from the
// profile's rates, without checksums, syncing and what else writes to the disk, so at least so
// much.
struct SaveCost {
  double bytes_per_param = 0;           // of states, of what is trained
  uint64_t bytes = 0;                   // of all shard files
  uint64_t weights_bytes = 0;           // of the final weights, once, beside them
  uint64_t node_bytes = 0;              // of the files that one node writes to a disk of its own
  bool one_node = false;                // ranks of one node write all files
  std::optional<double> write_seconds;  // unset: the profile has no rates of a disk
  bool disk_bound = false;              // write_seconds are the disk's, not those of the copy
  double copy_seconds = 0;              // of all states to host memory, which steps wait for
};
SaveCost SaveCostOf(const ModelSpec& model, const TrainSetup& setup, const Cluster& cluster,
                    const HardwareProfile& hardware);

// A run of zeroplan's own executor that is interrupted, by the model of core/base/save_interval.h.
// Times of saves and loading are SaveCostOf's, which are the least; what writing beside the steps
// takes of their speed is not in them.
struct InterruptedCost {
  double rate = 0;     // interruptions a second
  bool known = false;  // else the profile has no rates of a disk, and nothing below is known
  int64_t interval_steps = 0;
  double interval_seconds = 0;    // of these steps
  double save_seconds = 0;        // what steps wait for a save
  double whole_save_seconds = 0;  // until it is complete; the same where steps wait for all of it
  double restart_seconds = 0;  // from an interruption until steps are made again, loading included
  double lost_share = 0;       // of the time: saves, restarts, steps made again; 1: nearly all
  // Of the whole run: set where the goal has tokens, and infinite past what a double holds.
  std::optional<double> expected_seconds, expected_gpu_hours, expected_price;
  // From a notice until what was trained is saved, at most: the step that runs, a save that is
  // being written, and one more.
  double notice_needs_seconds = 0;
  std::optional<bool> fits_notice;  // set where there is a notice

  // Such a run hardly gets on at all.
  bool hopeless() const { return lost_share > 0.99; }
};
// `async_save`: saves are written beside the steps. REQUIRES: goal.interruptions.
InterruptedCost InterruptedCostOf(const RunGoal& goal, const SaveCost& save, const BatchSpec& batch,
                                  double step_seconds, bool async_save,
                                  const HardwareProfile& hardware);

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
  std::string why_not;                         // empty if it fits
  std::optional<InterruptedCost> interrupted;  // where the goal says how often, and times are known

  // What one rank moves between GPU and host in a step; none: not known.
  std::optional<uint64_t> pcie_bytes() const {
    if (footprint.torch) return footprint.torch->copied_bytes;
    return traffic ? std::optional(traffic->pcie_bytes()) : std::nullopt;
  }
};

struct Estimate {
  ModelSpec model;
  int64_t seq_len = 0;
  const Runtime* runtime = &OwnExecutor();
  TorchRecipe recipe;
  Cluster cluster;
  std::string margin;                   // Runtime::MarginText; "" without times
  RunGoal goal;                         // what reports count a run by
  std::vector<ChoiceEstimate> choices;  // in the order of the setups asked for

  const BatchSpec& batch() const { return choices.front().setup.batch; }  // as all choices have it
};

struct EstimateInputs {
  const Runtime* runtime = &OwnExecutor();
  ModelSpec model;
  Cluster cluster;
  std::vector<TrainSetup> setups;  // at least one; each validated
  LowerOptions lower;              // of programs
  TorchRecipe recipe;
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

// Seconds of a step by cause, for as many tokens as another choice's step has: how choices of
// different batches are compared.

struct CauseSeconds {
  double compute = 0, exposed_comm = 0, exposed_offload = 0, optimizer = 0, total = 0;
  double host_overhead = 0;
};

// What `time` has for a step, times `tokens` over the tokens of that step. REQUIRES: it is known.
inline CauseSeconds SecondsForTokens(const TimeEstimate& time, double tokens) {
  const double scale = tokens / (*time.tokens_per_second * *time.total_seconds);
  return {*time.compute_seconds * scale,         *time.exposed_comm_seconds * scale,
          *time.exposed_offload_seconds * scale, time.optimizer_seconds.value_or(0) * scale,
          *time.total_seconds * scale,           time.host_overhead_seconds.value_or(0) * scale};
}

// What `other` loses to `best`, in seconds of a step of the best's tokens. Not inline: whoever
// prints it gets the same bits.
CauseSeconds SecondsLost(const TimeEstimate& other, const TimeEstimate& best);

}  // namespace zeroplan
