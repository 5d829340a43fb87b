// Options that estimate, plan and train share: what is trained, where and how. resolve.h makes of
// them what is planned or run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/common/command.h"
#include "core/base/dtype.h"
#include "core/config/packing.h"
#include "core/config/zero_config.h"

namespace zeroplan {

// Texts: names, files and rates that need a profile to be understood; "" is not given.
struct ModelOptions {
  std::string model;
  Option<uint64_t> params;
  std::string family;  // of `params`; empty: the first
  bool given() const { return !model.empty() || params.has_value(); }
};

struct HardwareOptions {
  std::string profile, network, intra_node_bandwidth;
};

struct ClusterOptions {
  Option<int> gpus, gpus_per_node;
  Option<uint64_t> gpu_memory, host_memory, nvme_capacity;  // bytes
  Option<uint64_t> gpu_reserve, host_reserve;               // bytes
};

struct BatchOptions {
  // global_batch_tokens is another way to say global_batch: resolve.h makes it that.
  Option<int64_t> seq_len, micro_batch, grad_accum, global_batch, global_batch_tokens;
  Option<Dtype> dtype, grad_accum_dtype, communication_dtype;
};

// How long is trained, and at what price.
struct GoalOptions {
  Option<int64_t> tokens;
  Option<double> gpu_hour_price;
};

enum class Checkpointing : uint8_t { kNone, kSelective, kFull, kAll };

struct ChoiceOptions {
  Option<std::vector<int>> stages;
  Option<std::vector<OffloadDevice>> offload_optimizer, offload_param;
  Option<double> offload_ratio;
  Option<Checkpointing> checkpointing;
  Option<int> checkpoint_every;
};

// Whether saves are written beside the steps, from a copy of the states in host memory.
enum class AsyncSave : uint8_t { kOn, kOff, kAuto };

struct CommonOptions {
  ModelOptions model;
  HardwareOptions hardware;
  ClusterOptions cluster;
  BatchOptions batch;
  ChoiceOptions choice;
  GoalOptions goal;
  std::string config;
  bool deterministic = false;
  Option<AsyncSave> async_save;
  Option<Packing> packing;
};

enum class OutputFormat : uint8_t { kText, kJson };
// --format text|json, for what is printed. `help` says what the JSON is: "schema
// zeroplan.hw-list/1".
void AddFormatOption(Command& command, const char* help, Option<OutputFormat>& format);

// Each adds a group of options to `command`. `options` must outlive it.
void AddModelOptions(Command& command, ModelOptions& options);
void AddClusterOptions(Command& command, CommonOptions& options);
// What stays free, in the options' group `group`.
void AddReserveOptions(Command& command, const char* group, ClusterOptions& options);
// `searched`: what is left out is searched (plan); else it is 1.
void AddBatchOptions(Command& command, BatchOptions& options, bool searched = false);
// --deterministic, of what is planned for a GPU.
void AddDeterministicOption(Command& command, CommonOptions& options);
// --async-save, of what is planned: whether the memory of a copy to save from counts. `searched`:
// "auto" is a choice too (plan).
void AddAsyncSaveOption(Command& command, CommonOptions& options, bool searched = false);
// --packing, of what is planned: whether batches say where documents start.
void AddPackingOption(Command& command, CommonOptions& options);
// The run's length and price.
void AddGoalOptions(Command& command, GoalOptions& options);
// ZeRO, offload, recompute, and --config. `all_default`: "all" is the default of stage and offloads
// (estimate, plan); else 0 and none (train).
void AddChoiceOptions(Command& command, CommonOptions& options, bool all_default,
                      bool searched = false);

}  // namespace zeroplan
