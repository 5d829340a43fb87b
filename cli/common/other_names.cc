#include "cli/common/other_names.h"

#include <algorithm>

namespace zeroplan {
namespace {

struct SameOption {
  std::string_view other, own;
};
// What is on the left means exactly what is on the right.
constexpr SameOption kSame[] = {
    {"--output", "--out"},
    {"--tokens", "--max-new-tokens"},
    {"--recompute", "--checkpointing"},
    {"--model-name", "--model"},
    {"--model-name-or-path", "--model"},
    {"--hardware", "--hw"},
    {"--sequence-length", "--seq-len"},
    {"--seq-length", "--seq-len"},
    {"--max-seq-len", "--seq-len"},
    {"--max-seq-length", "--seq-len"},
    {"--model-max-length", "--seq-len"},
    {"--sequence-len", "--seq-len"},
    {"--cutoff-len", "--seq-len"},
    {"--sequence-parallel-size", "--sequence-ranks"},
    {"--sequence-parallel-degree", "--sequence-ranks"},
    {"--ulysses-degree", "--sequence-ranks"},
    {"--micro-batch-size", "--micro-batch"},
    {"--per-device-batch", "--micro-batch"},
    {"--per-device-batch-size", "--micro-batch"},
    {"--per-device-train-batch-size", "--micro-batch"},
    {"--train-micro-batch-size-per-gpu", "--micro-batch"},
    {"--global-batch-size", "--global-batch"},
    {"--train-batch-size", "--global-batch"},
    {"--gradient-accumulation", "--grad-accum"},
    {"--gradient-accumulation-steps", "--grad-accum"},
    {"--zero-stage", "--stage"},
    {"--learning-rate", "--lr"},
    {"--max-steps", "--steps"},
    {"--num-train-epochs", "--epochs"},
    {"--lr-scheduler-type", "--lr-schedule"},
    {"--price", "--gpu-hour-price"},
    {"--lora-r", "--lora-rank"},
    {"--lora-target-modules", "--lora-targets"},
    {"--target-modules", "--lora-targets"},
    {"--modules-to-save", "--lora-save"},
    {"--trainable-token-indices", "--lora-tokens"},
    {"--use-rslora", "--rslora"},
};

struct NearOption {
  std::string_view other, own, use;  // `own`: which option the command must have
};
constexpr std::string_view kNoRing =
    "use --sequence-ranks: zeroplan's GPUs share sequences by exchanging heads, those of --runtime "
    "fsdp2 by PyTorch's ring";
// What is on the left has no option of the same meaning, and this instead.
constexpr NearOption kNear[] = {
    {"--batch-size", "--micro-batch",
     "use --micro-batch for the sequences of one GPU in a micro-step, or --global-batch for those "
     "of a step over all GPUs"},
    {"--batch", "--micro-batch",
     "use --micro-batch for the sequences of one GPU in a micro-step, or --global-batch for those "
     "of a step over all GPUs"},
    {"--num-gpus", "--gpus", "use --gpus for all GPUs of all nodes"},
    {"--ngpus", "--gpus", "use --gpus for all GPUs of all nodes"},
    {"--nproc-per-node", "--gpus", "use --gpus for all GPUs of all nodes"},
    {"--gpu", "--hw", "use --gpus for how many, --hw for which"},
    {"--gpu-type", "--hw", "use --hw"},
    {"--device", "--hw", "use --hw for which GPU or machine"},
    {"--nodes", "--gpus", "use --gpus for all GPUs, and --gpus-per-node"},
    {"--num-nodes", "--gpus", "use --gpus for all GPUs, and --gpus-per-node"},
    {"--vram", "--gpu-memory", "use --gpu-memory"},
    {"--memory", "--gpu-memory", "use --gpu-memory for a GPU's, --host-memory for a host's"},
    {"--ram", "--host-memory", "use --host-memory"},
    {"--bf16", "--dtype", "use --dtype bf16"},
    {"--fp16", "--dtype", "use --dtype fp16"},
    {"--fp32", "--dtype", "use --dtype fp32"},
    {"--fp8", "--matmul-dtype", "use --matmul-dtype fp8"},
    {"--float8", "--matmul-dtype", "use --matmul-dtype fp8"},
    {"--precision", "--dtype", "use --dtype"},
    {"--mixed-precision", "--dtype", "use --dtype"},
    {"--gradient-checkpointing", "--checkpointing", "use --checkpointing full"},
    {"--activation-checkpointing", "--checkpointing", "use --checkpointing full"},
    {"--cpu-checkpointing", "--offload-activations", "use --offload-activations"},
    {"--activation-offloading", "--offload-activations", "use --offload-activations"},
    {"--offload", "--offload-optimizer",
     "use --offload-optimizer cpu, and at stage 3 --offload-param cpu"},
    {"--cpu-offload", "--offload-optimizer",
     "use --offload-optimizer cpu, and at stage 3 --offload-param cpu"},
    {"--context-length", "--seq-len", "use --seq-len"},
    {"--context", "--seq-len", "use --seq-len"},
    {"--block-size", "--seq-len", "use --seq-len"},
    {"--max-position-embeddings", "--seq-len", "use --seq-len"},
    {"--n-ctx", "--seq-len", "use --seq-len"},
    {"--max-length", "--seq-len", "use --seq-len"},
    {"--max-length", "--max-new-tokens", "use --max-new-tokens"},
    {"--sequence-parallel", "--sequence-ranks", "use --sequence-ranks"},
    {"--ulysses", "--sequence-ranks", "use --sequence-ranks"},
    {"--context-parallel", "--sequence-ranks", kNoRing},
    {"--context-parallel-size", "--sequence-ranks", kNoRing},
    {"--context-parallel-degree", "--sequence-ranks", kNoRing},
    {"--cp", "--sequence-ranks", kNoRing},
    {"--zero", "--stage", "use --stage"},
    {"--deepspeed", "--config",
     "use --config FILE for a DeepSpeed config, and with plan and estimate --runtime deepspeed to "
     "plan for DeepSpeed"},
    {"--fsdp", "--runtime", "use --runtime fsdp2"},
    {"--output-dir", "--save", "use --save DIR"},
    {"--output-dir", "--out", "use --out FILE"},
    {"--dataset", "--data", "use --data PATH"},
    {"--train-file", "--data", "use --data PATH"},
    {"--resume-from-checkpoint", "--resume", "use --resume, with --save DIR"},
    {"--save-steps", "--save-every", "use --save-every STEPS"},
    {"--checkpoint-dir", "--save", "use --save DIR"},
    {"--json", "--format", "use --format json"},
    {"--optimizer", "--optimizer-states",
     "zeroplan's optimizer is AdamW; --optimizer-states has its lighter forms"},
    {"--lora", "--method", "use --method lora"},
    {"--peft", "--method", "use --method lora"},
    {"--use-peft", "--method", "use --method lora"},
    {"--qlora", "--method", "use --method qlora"},
    {"--load-in-4bit", "--method", "use --method qlora: adapters over a base in NF4"},
};
// What zeroplan does not have at all.
struct Absent {
  std::string_view begin, why;
};
constexpr std::string_view kNoDora =
    "zeroplan has LoRA, rank-stabilised too (--rslora), and QLoRA; use --method lora";
constexpr std::string_view kWandb =
    "use --tensorboard DIR with 'train', then 'wandb sync DIR' sends it to Weights & Biases";
constexpr std::string_view kEachStep =
    "each step has a line, and a row of --metrics FILE; leave it out";
constexpr Absent kAbsent[] = {
    {"--wandb", kWandb},
    {"--report-to", kWandb},
    {"--logging-steps", kEachStep},
    {"--log-every", kEachStep},
    {"--log-freq", kEachStep},
    {"--dora", kNoDora},
    {"--use-dora", kNoDora},
    {"--muon", "zeroplan's optimizer is AdamW; --optimizer-states has its lighter forms"},
    {"--gguf",
     "zeroplan writes Hugging Face folders (--save DIR), which llama.cpp's "
     "convert_hf_to_gguf.py turns into GGUF"},
    {"--dpo", "zeroplan trains on answers (supervised), not on preferences"},
    {"--load-in-", "of quantized weights there is NF4 below adapters; use --method qlora"},
    {"--quant", "of quantized weights there is NF4 below adapters; use --method qlora"},
    {"--bnb-", "of quantized weights there is NF4 below adapters; use --method qlora"},
    {"--tp", "zeroplan shards by ZeRO alone, without tensor parallelism; --stage has the stages"},
    {"--tensor-parallel",
     "zeroplan shards by ZeRO alone, without tensor parallelism; --stage has the stages"},
    {"--pp", "zeroplan shards by ZeRO alone, without pipelines; --stage has the stages"},
    {"--pipeline-parallel",
     "zeroplan shards by ZeRO alone, without pipelines; --stage has the stages"},
};

std::string Dashed(std::string_view name) {
  std::string dashed(name);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  return dashed;
}

bool HasOption(const CommandDescription& command, std::string_view name) {
  return std::any_of(command.options.begin(), command.options.end(), [&](const auto& option) {
    return std::find(option.names.begin(), option.names.end(), name) != option.names.end();
  });
}

}  // namespace

std::vector<std::string> WithOwnNames(std::vector<std::string> words,
                                      const CommandDescription& program) {
  const CommandDescription* command = &program;
  for (std::string& word : words) {
    if (word == "--") break;
    if (!word.starts_with("--")) {
      for (const auto& below : command->commands) {
        if (below->name != word) continue;
        command = below.get();
        break;
      }
      continue;
    }
    const size_t length = std::min(word.find('='), word.size());
    const std::string given = word.substr(0, length);
    if (HasOption(*command, given)) continue;
    std::string own = Dashed(given);
    for (const SameOption& same : kSame) {
      if (same.other == own && HasOption(*command, same.own)) own = same.own;
    }
    if (own != given && HasOption(*command, own)) word.replace(0, length, own);
  }
  return words;
}

std::string CommandFor(std::string_view word) {
  struct SameCommand {
    std::string_view other, use;
  };
  constexpr std::string_view kTrain = "use 'zeroplan train MODEL --data FILE --save DIR'";
  constexpr std::string_view kGenerate = "use 'zeroplan generate DIR --prompt TEXT'";
  constexpr std::string_view kSupervised =
      "zeroplan trains on answers (supervised), not on preferences";
  constexpr SameCommand kCommands[] = {
      {"finetune", kTrain},
      {"fine-tune", kTrain},
      {"tune", kTrain},
      {"sft", kTrain},
      {"lora", "use 'zeroplan train DIR --method lora --data FILE --save DIR'"},
      {"qlora", "use 'zeroplan train DIR --method qlora --data FILE --save DIR'"},
      {"pretrain", kTrain},
      {"run", kTrain},
      {"chat", kGenerate},
      {"infer", kGenerate},
      {"inference", kGenerate},
      {"serve", kGenerate},
      {"eval", "use 'zeroplan train ... --validation-data FILE', which says the loss at the end"},
      {"evaluate",
       "use 'zeroplan train ... --validation-data FILE', which says the loss at the end"},
      {"dpo", kSupervised},
      {"kto", kSupervised},
      {"orpo", kSupervised},
      {"grpo", kSupervised},
      {"ppo", kSupervised},
      {"memory", "use 'zeroplan estimate MODEL'"},
      {"fit", "use 'zeroplan plan MODEL'"},
      {"export", "use 'zeroplan merge DIR'"},
      {"tokenize", "use 'zeroplan data tokenize'"},
  };
  for (const SameCommand& same : kCommands) {
    if (same.other == word) return std::string(same.use);
  }
  return "";
}

std::string HintFor(std::string_view name, const std::vector<std::string>& options) {
  const std::string dashed = Dashed(name);
  for (const NearOption& near : kNear) {
    if (near.other != dashed) continue;
    if (std::find(options.begin(), options.end(), near.own) != options.end()) {
      return std::string(near.use);
    }
  }
  for (const Absent& absent : kAbsent) {
    if (dashed.starts_with(absent.begin)) return std::string(absent.why);
  }
  return "";
}

}  // namespace zeroplan
