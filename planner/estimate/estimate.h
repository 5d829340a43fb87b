// Memory, traffic and time of every choice, and whether it fits. For zeroplan's own executor each
// number comes from lowering the choice to the step program that it would run, without the events
// on which neither its memory nor its step's time depends, and walking it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config/data_facts.h"
#include "core/lowering/lower.h"
#include "core/model/model_spec.h"
#include "core/settings/zero_config.h"
#include "cost_models/cost_model.h"
#include "cost_models/memory_walk.h"
#include "cost_models/traffic.h"
#include "planner/footprint.h"
#include "planner/runtime.h"

namespace zeroplan {

// The cost of a whole training run: steps times the step time, nothing else. Saving, validation and
// interruptions come on top.

// The interruptions of a run, over all its machines.
struct Interruptions {
  double rate = 0;  // interruptions a second
  // From an interruption until the program runs again on all machines: a new machine, its start,
  // the program's.
  double restart_seconds = 600;
  std::optional<double> notice_seconds;  // from the notice to the stop; unset: no notice
};

// The run whose cost is requested. Unset members: not requested.
struct RunGoal {
  // tokens to train on, in all; with `data` positions, padding included
  std::optional<int64_t> tokens;
  std::optional<double> gpu_hour_price;  // for one GPU, in any currency
  std::optional<double> gpu_watts;       // a GPU's power limit, if the profile has it
  std::optional<Interruptions> interruptions;
  std::optional<DataFacts> data;  // the training data, in batches of the plan's
  double epochs = 1;              // epochs of `data`
};

struct RunCost {
  int64_t steps = 0;  // the last may go beyond the tokens
  double seconds = 0;
  double gpu_hours = 0;
  std::optional<double> price;    // in the currency of gpu_hour_price
  std::optional<double> gpu_kwh;  // upper bound: the GPUs alone, at their power limit
};

// REQUIRES: goal.tokens.
RunCost CostOf(const RunGoal& goal, const BatchSpec& batch, double step_seconds);

// The cost of a checkpoint of zeroplan's own executor (docs/checkpoints.md): predicted from the
// profile's rates, without checksums, syncing and other writers to the disk, so a lower bound.
struct SaveCost {
  double bytes_per_param = 0;           // states of a trained parameter
  uint64_t bytes = 0;                   // all shard files
  uint64_t weights_bytes = 0;           // the final weights, written once, in addition
  uint64_t node_bytes = 0;              // the files that one node writes to a disk of its own
  bool one_node = false;                // ranks of one node write all files
  std::optional<double> write_seconds;  // unset: the profile lacks rates of a disk
  bool disk_bound = false;              // write_seconds are the disk's, not those of the copy
  double copy_seconds = 0;  // copy of all states to host memory, during which steps wait
};
SaveCost SaveCostOf(const ModelSpec& model, const TrainSetup& setup, const Cluster& cluster,
                    const HardwareProfile& hardware);

// A run of zeroplan's own executor with interruptions, by the model of core/base/save_interval.h.
// Times of saves and loading are SaveCostOf's lower bounds; they leave out how much concurrent
// writing slows steps down.
struct InterruptedCost {
  double rate = 0;     // interruptions a second
  bool known = false;  // else the profile lacks rates of a disk, and nothing below is set
  int64_t interval_steps = 0;
  double interval_seconds = 0;    // time of `interval_steps` steps
  double save_seconds = 0;        // time that steps wait for a save
  double whole_save_seconds = 0;  // until a save is complete; the same if steps wait for all of it
  double restart_seconds = 0;     // from an interruption until steps run again, loading included
  double lost_share = 0;  // share of the time: saves, restarts, repeated steps; 1: nearly all
  // Totals of the run: set if the goal has tokens, and infinite beyond a double's range.
  std::optional<double> expected_seconds, expected_gpu_hours, expected_price;
  // The longest time from a notice until all progress is saved: the running step, a save that is
  // being written, and one more.
  double notice_needs_seconds = 0;
  std::optional<bool> fits_notice;  // set if there is a notice

