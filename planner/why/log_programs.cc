// Headers and printed configs of torchtitan, torchtune, Megatron, accelerate and Unsloth in a log.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "planner/why/log_facts.h"
#include "planner/why/log_text.h"

namespace zeroplan {
namespace {

// The dimensions of a device mesh and their ranks.
using MeshDims = std::vector<std::pair<std::string, int64_t>>;

MeshDims MeshIn(const std::string& line) {
  MeshDims dims;
  const auto between = [&](std::string_view open, size_t from) -> std::string {
    const size_t begin = line.find(open, from);
    if (begin == std::string::npos) return "";
    const size_t first = begin + open.size();
    return line.substr(first, std::min<size_t>(line.find(']', first) - first, 256));
  };
  // "Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]"
  constexpr std::string_view kLists = "device mesh with [";
  if (const size_t at = line.find(kLists); at != std::string::npos) {
    const std::vector<std::string> names = WordsIn(between(kLists, at));
    const std::vector<std::string_view> sizes = Split(between("], [", at), ',');
    if (names.size() != sizes.size()) return {};
    for (size_t i = 0; i < names.size(); ++i) {
      dims.emplace_back(names[i], CountAfter(Trimmed(sizes[i]), "").value_or(0));
    }
    return dims;
  }
  // "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1"
  constexpr std::string_view kPairs = "device mesh with parallelism: ";
  const size_t at = line.find(kPairs);
  if (at == std::string::npos) return {};
  for (const std::string_view pair :
       Split(std::string_view(line).substr(at + kPairs.size()), ',')) {
    const size_t equals = pair.find('=');
    if (equals == pair.npos) continue;
    dims.emplace_back(std::string(Trimmed(pair.substr(0, equals))),
                      CountAfter(pair.substr(equals), "").value_or(0));
  }
  return dims;
}

// torchtune's builder "lora_llama3_1_8b_instruct" as "llama3.1-8b"; "": it is of another form.
std::string ModelOfBuilder(std::string_view name) {
  for (const std::string_view prefix : {"qlora_", "lora_"}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  const std::vector<std::string_view> words = Split(name, '_');
  const auto is_size = [](std::string_view word) {
    return word.size() > 1 && word.back() == 'b' &&
           word.find_first_not_of("0123456789") == word.size() - 1;
  };
  const auto size = std::find_if(words.begin(), words.end(), is_size);
  if (size == words.end() || size == words.begin()) return "";
  std::vector<std::string_view> version(words.begin() + 1, size);
  std::string billions(*size);
  // "qwen2_5_0_5b" is Qwen2.5 0.5B, "llama3_1_8b" Llama 3.1 8B.
  const bool qwen = words.front().starts_with("qwen");
  if (!version.empty() && (version.back() == "0" || (qwen && version.back() == "1"))) {
    billions = fmt::format("{}.{}", version.back(), billions);
    version.pop_back();
  }
  if (version.size() > 1) return "";
  return fmt::format("{}{}{}-{}", words.front(), version.empty() ? "" : ".",
                     version.empty() ? "" : version.front(), billions);
}

}  // namespace

void FactReader::NotPredictedBecause(std::string why, std::string_view unless) {
  if (!log_->not_predicted) log_->not_predicted = {std::move(why), std::string(unless)};
}

void FactReader::Torchtitan(const std::string& line, int64_t number) {
  const auto own = [&](std::string_view from) {
    Program("torchtitan");
    Add("⟦code⟧", "torchtitan", number, std::string(from), kFromEngine);
    Add("⟦runtime⟧", "fsdp2", number, std::string(from), kFollows);
  };
  if (HasPart(line, "sequence length ") && HasPart(line, "local batch size ")) {
    Count(line, "sequence length ", "⟦seq_len⟧", number);
    Count(line, "local batch size ", "⟦micro_batch⟧", number);
    Count(line, "gradient accumulation steps ", "⟦grad_accum⟧", number);
    own("torchtitan's trainer");
  }
  // "Model llama3 8B size: 8,030,261,248 total parameters"
  const size_t model = line.find("Model "), size = line.find(" size: ");
  if (HasPart(line, " total parameters") && model != std::string::npos && model + 6 < size) {
    std::string name = line.substr(model + 6, size - model - 6);
    std::replace(name.begin(), name.end(), ' ', '-');
    Add("⟦model⟧", LowerAscii(name), number, "torchtitan's model", kStated);
    own("torchtitan's model");
  }
  if (HasPart(line, "Compiling each TransformerBlock with torch.compile")) {
    Add("⟦compile⟧", "layers", number, "Compiling each TransformerBlock", kStated);
  }
  if (HasPart(line, "Compiling the loss function with torch.compile")) {
    Add("⟦compile⟧", "all", number, "Compiling the loss function", kFromEngine);
  }
  if (HasPart(line, "Applied FSDP to the model")) {
    Add("⟦stage⟧", "3", number, "Applied FSDP", kFollows);
  }
  int64_t gpus = 1;
  std::string split;
  for (const auto& [name, ranks] : MeshIn(line)) {
    constexpr int64_t kMost = 1'000'000;  // keeps the mesh in range
    if (ranks < 1 || ranks > kMost || gpus > kMost) return;
    const bool known = name.starts_with("dp") || name == "fsdp" || name == "cp" || name == "batch";
    if (!known && ranks > 1) split = fmt::format("{} {}", name, ranks);
    gpus *= ranks;
  }
  if (gpus > 1) {
    Add("⟦gpus⟧", std::to_string(gpus), number, "the device mesh", kFromEngine);
    own("torchtitan's mesh");
  }
  if (!split.empty()) {
    NotPredictedBecause(
        fmt::format("its device mesh splits layers ({}, line {}), which is not modelled", split,
                    number),
        "⟦runtime⟧");
  }
}

// Arguments of Megatron that mean what a field means.
void FactReader::MegatronArgument(std::string_view name, const std::string& value, int64_t number) {
  const std::string from = fmt::format("{} {}", name, value);
  constexpr auto kFields = std::to_array<std::pair<std::string_view, std::string_view>>(
      {{"micro_batch_size", "⟦micro_batch⟧"},
       {"global_batch_size", "⟦global_batch⟧"},
       {"seq_length", "⟦seq_len⟧"},
       {"world_size", "⟦gpus⟧"}});
  const std::optional<int64_t> count = CountAfter(value, "");
  for (const auto& [argument, field] : kFields) {
    if (name != argument || !count || *count < 1) continue;
    Add(field, std::to_string(*count), number, from, kFromEngine);
    Program("Megatron");
  }
  if (name == "zero_stage" && count && *count <= 3) {
    Program("Megatron-DeepSpeed");
    Add("⟦stage⟧", std::to_string(*count), number, from, kFromEngine);
    Add("⟦runtime⟧", "deepspeed", number, from, kFollows);
  }
  if (name == "bf16" && value == "True") Add("⟦dtype⟧", "bf16", number, from, kFromEngine);
  if (name == "fp16" && value == "True") Add("⟦dtype⟧", "fp16", number, from, kFromEngine);
  const bool recomputes = (name == "recompute_granularity" && value == "full") ||
                          (name == "checkpoint_activations" && value == "True");
  if (recomputes) Add("⟦checkpointing⟧", "full", number, from, kFromEngine);
  if (name == "use_flash_attn" && value == "True") {
    Add("⟦attn⟧", "flash", number, from, kFromEngine);
  }
  const bool splits = name == "tensor_model_parallel_size" ||
                      name == "pipeline_model_parallel_size" ||
                      name == "expert_model_parallel_size";
  if (splits && count && *count > 1) {
    NotPredictedBecause(fmt::format("Megatron's {} (line {}) is not modelled", from, number),
                        "⟦runtime⟧");
  }
}

void FactReader::Megatron(const std::string& line, int64_t number) {
  // "  micro_batch_size ................................ 1"
  if (const size_t dots = line.find(" ......"); dots != std::string::npos) {
    const std::string_view before = Trimmed(std::string_view(line).substr(0, dots));
    const size_t value = line.find_first_not_of(". ", dots);
    if (value != std::string::npos) {
      MegatronArgument(before.substr(before.rfind(' ') + 1),
                       std::string(Trimmed(std::string_view(line).substr(value))), number);
    }
  }
  // "using world size: 32, data-parallel-size: 32, tensor-model-parallel size: 1, ..."
  if (HasPart(line, "using world size: ")) {
    Program("Megatron");
    const std::pair<std::string_view, std::string_view> sizes[] = {
        {"using world size: ", "world_size"},
        {"tensor-model-parallel size: ", "tensor_model_parallel_size"},
        {"pipeline-model-parallel size: ", "pipeline_model_parallel_size"}};
    for (const auto& [key, argument] : sizes) {
      const std::optional<int64_t> size = CountAfter(line, key);
      if (size) MegatronArgument(argument, std::to_string(*size), number);
    }
  }
  if (HasPart(line, "elapsed time per iteration (ms): ")) {
    Program("Megatron");
    if (const auto batch = CountAfter(line, "global batch size:"); batch && *batch > 0) {
      Add("⟦global_batch⟧", std::to_string(*batch), number, "global batch size", kFromEngine);
    }
  }
}

// Lines of accelerate's config, as a file has them and as "accelerate env" prints them.
void FactReader::AccelerateLine(std::string_view line, int64_t number) {
  std::string_view text = Trimmed(line);
  if (text.starts_with("- ")) text.remove_prefix(2);
  const size_t colon = text.find(": ");
  if (colon == std::string_view::npos || colon > 32 || text.find(' ') < colon) return;
  const std::string_view name = text.substr(0, colon);
  std::string value(Trimmed(text.substr(colon + 2)));
  std::erase_if(value, [](char c) { return c == '\'' || c == '"'; });
  const std::string from = fmt::format("{}: {}", name, value);
  if (name == "distributed_type") {
    const std::pair<std::string_view, std::string_view> kinds[] = {
        {"DEEPSPEED", "deepspeed"}, {"FSDP", "fsdp2"}, {"MULTI_GPU", "ddp"}, {"NO", "ddp"}};
    for (const auto& [kind, runtime] : kinds) {
      if (value == kind) Add("⟦runtime⟧", std::string(runtime), number, from, kStated);
    }
    if (value == kinds[0].first || value == kinds[1].first) Program("accelerate");
  } else if (name == "fsdp_config" || name == "deepspeed_config") {
    // {fsdp_version: 2, fsdp_offload_params: False}
    std::erase_if(value, [](char c) { return c == '{' || c == '}'; });
    for (const std::string_view part : Split(value, ',')) AccelerateLine(part, number);
  } else if (name == "fsdp_reshard_after_forward" || name == "fsdp_sharding_strategy") {
    const bool full = value == "FULL_SHARD" || value == "1" || value == "True" || value == "true";
    const bool kept = value == "SHARD_GRAD_OP" || value == "2" || IsFalse(value);
    if (full || kept) Add("⟦stage⟧", full ? "3" : "2", number, from, kStated);
  } else if (const ProgramOption* known = FindOption(name);
             name == "fsdp_version" ||
             (known != nullptr && known->program == OtherProgram::kAccelerate)) {
    Option(name, value, number, from, kStated);
  }
}

void FactReader::Unsloth(const std::string& line, int64_t number) {
  const bool banner = HasPart(line, "==((====))==") && HasPart(line, "Unsloth");
  if (banner || HasPart(line, "Unsloth: Will patch your computer")) {
    Program("Unsloth");
    NotPredictedBecause(
        "it ran Unsloth, whose own kernels keep less than transformers' code and are not modelled",
        "⟦code⟧");
  }
  if (std::find(log_->programs.begin(), log_->programs.end(), "Unsloth") == log_->programs.end()) {
    return;
  }
  Count(line, "Num GPUs", "⟦gpus⟧", number);
  Count(line, "Num GPUs used", "⟦gpus⟧", number);
  Count(line, "Batch size per device", "⟦micro_batch⟧", number);
  Count(line, "Gradient Accumulation steps", "⟦grad_accum⟧", number);
  Count(line, "Gradient accumulation steps", "⟦grad_accum⟧", number);
  // "GPU: Tesla T4. Max memory: 14.748 GB", "NVIDIA L4. Num GPUs = 1. Max memory: 22.161 GB"
  const size_t end = std::min(line.find(". Num GPUs"), line.find(". Max memory"));
  if (end == std::string::npos) return;
  std::string_view name = std::string_view(line).substr(0, end);
  name = Trimmed(name.substr(name.rfind('|') + 1));
  if (name.starts_with("GPU: ")) name.remove_prefix(5);
  if (!name.empty() && name.size() < 60) {
    Add("⟦hw⟧", std::string(name), number, "Unsloth's banner", kStated);
  }
}

// A line of torchtune's config. `nested`: below yaml_parent_.
void FactReader::YamlLine(const std::string& name, const std::string& value, bool nested,
                          int64_t line) {
  const std::string from = fmt::format("{}{}: {}", nested ? yaml_parent_ + "." : "", name, value);
  const bool of_optimizer = nested && yaml_parent_ == "optimizer";
  if (nested && yaml_parent_ == "model") {
    if (name == "_component_") TorchtuneModel(value, line);
    if (name == "lora_rank" || name == "lora_alpha") Option(name, value, line, from, kStated);
    if (name == "apply_lora_to_mlp" && IsTrue(value)) {
      for (const char* linear : {"gate_proj", "up_proj", "down_proj"}) {
        TorchtuneTarget(linear, line);
      }
    }
  } else if (of_optimizer && name == "_component_") {
    if (value.ends_with("AdamW8bit")) {
      const bool torchao = HasPart(value, "torchao");
      Add("⟦optim⟧",
          torchao                   ? "adamw_torch_8bit"
          : HasPart(value, "Paged") ? "paged_adamw_8bit"
                                    : "adamw_bnb_8bit",
          line, from, kStated);
    }
  } else if (of_optimizer && name == "fused" && IsTrue(value)) {
    Add("⟦optim⟧", "adamw_torch_fused", line, from, kFollows);
  } else if (nested && yaml_parent_ == "tokenizer") {
    if (name == "max_seq_len") Option(name, value, line, from, kStated);
  } else if (nested && yaml_parent_ == "checkpointer" && name == "checkpoint_dir") {
    std::string_view folder = value;
    while (folder.ends_with('/')) folder.remove_suffix(1);
    Add("⟦model⟧", std::string(folder.substr(folder.rfind('/') + 1)), line, from, kByName);
  } else if (nested) {
    return;
  } else if (name == "batch_size" && IsCount(value)) {
    Add("⟦micro_batch⟧", value, line, from, kStated);
  } else if (name == "dtype" && (value == "bf16" || value == "fp32")) {
    Add("⟦param_dtype⟧", value, line, from, kStated);
    if (value == "fp32") Add("⟦dtype⟧", value, line, from, kStated);
  } else if (name == "compile") {
    if (IsTrue(value)) Add("⟦compile⟧", "all", line, from, kStated);
  } else {
    Option(name, value, line, from, kStated);
  }
}

void FactReader::TorchtuneTarget(std::string_view linear, int64_t number) {
  if (linear == "output_proj") linear = "o_proj";
  std::string targets(linear);
  if (const LogFact* before = log_->Fact("⟦lora_targets⟧")) targets = before->text + "," + targets;
  log_->facts.erase("⟦lora_targets⟧");
  Add("⟦lora_targets⟧", std::move(targets), number, "torchtune's model", kStated);
}

void FactReader::TorchtuneModel(std::string_view component, int64_t number) {
  const std::string name(component.substr(component.rfind('.') + 1));
  const std::string from = fmt::format("model._component_: {}", component);
  if (std::string model = ModelOfBuilder(name); !model.empty()) {
    Add("⟦model⟧", std::move(model), number, from, kStated);
  }
  if (name.starts_with("qlora_")) {
    Add("⟦method⟧", "qlora", number, from, kFromEngine);
  } else if (name.starts_with("lora_")) {
    Add("⟦method⟧", "lora", number, from, kStated);
  }
}

}  // namespace zeroplan
