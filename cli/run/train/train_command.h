// The options of zeroplan train.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/run/train/shared_options.h"
#include "executor/train/trainer.h"
#include "planner/plan/plan_file.h"
#include "planner/request/fields.h"

namespace zeroplan {

// --save-every auto.
inline constexpr int64_t kSaveAuto = 0;

// Empty: not given.
struct TrainCommand {
  Request common;
  std::string plan;
  TrainOptions run;  // options that need no resolution
  RecordFields records;
  Given<BackendChoice> backend;
  Given<int64_t> steps, save_every, validate_every, max_bad_steps;
  Given<double> skip_loss_spike, step_timeout;
  Given<double> epochs;
  Given<DecayShape> lr_schedule;
  Given<double> warmup_ratio;
  Given<int64_t> warmup_steps;
  Given<double> min_lr, max_grad_norm, weight_decay;
  std::vector<std::string> validation_data;
  std::string repeats;
  Given<int64_t> validation_batches, patience;
  Given<bool> best_weights;  // --final-weights best
  Given<uint64_t> seed;
  Given<int> threads, keep;
  Given<int> rendezvous_timeout;  // seconds
  Given<int> restarts;
  Given<double> lr;
  Given<Dtype> save_dtype;
  Given<uint64_t> max_shard_size;  // bytes
  std::string hosts, hostfile, ssh;
  std::string save, init_from, metrics, tensorboard, report, trace, nvme_path;
  bool monitor = false, watch = false;
  bool no_shuffle = false, fresh_weights = false;
};

// Interruptions a second for --save-every auto, from --interruptions or the plan; 0: saves are by
// steps, or there are none. Throws Error(kUsage) if neither sets it, or it has no effect.
double InterruptionRate(const TrainCommand& command, const std::optional<PlanFile>& plan);

// --max-shard-size, also an option of 'merge'. Throws Error(kUsage) below 1 MB.
uint64_t ParseShardSize(const std::string& text, std::string_view option);

// Adds the options to `command`. `options` must outlive it.
void AddTrainOptions(Command& command, TrainCommand& options);

}  // namespace zeroplan