  // The run makes hardly any progress.
  bool hopeless() const { return lost_share > 0.99; }
};
// `async_save`: saves are written concurrently with steps. REQUIRES: goal.interruptions.
InterruptedCost InterruptedCostOf(const RunGoal& goal, const SaveCost& save, const BatchSpec& batch,
                                  double step_seconds, bool async_save,
                                  const HardwareProfile& hardware);

// Unknown values are unset.
struct TimeEstimate {
  std::optional<double> compute_seconds, exposed_comm_seconds, exposed_offload_seconds,
      optimizer_seconds, total_seconds;
  // For PyTorch processes, whose update on the GPU counts as compute: the update on the host, a
  // part of exposed_offload, and the time that the GPU waits for the Python thread.
  std::optional<double> host_update_seconds, host_overhead_seconds;
  std::optional<double> tokens_per_second, mfu;  // tokens of all GPUs together
  std::optional<SectionTime> by_stream;          // for the whole step: busy and exposed streams
};

// Settings after zeroplan's own choices, for ZeroConfig fields that may be "auto".
struct EffectiveSettings {
  uint64_t reduce_bucket_elements = 0;
  uint64_t prefetch_bucket_elements = 0;
  uint64_t persistence_threshold = 0;
  uint64_t reuse_distance = 0;
  bool overlap = true;
};

// The certainty that a choice stays within GPU memory.
enum class MemoryRoom : uint8_t {
  kAmple,         // fits even with its margin of error
  kTight,         // fits as predicted, but with the margin the allocator would empty its cache
  kEmptiesCache,  // fits only if the allocator returns cached memory while it runs
  kAtRisk,        // would not fit if tensors were larger by the margin of allocated memory
  kNone,          // does not fit
};
std::string_view MemoryRoomName(MemoryRoom room);  // "ample", "tight", "empties-cache", ...

struct ChoiceEstimate {
  TrainSetup setup;
  EffectiveSettings settings;
  MemoryReport memory;                 // a program's, for one rank: peaks and their parts
  std::optional<StepTraffic> traffic;  // a program's, for one rank, one optimizer step
  Footprint footprint;
  TimeEstimate time;
  bool fits = false;
  bool mixture = false;  // a mixture of experts of zeroplan's own
  MemoryRoom room = MemoryRoom::kNone;
  std::string why_not;  // empty if it fits
  // set if the goal has a rate of interruptions, and times are known
  std::optional<InterruptedCost> interrupted;

  // Bytes that one rank moves between GPU and host in a step; none: unknown.
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
  RunGoal goal;                         // the run that reports calculate for
  std::vector<ChoiceEstimate> choices;  // in the order of the requested setups

  const BatchSpec& batch() const { return choices.front().setup.batch; }  // equal in all choices
};

struct EstimateInputs {
  const Runtime* runtime = &OwnExecutor();
  ModelSpec model;
  Cluster cluster;
  std::vector<TrainSetup> setups;  // at least one; each validated
  LowerOptions lower;              // options of programs
  TorchRecipe recipe;
  RunGoal goal;
  // The cluster's cost model, for programs, and its profile, for other runtimes; without them times
  // are unset. They must outlive the call.
  const CostModel* costs = nullptr;
  const HardwareProfile* hardware = nullptr;
};

// REQUIRES: ValidateModelSpec and ValidateSetup passed for all.
Estimate EstimateChoices(const EstimateInputs& inputs);

// Makes the judge of step programs.
std::unique_ptr<ChoiceJudge> MakeProgramJudge(const JudgeInputs& inputs);

// Estimates one choice from its program. Without `costs` its times are unset.
ChoiceEstimate EstimateProgram(const Program& program, const Cluster& cluster,
                               const CostModel* costs);

// Seconds of a step by cause, scaled to the tokens of another choice's step, so that choices of
// different batches can be compared.

struct CauseSeconds {
  double compute = 0, exposed_comm = 0, exposed_offload = 0, optimizer = 0, total = 0;
  double host_overhead = 0;
};

// The seconds of `time`, scaled by `tokens` over the tokens of its step. REQUIRES: its times are
// known.
inline CauseSeconds SecondsForTokens(const TimeEstimate& time, double tokens) {
  const double scale = tokens / (*time.tokens_per_second * *time.total_seconds);
  return {*time.compute_seconds * scale,         *time.exposed_comm_seconds * scale,
          *time.exposed_offload_seconds * scale, time.optimizer_seconds.value_or(0) * scale,
          *time.total_seconds * scale,           time.host_overhead_seconds.value_or(0) * scale};
}

// The seconds that `other` loses to `best`, in a step of the best's tokens. Not inline, so that all
// callers print the same bits.
CauseSeconds SecondsLost(const TimeEstimate& other, const TimeEstimate& best);

}  // namespace zeroplan
