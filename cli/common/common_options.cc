// The options' names and help, what each may be, and which of them a config or a plan decides.
#include "cli/common/common_options.h"

#include <fmt/format.h>

#include "cli/common/known_names.h"
#include "cli/common/parse.h"
#include "core/base/units.h"
#include "hwprofiles/loader.h"

namespace zeroplan {
namespace {

constexpr std::string_view kConfig = "--config", kPlan = "--plan";

}  // namespace

void AddFormatOption(Command& command, const char* help, Option<OutputFormat>& format) {
  command.Value({"Output", "--format", "text|json",
                 fmt::format("text for people; json ({}) for programs (default text)", help)},
                format, WordIn<OutputFormat>({"text", "json"}));
}

void AddModelOptions(Command& command, ModelOptions& options) {
  const char* group = "Model (one of the two)";
  command.Text(
      {group, "--model", "NAME|FILE|DIR",
       "Preset (see 'zeroplan model list'), a Hugging Face config.json, or a folder with one"},
      options.model, KnownModels);
  command.Value(
      {group, "--params", "COUNT",
       "Parameters, such as 10B or 350M: a shape of about that size is derived and printed"},
      options.params, ParseCount);
  command.Text({group, "--family", "NAME",
                "Of the shape that --params derives: gpt2, llama, mistral, qwen2 or qwen3 (default "
                "gpt2)"},
               options.family, KnownFamilies);
}

void AddClusterOptions(Command& command, CommonOptions& options) {
  const char* group = "Hardware";
  ClusterOptions& cluster = options.cluster;
  HardwareOptions& hardware = options.hardware;
  command.Value(
      {group, "--gpus", "COUNT",
       "GPUs in all, one rank each (default: this machine's where --hw is left out, else 1)"},
      cluster.gpus, WholeIn<int>(1, kMaxGpus));
  command.Value(
      {group, "--gpus-per-node", "COUNT",
       "GPUs that share a host's memory and disk (default: the profile's, at most --gpus)"},
      cluster.gpus_per_node, WholeIn<int>(1, kMaxGpus));
  command.Text({group, "--hw", "NAME|FILE",
                "Hardware profile: a built-in name (see 'zeroplan hw list') or a JSON file "
                "(default: this machine's GPUs, or " +
                    std::string(kDefaultProfile) + " where it has none)"},
               hardware.profile, ProfileNames);
  command.Text({group, "--network", "NAME|RATE",
                "Between nodes: a built-in network (eth-25, ib-8x400) or what one node sends each "
                "way, such as 25Gb or 8x400Gb (default: the profile's)"},
               hardware.network, NetworkNames);
  command.Text({group, "--intra-node-bandwidth", "RATE",
                "What one GPU sends to the others of its node, each way, such as 300GB/s (default: "
                "the profile's, with its measured collectives; these go when this is given)"},
               hardware.intra_node_bandwidth);
  command.Value({group, "--gpu-memory", "BYTES",
                 "Memory of one GPU that a process may use, such as 32GB or 79GiB (default: the "
                 "profile's)"},
                cluster.gpu_memory, ParseMemory);
  command.Value({group, "--host-memory", "BYTES",
                 "Memory of one host, such as 512GiB (default: the profile's)"},
                cluster.host_memory, ParseMemory);
  command.Value({group, "--nvme-capacity", "BYTES",
                 "Disk space of one node for offload (default: the profile's; without it, not "
                 "checked); plan searches disks that are named here, asked for or measured"},
                cluster.nvme_capacity, ParseMemory);
  AddReserveOptions(command, group, cluster);
}

void AddReserveOptions(Command& command, const char* group, ClusterOptions& options) {
  command.Value({group, "--gpu-reserve", "BYTES",
                 "Memory of each GPU to keep free, for what runs take beyond what is predicted; 0 "
                 "for none (default 500MB)"},
                options.gpu_reserve, ParseReserve);
  command.Value({group, "--host-reserve", "BYTES",
                 "Memory of each host to keep free for its system; 0 for none (default: what "
                 "Kubernetes keeps on Google's nodes, such as 5.8GB of 64GB and 27.4GB of 1TB)"},
                options.host_reserve, ParseReserve);
}

void AddBatchOptions(Command& command, BatchOptions& options, bool searched) {
  const std::string one = searched ? " (default: searched)" : " (default 1)";
  const char* group = "Batch and precision";
  const auto sequences = WholeIn<int64_t>(1, kMaxBatch);
  command.Value(
      {group,
       "--seq-len",
       "TOKENS",
       "Tokens a sequence (default: the model's longest, at most 4096; 1024 with --params)",
       {kPlan}},
      options.seq_len, sequences);
  command.Value(
      {group,
       "--micro-batch",
       "SEQUENCES",
       "Sequences a GPU and micro-step" + one + "; more is faster and takes more activations",
       {kPlan}},
      options.micro_batch, sequences);
  command.Value({group, "--grad-accum", "COUNT", "Micro-steps an optimizer step" + one, {kPlan}},
                options.grad_accum, sequences);
  command.Value(
      {group,
       "--global-batch",
       "SEQUENCES",
       "Sequences an optimizer step over all GPUs: micro-batch x grad-accum x gpus; with one of "
       "the two the other follows" +
           std::string(searched ? "; alone, both are searched" : ", alone it means grad-accum 1"),
       {kPlan}},
      options.global_batch, sequences);
  command.Value({group,
                 "--global-batch-tokens",
                 "TOKENS",
                 "The same in tokens, such as 4194304; a whole number of sequences for each GPU",
                 {kPlan}},
                options.global_batch_tokens, WholeIn<int64_t>(1, int64_t{1} << 62));
  command.Value(
      {group,
       "--dtype",
       "bf16|fp16|fp32",
       "Precision of parameters and compute (default: the config's; without one bf16 where the GPU "
       "has it, else fp16; on the CPU fp32)",
       {kPlan}},
      options.dtype, ParseDtype);
  command.Value({group,
                 "--grad-accum-dtype",
                 "bf16|fp16|fp32",
                 "Precision of the sums of gradients over micro-steps: --dtype, or fp32 for 2 more "
                 "bytes of each (default --dtype)",
                 {kPlan}},
                options.grad_accum_dtype, ParseDtype);
  command.Value({group,
                 "--communication-dtype",
                 "bf16|fp16|fp32",
                 "Precision that gradients are reduced in between GPUs: --dtype, or fp32 for twice "
                 "its bytes on the wire (default: what they have)",
                 {kPlan}},
                options.communication_dtype, ParseDtype);
}

void AddGoalOptions(Command& command, GoalOptions& options) {
  const char* group = "Run";
  command.Value({group, "--tokens", "COUNT",
                 "Tokens to train on in all, such as 300B: prints steps, hours and GPU-hours"},
                options.tokens, WholeIn<int64_t>(1, int64_t{1} << 62));
  command.Value({group, "--gpu-hour-price", "PRICE",
                 "What one GPU costs an hour, such as 2.5: with --tokens, prints the run's price"},
                options.gpu_hour_price, ParsePrice);
}

void AddDeterministicOption(Command& command, CommonOptions& options) {
  command.Flag("Run", "--deterministic",
               "On a GPU: the same results from run to run, slower in attention's backward pass; "
               "the CPU always does",
               options.deterministic);
}

void AddAsyncSaveOption(Command& command, CommonOptions& options, bool searched) {
  const std::string help =
      "Count the host memory of saves beside the steps: a copy of the rank's states, 12 bytes for "
      "each of its parameters (default off)";
  if (searched) {
    command.Value(
        {"Run", "--async-save", "on|off|auto", help + "; auto: where the answer's hosts have it"},
        options.async_save, WordIn<AsyncSave>({"on", "off", "auto"}));
  } else {
    command.Value({"Run", "--async-save", "on|off", help}, options.async_save,
                  WordIn<AsyncSave>({"on", "off"}));
  }
}

void AddPackingOption(Command& command, CommonOptions& options) {
  command.Value(
      {"Run", "--packing", "stream|documents|off",
       "How 'train' is to pack documents: with 'documents' batches say where each starts, "
       "4 bytes a position, and attention keeps to each (default stream; off takes the same "
       "memory)"},
      options.packing, WordIn<Packing>({"stream", "documents", "off"}));
}

void AddChoiceOptions(Command& command, CommonOptions& options, bool all_default, bool searched) {
  const char* group = "ZeRO, offload and recompute";
  // Disks that nobody named are not searched.
  const std::string some = !all_default ? " (default none)"
                           : searched ? "; or some, such as none,cpu (default none,cpu; all where "
                                        "a disk is named or measured)"
                                      : "; or some, such as none,cpu (default all)";
  const char* places = all_default ? "none|cpu|nvme|all" : "none|cpu|nvme";
  ChoiceOptions& choice = options.choice;
  command.Value(
      {group,
       "--stage",
       all_default ? "0|1|2|3|all" : "0|1|2|3",
       std::string("0 replicates; 1 shards optimizer states, 2 gradients too, 3 parameters too") +
           (all_default ? "; or some, such as 2,3 (default all)" : " (default 0)"),
       {kPlan, kConfig}},
      choice.stages, ParseStages);
  command.Value({group,
                 "--offload-optimizer",
                 places,
                 "Where optimizer states live, from stage 1" + some,
                 {kPlan, kConfig}},
                choice.offload_optimizer, ParseOffload);
  command.Value({group,
                 "--offload-ratio",
                 "RATIO",
                 "Share of the optimizer on the CPU, above 0 and up to 1; the rest stays on the "
                 "GPU (default " +
                     std::string(searched ? "searched" : "1") + "; cpu only)",
                 {kPlan, kConfig}},
                choice.offload_ratio, ParseRatio);
  command.Value({group,
                 "--offload-param",
                 places,
                 "Where parameter shards live, stage 3" + some,
                 {kPlan, kConfig}},
                choice.offload_param, ParseOffload);
  command.Value({group,
                 "--checkpointing",
                 all_default ? "none|selective|full|all" : "none|selective|full",
                 std::string("Activations: keep all, or recompute norms, GELU and SwiGLU, or "
                             "whole layers, in the backward pass") +
                     (searched ? " (default all)" : " (default none)"),
                 {kPlan, kConfig}},
                choice.checkpointing, WordIn<Checkpointing>({"none", "selective", "full", "all"}));
  command.Value({group,
                 "--checkpoint-every",
                 "LAYERS",
                 std::string("Layers that are recomputed together (default ") +
                     (searched ? "searched" : "1") + "; implies --checkpointing full)",
                 {kPlan, kConfig}},
                choice.checkpoint_every, WholeIn<int>(1, 65535));
  command.Text(
      {group,
       "--config",
       "FILE",
       searched ? "A DeepSpeed JSON config, or - for stdin: what it sets stays, what it leaves to "
                  "\"auto\" is searched"
                : "A DeepSpeed JSON config, or - for stdin: exactly this choice, instead of the "
                  "options above",
       {kPlan}},
      options.config);
}

}  // namespace zeroplan
