// Functions shared by the writers of the formats. Internal to planner/formats.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/formats/config_format.h"

namespace zeroplan {

// A config for DeepSpeed, with the keys of the incoming config and its runtime's name. `change`
// adapts DeepSpeed's own keys to the format, before those of the incoming config are added.
using JsonText = std::string;
JsonText DeepSpeedJson(const FormatRequest& request,
                       const std::function<JsonText(const JsonText&)>& change = nullptr);

WrittenConfig WriteHfTrainer(const FormatRequest& request);
WrittenConfig WriteAccelerate(const FormatRequest& request);
WrittenConfig WriteTorchtitan(const FormatRequest& request);

// Whether PyTorch alone trains.
bool IsDdp(const FormatRequest& request);

// transformers' attn_implementation.
std::string_view AttentionArgument(TorchAttention attention);

// WrittenConfig::script: loads the model as planned, and its adapters; for accelerate also sets
// recompute and makes the optimizer.
std::vector<std::string> ModelScript(const FormatRequest& request);

// The same for a script for DeepSpeed alone: makes the optimizer that it passes to DeepSpeed.
std::vector<std::string> OptimizerScript(const FormatRequest& request);

// The arguments of TRL's ModelConfig for the same settings. REQUIRES: adapters.
std::string TrlArguments(const FormatRequest& request);

// Adds the probe to `out`, which is complete otherwise. `dataset`: Python's name of the script's
// training data; `where`: the place of the lines; `more`: arguments of the probe's command.
void AddProbe(const FormatRequest& request, std::string_view dataset, std::string_view where,
              const std::vector<std::string>& more, WrittenConfig& out);

// The prefix of a command if memory is short: "PYTORCH_CUDA_ALLOC_CONF=... ", or nothing.
std::string AllocatorVariable(const FormatRequest& request);

// The JSON that accelerate's YAML in `file` points to: "run.yaml" -> "run.deepspeed.json".
std::string DeepSpeedFileBeside(const std::string& file);

// "torchrun --nproc_per_node 8"; for several hosts with each host's own arguments.
std::string TorchrunLaunch(const ClusterShape& cluster);

// Processes of a host. Throws Error(kUsage) unless all hosts have equally many.
int ProcessesPerNode(const ClusterShape& cluster);

// A string in double quotes that JSON, YAML, TOML and Python all read as `text`. Unprintable
// characters are written as \u2028: some break lines in YAML, and TOML allows none. Throws
// Error(kUsage) if `text` is not UTF-8.
std::string Quoted(const std::string& text);

// The model's name on one line and in UTF-8, for any name of its folder.
std::string ModelName(const FormatRequest& request);

// The first line of a file that allows comments: the program, the runtime and the choice.
std::string HeadComment(const FormatRequest& request, std::string_view program);

// "64 sequences of 1024 tokens a step on 8 GPUs".
std::string StepText(const BatchSpec& batch);

// Whether the incoming config sets a value at `key`.
bool Said(const FormatRequest& request, std::string_view key);

}  // namespace zeroplan
