// What the writers of the formats share. Internal to planner/formats.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/formats/config_format.h"

namespace zeroplan {

// A config for DeepSpeed, with the keys of the one that came in and its runtime's name. `change`
// makes of DeepSpeed's own keys what the format wants of them, before those join them.
using JsonText = std::string;
JsonText DeepSpeedJson(const FormatRequest& request,
                       const std::function<JsonText(const JsonText&)>& change = nullptr);

WrittenConfig WriteHfTrainer(const FormatRequest& request);
WrittenConfig WriteAccelerate(const FormatRequest& request);
WrittenConfig WriteTorchtitan(const FormatRequest& request);

// Whether it is PyTorch alone that trains.
bool IsDdp(const FormatRequest& request);

// transformers' attn_implementation.
std::string_view AttentionArgument(TorchAttention attention);

// WrittenConfig::script: how the model is loaded as it was planned, its adapters; with accelerate
// its recompute and optimizer too.
std::vector<std::string> ModelScript(const FormatRequest& request);

// The same of a script for DeepSpeed alone: the optimizer that it hands to DeepSpeed.
std::vector<std::string> OptimizerScript(const FormatRequest& request);

// What TRL's ModelConfig has of that. REQUIRES: adapters.
std::string TrlArguments(const FormatRequest& request);

// Fills in the probe of `out`, which is complete otherwise: `dataset` is Python's name of what the
// script trains on, `where` says where the lines go, `more` are arguments of the probe's command.
void AddProbe(const FormatRequest& request, std::string_view dataset, std::string_view where,
              const std::vector<std::string>& more, WrittenConfig& out);

// What stands before a command where memory is short: "PYTORCH_CUDA_ALLOC_CONF=... ", or nothing.
std::string AllocatorVariable(const FormatRequest& request);

// The JSON that accelerate's YAML in `file` points to: "run.yaml" -> "run.deepspeed.json".
std::string DeepSpeedFileBeside(const std::string& file);

// "torchrun --nproc_per_node 8", on several hosts with what each of them is given.
std::string TorchrunLaunch(const ClusterShape& cluster);

// Processes of a host. Throws Error(kUsage) unless every host has as many.
int ProcessesPerNode(const ClusterShape& cluster);

// A string in double quotes that JSON, YAML, TOML and Python all read as `text`. What cannot be
// printed stands as \u2028: some of it breaks lines in YAML, and TOML takes none. Throws
// Error(kUsage) for what is no UTF-8.
std::string Quoted(const std::string& text);

// The model's name on one line and in UTF-8, whatever the folder is called that it comes from.
std::string ModelName(const FormatRequest& request);

// The first line of a file that has comments: who wrote it, for which runtime and which choice.
std::string HeadComment(const FormatRequest& request, std::string_view program);

// "64 sequences of 1024 tokens a step on 8 GPUs".
std::string StepText(const BatchSpec& batch);

// Whether the config that came in says a value at `key`.
bool Said(const FormatRequest& request, std::string_view key);

}  // namespace zeroplan
