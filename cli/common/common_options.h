// Options that estimate, plan and train share: what is trained, where and how. Values stay text
// until they are resolved, so that "not given" is known and every error names option, value and
// what is allowed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/deepspeed_reader.h"
#include "core/config/zero_config.h"
#include "core/model/model_spec.h"
#include "hwprofiles/profile.h"
#include "planner/cluster.h"
#include "planner/estimate/choices.h"

namespace CLI {
class App;
}

namespace zeroplan {

// Empty: not given.
struct CommonOptions {
  std::string model, params;
  std::string gpus, gpus_per_node, hardware, gpu_memory, host_memory, nvme_capacity;
  std::string network, intra_node_bandwidth;
  std::string seq_len, micro_batch, global_batch, grad_accum, dtype;
  std::string stage, offload_optimizer, offload_ratio, offload_param;
  std::string checkpointing, checkpoint_every;
  std::string config;
};

// One option of text; an empty value is refused. `help` says unit and default.
void AddOption(CLI::App& command, const char* group, const char* name, std::string& value,
               const char* type, const std::string& help);
// An option's help in lines that make 100 columns beside the names.
std::string BreakHelp(std::string help);

// Each adds a group of options to `command`. `options` must outlive it.
void AddModelOptions(CLI::App& command, CommonOptions& options);
void AddClusterOptions(CLI::App& command, CommonOptions& options);
// `searched`: what is left out is searched (plan); else it is 1.
void AddBatchOptions(CLI::App& command, CommonOptions& options, bool searched = false);
// `all_default`: "all" is the default of stage and offloads (estimate, plan); else 0 and none
// (train).
void AddZeroOptions(CLI::App& command, CommonOptions& options, bool all_default,
                    bool searched = false);

// What resolving assumed ("--micro-batch 1") and other lines for the user.
struct Assumptions {
  std::vector<std::string> assumed;
  std::vector<std::string> notes;
  std::optional<int> detected_gpus;  // of this machine, where it gives the hardware profile
};

// All throw Error(kUsage).
ModelSpec ResolveModel(const CommonOptions& options, Assumptions& assumptions);
Cluster ResolveCluster(const CommonOptions& options, const HardwareProfile& hardware,
                       Assumptions& assumptions);
// --hw, else this machine's GPUs (hwprofiles/detect.h), else the default profile; with --network
// and --intra-node-bandwidth.
HardwareProfile ResolveHardware(const CommonOptions& options, Assumptions& assumptions);

// Batch, sequence length and precision from the command line; ZeRO and optimizer at their defaults.
TrainSetup ResolveBaseSetup(const CommonOptions& options, const ModelSpec& model,
                            const HardwareProfile& hardware, int gpus, Assumptions& assumptions);
// --checkpointing, which is given. Throws Error(kUsage) if --checkpoint-every has no effect with
// it.
enum class Checkpointing : uint8_t { kNone, kSelective, kFull, kAll };
Checkpointing ParseCheckpointing(const CommonOptions& options);
// Stages, offloads and recompute from the command line, over `base` (which takes offload_ratio).
ChoiceSpace ResolveChoices(const CommonOptions& options, TrainSetup& base,
                           Assumptions& assumptions);
// The one setup of --config.
TrainSetup ResolveConfig(const CommonOptions& options, const ModelSpec& model,
                         const HardwareProfile& hardware, int gpus, Assumptions& assumptions);

// The sequence length: --seq-len, else the model's. Throws if it is more than the model's
// positions.
int64_t ResolveSeqLen(const CommonOptions& options, const ModelSpec& model,
                      Assumptions& assumptions);

}  // namespace zeroplan
