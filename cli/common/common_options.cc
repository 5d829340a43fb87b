// The options' names and help; resolve.cc turns their values into what they mean.
#include "cli/common/common_options.h"

#include <CLI/CLI.hpp>

#include "hwprofiles/loader.h"

namespace zeroplan {
namespace {

// An empty value would read as "not given": a shell variable that is not set, most often.
std::string RefuseEmpty(const std::string& value) {
  return value.empty() ? "the value is empty; give one, or leave the option out" : "";
}

}  // namespace

// CLI11 prints help unbroken beside a column of 30; lines of 68 make 98.
std::string BreakHelp(std::string help) {
  constexpr size_t kWidth = 68;
  for (size_t begin = 0; help.size() - begin > kWidth;) {
    const size_t space = help.rfind(' ', begin + kWidth);
    if (space == std::string::npos || space <= begin) break;
    help[space] = '\n';
    begin = space + 1;
  }
  return help;
}

void AddOption(CLI::App& command, const char* group, const char* name, std::string& value,
               const char* type, const std::string& help) {
  command.add_option(name, value, BreakHelp(help))
      ->type_name(type)
      ->group(group)
      ->check(CLI::Validator(RefuseEmpty, ""));
}

void AddModelOptions(CLI::App& command, CommonOptions& options) {
  const char* group = "Model (one of the two)";
  AddOption(command, group, "--model", options.model, "NAME|FILE|DIR",
            "Preset (see 'zeroplan model list'), a Hugging Face config.json, or a folder with one");
  AddOption(
      command, group, "--params", options.params, "COUNT",
      "Parameters, such as 10B or 350M: a GPT-2 shape of about that size is derived and printed");
}

void AddClusterOptions(CLI::App& command, CommonOptions& options) {
  const char* group = "Hardware";
  AddOption(command, group, "--gpus", options.gpus, "COUNT",
            "GPUs in all, one rank each (default: this machine's where --hw is left out, else 1)");
  AddOption(command, group, "--gpus-per-node", options.gpus_per_node, "COUNT",
            "GPUs that share a host's memory and disk (default: the profile's, at most --gpus)");
  AddOption(command, group, "--hw", options.hardware, "NAME|FILE",
            "Hardware profile: a built-in name (see 'zeroplan hw list') or a JSON file (default: "
            "this machine's GPUs, or " +
                std::string(kDefaultProfile) + " where it has none)");
  AddOption(command, group, "--network", options.network, "NAME|RATE",
            "Between nodes: a built-in network (eth-25, ib-8x400) or what one node sends each way, "
            "such as 25Gb or 8x400Gb (default: the profile's)");
  AddOption(command, group, "--intra-node-bandwidth", options.intra_node_bandwidth, "RATE",
            "What one GPU sends to the others of its node, each way, such as 300GB/s (default: the "
            "profile's, with its measured collectives; these go when this is given)");
  AddOption(
      command, group, "--gpu-memory", options.gpu_memory, "BYTES",
      "Memory of one GPU that a process may use, such as 32GB or 79GiB (default: the profile's)");
  AddOption(command, group, "--host-memory", options.host_memory, "BYTES",
            "Memory of one host, such as 512GiB (default: the profile's)");
  AddOption(command, group, "--nvme-capacity", options.nvme_capacity, "BYTES",
            "Disk space of one node for offload (default: the profile's; without it, not checked)");
}

void AddBatchOptions(CLI::App& command, CommonOptions& options, bool searched) {
  const std::string one = searched ? " (default: searched)" : " (default 1)";
  const char* group = "Batch and precision";
  AddOption(command, group, "--seq-len", options.seq_len, "TOKENS",
            "Tokens a sequence (default: the model's longest; 1024 with --params)");
  AddOption(command, group, "--micro-batch", options.micro_batch, "SEQUENCES",
            "Sequences a GPU and micro-step" + one + "; more is faster and takes more activations");
  AddOption(command, group, "--grad-accum", options.grad_accum, "COUNT",
            "Micro-steps an optimizer step" + one);
  AddOption(
      command, group, "--global-batch", options.global_batch, "SEQUENCES",
      "Sequences an optimizer step over all GPUs: micro-batch x grad-accum x gpus; with one of the "
      "two the other follows" +
          std::string(searched ? "; alone, both are searched" : ", alone it means grad-accum 1"));
  AddOption(command, group, "--dtype", options.dtype, "bf16|fp16|fp32",
            "Precision of parameters and compute (default: bf16 where the GPU has it, else fp16)");
}

void AddZeroOptions(CLI::App& command, CommonOptions& options, bool all_default, bool searched) {
  const char* group = "ZeRO, offload and recompute";
  const std::string all = all_default ? " (default all)" : " (default none)";
  AddOption(
      command, group, "--stage", options.stage, all_default ? "0|1|2|3|all" : "0|1|2|3",
      std::string("0 replicates; 1 shards optimizer states, 2 gradients too, 3 parameters too") +
          (all_default ? "; or some, such as 2,3 (default all)" : " (default 0)"));
  AddOption(command, group, "--offload-optimizer", options.offload_optimizer, "none|cpu|nvme|all",
            "Where optimizer states live, from stage 1" + all);
  AddOption(command, group, "--offload-ratio", options.offload_ratio, "RATIO",
            "Share of the optimizer on the CPU, above 0 and up to 1; the rest stays on the GPU "
            "(default " +
                std::string(searched ? "searched" : "1") + "; cpu only)");
  AddOption(command, group, "--offload-param", options.offload_param, "none|cpu|nvme|all",
            "Where parameter shards live, stage 3" + all);
  AddOption(command, group, "--checkpointing", options.checkpointing, "none|selective|full|all",
            std::string("Activations: keep all, or recompute norms and GELU, or whole layers, in "
                        "the backward pass") +
                (searched ? " (default all)" : " (default none)"));
  AddOption(command, group, "--checkpoint-every", options.checkpoint_every, "LAYERS",
            std::string("Layers that are recomputed together (default ") +
                (searched ? "searched" : "1") + "; implies --checkpointing full)");
  AddOption(command, group, "--config", options.config, "FILE",
            searched
                ? "A DeepSpeed JSON config: what it sets stays, what it leaves to \"auto\" is "
                  "searched"
                : "A DeepSpeed JSON config: exactly this choice, instead of the options above");
}

}  // namespace zeroplan
