// The options of zeroplan train.
#pragma once

#include <string>
#include <vector>

#include "cli/common/common_options.h"
#include "cli/run/train/backend_choice.h"
#include "cli/run/train/text_choices.h"
#include "executor/train/trainer.h"

namespace zeroplan {

// Empty: not given.
struct TrainCommand {
  CommonOptions common;
  std::string plan;
  TrainOptions run;  // what is taken as it is given
  TextChoiceOptions records;
  Option<BackendChoice> backend;
  Option<int64_t> steps, save_every, validate_every, max_bad_steps;
  Option<double> skip_loss_spike, step_timeout;
  Option<double> epochs;
  Option<DecayShape> lr_schedule;
  Option<double> warmup_ratio;
  Option<int64_t> warmup_steps;
  Option<double> min_lr, max_grad_norm, weight_decay;
  std::vector<std::string> validation_data;
  Option<int64_t> validation_batches, patience;
  Option<bool> best_weights;  // --final-weights best
  Option<uint64_t> seed;
  Option<int> threads, keep;
  Option<int> rendezvous_timeout;  // seconds
  Option<int> restarts;
  Option<double> lr;
  Option<Dtype> save_dtype;
  Option<uint64_t> max_shard_size;  // bytes
  std::string hosts, hostfile, ssh;
  std::string save, init_from, metrics, tensorboard, report, trace, nvme_path;
  bool monitor = false, watch = false;
  bool no_shuffle = false, fresh_weights = false;
};

// Adds them to `command`. `options` must outlive it.
void AddTrainOptions(Command& command, TrainCommand& options);

}  // namespace zeroplan
