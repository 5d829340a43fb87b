#include "planner/why/log_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "core/base/strings.h"
#include "planner/program_options.h"
#include "planner/why/log_text.h"
#include "planner/why/run_tasks.h"

namespace zeroplan {
namespace {

constexpr size_t kLongestBlock = 4000;  // lines

}  // namespace

void FactReader::Add(std::string_view field, std::string text, int64_t line, std::string from,
                     int strength) {
  LogFact& fact = log_->facts[std::string(field)];
  if (fact.strength >= strength) return;
  fact = {std::string(field), std::move(text), line, std::move(from), strength};
}

void FactReader::Program(std::string_view name) {
  std::vector<std::string>& all = log_->programs;
  if (std::find(all.begin(), all.end(), name) == all.end()) all.emplace_back(name);
}

void FactReader::Task(std::string_view task) {
  if (!log_->task.empty()) return;
  log_->task = task;
  log_->task_line = log_->lines;
}

void FactReader::Line(const std::string& line, int64_t number) {
  if (block_ != Block::kNone && InBlock(line, number)) return;
  if (const size_t at = line.find("json = {"); at != std::string::npos) {
    BeginJson(line, number, false, at + 7);
    return;
  }
  const size_t config = line.find("Model config ");
  if (config != std::string::npos && line.ends_with("{")) {
    BeginJson(line, number, true, line.size() - 1);
    return;
  }
  if (HasPart(line, "Arguments(") || HasPart(line, "SFTConfig(")) {
    if (line.ends_with("(")) block_ = Block::kArguments;
  } else if (line.ends_with("with resolved config:")) {
    block_ = Block::kYaml;
    Program("torchtune");
    Add("⟦code⟧", "torchtune", number, "a torchtune recipe", kStated);
    const bool distributed = HasPart(line, "Distributed");
    const bool single = HasPart(line, "SingleDevice");
    if (distributed || single) {
      Add("⟦runtime⟧", distributed ? "fsdp2" : "ddp", number, "torchtune's recipe", kStated);
    }
    if (distributed) Add("⟦stage⟧", "3", number, "torchtune's recipe", kFollows);
    if (single) Add("⟦gpus⟧", "1", number, "torchtune's recipe", kStated);
    if (HasPart(line, "LoRA")) log_->adapters = true;
    for (const char* task : {"DPO", "PPO", "GRPO"}) {
      if (HasPart(line, task)) Task(task);
    }
  }
  block_lines_ = 0;
  if (IsCommand(line)) Options(line, number);
  Headers(line, number);
  DeepSpeedLine(line, number);
  Torchtitan(line, number);
  Megatron(line, number);
  Unsloth(line, number);
}

bool FactReader::InBlock(const std::string& line, int64_t number) {
  if (static_cast<size_t>(++block_lines_) > kLongestBlock) block_ = Block::kNone;
  const std::string_view text = Trimmed(line);
  switch (block_) {
    case Block::kNone:
      return false;
    case Block::kJson: {
      std::string_view part = line;
      if (part.starts_with(json_prefix_)) part.remove_prefix(json_prefix_.size());
      part = Trimmed(part);
      if (part.empty()) return true;
      // Other ranks write between.
      if (std::string_view("\"{}[],-0123456789").find(part.front()) == std::string_view::npos ||
          part.starts_with("[20") || part.starts_with("[rank") || part.starts_with("[INFO")) {
        return false;
      }
      char quote = 0;
      for (size_t i = 0; i < part.size(); ++i) {
        const char c = part[i];
        if (c == '"' && (i == 0 || part[i - 1] != '\\')) quote = quote == 0 ? '"' : 0;
        if (quote != 0) continue;
        if (c == '{') ++depth_;
        if (c == '}') --depth_;
      }
      json_ += part;
      json_ += '\n';
      if (depth_ <= 0) EndJson();
      return true;
    }
    case Block::kArguments: {
      if (text == ")") {
        block_ = Block::kNone;
        return true;
      }
      const size_t equals = text.find('=');
      if (equals == std::string_view::npos || !text.ends_with(",")) return true;
      std::string value(text.substr(equals + 1, text.size() - equals - 2));
      std::erase_if(value, [](char c) { return c == '\'' || c == '"'; });
      value = PlainOptimizer(std::move(value));
      const std::string name = PlainOption(text.substr(0, equals));
      // Without a value these are off.
      if (value == "None" || value.empty()) return true;
      Option(name, value, number, fmt::format("{}={}", name, value), kStated);
      return true;
    }
    case Block::kYaml: {
      if (text.starts_with("- ")) {
        if (yaml_list_ == "lora_attn_modules") TorchtuneTarget(text.substr(2), number);
        return true;
      }
      const size_t colon = line.find(':');
      if (colon == std::string::npos || HasPart(line.substr(0, colon), " [")) {
        block_ = text.empty() ? Block::kYaml : Block::kNone;
        return text.empty();
      }
      const bool nested = line.starts_with("  ");
      const std::string name(Trimmed(line.substr(0, colon)));
      const std::string value(Trimmed(std::string_view(line).substr(colon + 1)));
      if (!nested) yaml_parent_ = value.empty() ? name : "";
      yaml_list_ = value.empty() ? name : "";
      if (!value.empty() && value != "null") YamlLine(name, value, nested, number);
      return true;
    }
  }
  return false;
}

void FactReader::BeginJson(const std::string& line, int64_t number, bool model, size_t brace) {
  block_ = Block::kJson;
  block_lines_ = 0;
  json_of_model_ = model;
  json_line_ = number;
  depth_ = 1;
  json_ = "{\n";
  // What launchers put in front of every line of a process.
  json_prefix_.clear();
  const size_t stamp = line.find("[20");
  if (!model && stamp != std::string::npos && stamp < brace) json_prefix_ = line.substr(0, stamp);
  if (model) json_prefix_ = line.substr(0, line.find("Model config "));
  if (HasPart(json_prefix_, "[transformers]")) json_prefix_.clear();
}

void FactReader::EndJson() {
  block_ = Block::kNone;
  if (json_of_model_) {
    const bool shaped = HasPart(json_, "\"hidden_size\"") || HasPart(json_, "\"n_embd\"");
    if (shaped && log_->model_config.empty()) {
      log_->model_config = std::exchange(json_, "");
      log_->model_config_line = json_line_;
    }
    return;
  }
  // Of several the first; what Trainer begins anew prints its own.
  if (!log_->config.empty() && !header_since_config_) return;
  header_since_config_ = false;
  log_->config = std::exchange(json_, "");
  log_->config_line = json_line_;
  Add("⟦runtime⟧", "deepspeed", json_line_, "DeepSpeed's config", kFromEngine);
}

void FactReader::Options(const std::string& line, int64_t number) {
  const std::vector<std::string> words = WordsIn(line);
  for (size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("--")) {
      Variable(words[i], number);
      const bool task = i > 0 && words[i - 1] == "trl";
      if (task || words[i].ends_with(".py")) Task(TaskOfWord(words[i]));
      if (words[i].ends_with(".yaml") || words[i].ends_with(".yml")) FileName(words[i], number);
      continue;
    }
    std::string name = words[i], value;
    const size_t equals = name.find('=');
    if (equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    const bool list = HasPart(name, "target");
    while (equals == std::string::npos && i + 1 < words.size() && !words[i + 1].starts_with("-")) {
      value += value.empty() ? words[++i] : "," + words[++i];
      if (!list) break;
    }
    const std::string normal = PlainOption(name);
    Launch(normal, value, number);
    if (normal == "stage" || normal == "rlhf_type") {
      Task(value == "rm" ? "reward modelling" : TaskOfWord(value));
    }
    Option(normal, value, number, fmt::format("{}{}{}", name, value.empty() ? "" : " ", value),
           kStated);
  }
}

bool FactReader::Option(std::string_view name, const std::string& value, int64_t line,
                        std::string from, int strength) {
  if (name == "fsdp") {
    Fsdp(value, line);
    return true;
  }
  if (name == "fsdp_version" && value == "1") log_->fsdp1 = true;
  if (name == "enable_fsdp" && IsTrue(value)) log_->fsdp1 = true;  // llama-recipes
  if (name == "load_in_8bit" && IsTrue(value)) {
    NotPredictedBecause(
        fmt::format("its base is in 8 bits ({}, line {}), which is not modelled", from, line),
        "⟦method⟧");
  }
  if (name == "deepspeed" || name == "deepspeed_config") {
    if (IsFalse(value)) return true;
    FileName(value, line);
    Add("⟦runtime⟧", "deepspeed", line, std::move(from), strength);
    return true;
  }
  const ProgramOption* known = FindOption(name);
  if (known == nullptr) return false;
  if (name == "bf16" && IsFalse(value)) no_bf16_line_ = line;
  if (name == "fp16" && IsFalse(value)) no_fp16_line_ = line;
  std::string text;
  switch (known->kind) {
    case ValueKind::kText:
    case ValueKind::kList:
      text = value;
      break;
    case ValueKind::kCount:
      if (IsCount(value)) text = value;
      break;
    case ValueKind::kSwitch:
      if (IsTrue(value)) text = known->on;
      if (IsFalse(value)) text = known->off;
      break;
    case ValueKind::kNamed:
      text = TextOfOption(name, value.starts_with("torch.") ? value.substr(6) : value);
      if (text.empty()) NoteUnknown(name, known->field, value, line, from);
  }
  if (text.empty()) return true;
  // What is quantized is more than adapters alone.
  if (text == "qlora") strength = kFromEngine;
  Add(known->field, std::move(text), line, std::move(from), strength);
  return true;
}

void FactReader::NoteUnknown(std::string_view name, std::string_view field,
                             const std::string& value, int64_t line, const std::string& from) {
  if (IsTrue(value) || IsFalse(value) || value == "none" || value == "null" || value == "auto") {
    return;
  }
  log_->unknown_values.try_emplace(
      std::string(field),
      fmt::format(
          "line {}: {} is not predicted; {}.", line, PrintableText(from, 80),
          name == "optim" ? "AdamW is taken" : fmt::format("{} says what to take instead", field)));
}

void FactReader::Fsdp(const std::string& value, int64_t line) {
  const bool full = HasPart(value, "full_shard"), grads = HasPart(value, "shard_grad_op");
  if (!full && !grads) return;
  const std::string from = "--fsdp " + value;
  Add("⟦runtime⟧", "fsdp2", line, from, kStated);
  Add("⟦stage⟧", full ? "3" : "2", line, from, kStated);
  if (HasPart(value, "offload")) Add("⟦offload_param⟧", "cpu", line, from, kStated);
}

void FactReader::FileName(std::string_view file, int64_t line) {
  const std::string name = LowerAscii(file.substr(file.rfind('/') + 1));
  // ms-swift's own configs: the name is the value. Names of files are a hint.
  const bool own = name.starts_with("zero") && name.find('.') == name.npos;
  const std::string from = own ? fmt::format("--deepspeed {}", name)
                               : fmt::format("the name {}", PrintableText(file, 80));
  const int strength = own ? kStated : kByName;
  for (const std::string_view word : {"zero", "z", "stage"}) {
    for (size_t at = name.find(word); at != name.npos; at = name.find(word, at + 1)) {
      size_t digit = at + word.size();
      if (digit < name.size() && (name[digit] == '_' || name[digit] == '-')) ++digit;
      if (digit >= name.size() || name[digit] < '0' || name[digit] > '3') continue;
      const bool number = digit + 1 < name.size() && IsDigit(name[digit + 1]);
      const bool letter = at > 0 && IsLetter(name[at - 1]);
      if (number || letter) continue;
      const std::string stage(1, name[digit]);
      Add("⟦stage⟧", stage, line, from, strength);
      if (!HasPart(name, "offload") || stage == "0") break;
      Add("⟦offload_optimizer⟧", "cpu", line, from, strength);
      if (stage == "3") Add("⟦offload_param⟧", "cpu", line, from, strength);
      break;
    }
  }
  if (HasPart(name, "qlora")) {
    Add("⟦method⟧", "qlora", line, from, kByName);
  } else if (HasPart(name, "lora")) {
    Add("⟦method⟧", "lora", line, from, kByName);
  }
}

void FactReader::Variable(const std::string& word, int64_t line) {
  const size_t equals = word.find('=');
  if (equals == std::string::npos) return;
  const std::string name = word.substr(0, equals), value = word.substr(equals + 1);
  if (name == "NPROC_PER_NODE" || name == "NNODES") Launch(LowerAscii(name), value, line);
  if (name == "CUDA_VISIBLE_DEVICES" && !value.empty() && IsDigit(value.front())) {
    const auto commas = std::count(value.begin(), value.end(), ',');
    Add("⟦gpus⟧", std::to_string(commas + 1), line, word, kFollows);
  }
}

// GPUs are those of a node times the nodes.
void FactReader::Launch(std::string_view name, const std::string& value, int64_t line) {
  if (!IsCount(value)) return;
  if (name == "nproc_per_node" || name == "num_gpus") per_node_ = std::stoll(value);
  if (name == "nnodes" || name == "num_nodes") nodes_ = std::stoll(value);
  if (per_node_ > 0) launch_line_ = line;
}

// A run that begins anew (auto_find_batch_size) prints it again: the last one counts, alone.
void FactReader::TrainerHeader(const std::string& line, int64_t number) {
  const auto set = [&](std::string_view key, std::string_view field, int64_t most) -> int64_t {
    const std::optional<int64_t> value = CountAfter(line, key);
    if (!value || *value <= 0 || *value > most) return 0;
    log_->facts.erase(std::string(field));
    Add(field, std::to_string(*value), number, std::string(Trimmed(key)), kFromEngine);
    return *value;
  };
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  if (const int64_t batch = set("Instantaneous batch size per device =", "⟦micro_batch⟧", kAny)) {
    device_batch_ = batch;
    total_batch_ = 0;
    header_since_config_ = true;
  }
  if (HasPart(line, "***** Running ")) evaluates_ = !HasPart(line, "***** Running training");
  // Of one process, and so of one GPU.
  if (evaluates_ && set("  Batch size =", kEvalBatchFact, kAny) > 0) evaluates_ = false;
  // More than that is the batch of several GPUs of one process.
  set("batch size has been adjusted to:", "⟦micro_batch⟧", device_batch_);
  set("Gradient Accumulation steps =", "⟦grad_accum⟧", kAny);
  if (const auto total = CountAfter(line, "accumulation) =")) {
    total_batch_ = *total;
    total_batch_line_ = number;
    Program("transformers Trainer");
  }
}

void FactReader::Count(std::string_view line, std::string_view key, std::string_view field,
                       int64_t number) {
  const std::optional<int64_t> value = CountAfter(line, key);
  if (!value || *value == 0) return;
  Add(field, std::to_string(*value), number, std::string(Trimmed(key)), kFromEngine);
}

void FactReader::Headers(const std::string& line, int64_t number) {
  AccelerateLine(line, number);
  TrainerHeader(line, number);
  Count(line, "Num processes:", "⟦gpus⟧", number);
  Count(line, "dist_world_size=", "⟦gpus⟧", number);
  const bool set = HasPart(line, "ALLOC_CONF=") && !HasPart(line, "try setting");
  if (set && HasPart(line, "expandable_segments:True")) {
    Add("⟦expandable_segments⟧", "true", number, "PYTORCH_CUDA_ALLOC_CONF", kStated);
  }
  for (const std::string_view enabled :
       {"Gradient checkpointing enabled", "applying fsdp activation checkpointing"}) {
    if (HasPart(line, enabled)) {
      Add("⟦checkpointing⟧", "full", number, std::string(enabled), kStated);
    }
  }
  // axolotl's and llama-recipes'.
  if (HasPart(line, "patching with flash attention")) {
    Add("⟦attn⟧", "flash", number, "patching with flash attention", kStated);
  }
  if (Trimmed(line) == "FP16 enabled") Add("⟦dtype⟧", "fp16", number, "FP16 enabled", kStated);
  if (const size_t at = line.find("--> Model "); at != std::string::npos) {
    Add("⟦model⟧", std::string(Trimmed(std::string_view(line).substr(at + 10))), number,
        "--> Model", kFollows);
    Program("llama-recipes");
  }
  for (const std::string_view kind : {"full", "selective"}) {
    const std::string applied = fmt::format("Applied {} activation checkpointing", kind);
    if (HasPart(line, applied + " to the model")) {
      Add("⟦checkpointing⟧", std::string(kind), number, applied, kFromEngine);
    }
  }
  if (HasPart(line, "Mixed precision type: ")) {
    const std::string type = line.substr(line.find("type: ") + 6);
    Option("mixed_precision", std::string(Trimmed(type)), number, "Mixed precision type",
           kFromEngine);
  }
  if (const size_t at = line.find("Distributed environment: "); at != std::string::npos) {
    const std::string kind(Trimmed(std::string_view(line).substr(at + 25)));
    const std::string from = "Distributed environment: " + kind;
    if (HasPart(kind, "DEEPSPEED")) Add("⟦runtime⟧", "deepspeed", number, from, kFromEngine);
    if (HasPart(kind, "FSDP")) Add("⟦runtime⟧", "fsdp2", number, from, kFromEngine);
    if (HasPart(kind, "MULTI_GPU") || kind.starts_with("NO") || kind.ends_with(".NO")) {
      Add("⟦runtime⟧", "ddp", number, from, kFromEngine);
    }
    Program("accelerate");
  }
  const size_t cached = line.find("models--");
  if (cached != std::string::npos && HasPart(line, "loading ")) {
    std::string name = line.substr(cached + 8);
    name.resize(std::min(name.find('/'), name.size()));
    if (const size_t dashes = name.find("--"); dashes != std::string::npos) {
      name.replace(dashes, 2, "/");
      Add("⟦model⟧", name, number, "a file of Hugging Face's cache", kFollows);
    }
  }
  if (HasPart(line, "trainable params: ") && HasPart(line, "trainable%")) {
    log_->adapters = true;
    Program("PEFT");
  }
  if (const std::string gpu = GpuNameIn(line); !gpu.empty()) {
    Add("⟦hw⟧", gpu, number, "the GPU's name", kStated);
  }
}

void FactReader::DeepSpeedLine(const std::string& line, int64_t number) {
  if (const size_t at = line.find("DeepSpeed info: version="); at != std::string::npos) {
    std::string version = line.substr(at + 24);
    version.resize(std::min(version.find(','), version.size()));
    Program("DeepSpeed " + version);
    Add("⟦runtime⟧", "deepspeed", number, "DeepSpeed info", kFromEngine);
  }
  if (HasPart(line, "[config.py:") && HasPart(line, ":print]")) {
    const auto setting = [&](std::string_view name, std::string_view field) {
      if (!HasPart(line, name)) return;
      const std::optional<int64_t> value = CountAfter(line, name);
      if (value && *value > 0) {
        Add(field, std::to_string(*value), number, std::string(Trimmed(name)), kFromEngine);
      }
    };
    setting("  train_micro_batch_size_per_gpu ", "⟦micro_batch⟧");
    setting("  gradient_accumulation_steps ", "⟦grad_accum⟧");
    setting("  world_size ", "⟦gpus⟧");
    if (HasPart(line, "  bfloat16_enabled ") && line.ends_with("True")) {
      Add("⟦dtype⟧", "bf16", number, "bfloat16_enabled", kFromEngine);
    }
    if (HasPart(line, "  fp16_enabled ") && line.ends_with("True")) {
      Add("⟦dtype⟧", "fp16", number, "fp16_enabled", kFromEngine);
    }
  }
  const size_t stage = line.find("ZeRO stage ");
  if (HasPart(line, "Creating ") && stage != std::string::npos) {
    if (const auto value = CountAfter(line, "ZeRO stage "); value && *value <= 3) {
      Add("⟦stage⟧", std::to_string(*value), number, "Creating ... ZeRO stage", kFromEngine);
    }
  }
  if (HasPart(line, "Detected DeepSpeed ZeRO-3")) {
    Add("⟦runtime⟧", "deepspeed", number, "Detected DeepSpeed ZeRO-3", kFromEngine);
    Add("⟦stage⟧", "3", number, "Detected DeepSpeed ZeRO-3", kFromEngine);
  }
  if (HasPart(line, "DeepSpeedZeRoOffload initialize")) {
    Add("⟦stage⟧", "3", number, "DeepSpeedZeRoOffload", kFromEngine);
  }
  if (HasPart(line, "] CPU Offload: ")) {
    Add("⟦offload_optimizer⟧", line.ends_with("True") ? "cpu" : "none", number, "CPU Offload",
        kFromEngine);
  }
}

void FactReader::Finish() {
  if (block_ == Block::kJson) block_ = Block::kNone;
  const LogFact* micro = log_->Fact("⟦micro_batch⟧");
  const LogFact* accum = log_->Fact("⟦grad_accum⟧");
  constexpr int64_t kMostCount = 1'000'000;  // products of two stay in range
  const bool launches = per_node_ > 0 && per_node_ <= kMostCount && nodes_ <= kMostCount;
  const int64_t launched = launches ? per_node_ * std::max<int64_t>(nodes_, 1) : 0;
  if (total_batch_ > 0 && micro != nullptr && accum != nullptr) {
    const int64_t sequences = std::stoll(micro->text), steps = std::stoll(accum->text);
    const bool sane = sequences > 0 && steps > 0 && sequences <= kMostCount && steps <= kMostCount;
    const int64_t of_one = sane ? sequences * steps : 0;
    if (sane && total_batch_ % of_one == 0) {
      const int64_t counted = total_batch_ / of_one;
      // A command that does not name its nodes is that of one of them.
      const bool agrees =
          launched == 0 || counted == launched || (nodes_ == 0 && counted % launched == 0);
      if (agrees) {
        Add("⟦gpus⟧", std::to_string(counted), total_batch_line_, "Total train batch size",
            kFromEngine);
      } else {
        log_->gpus_doubt = fmt::format(
            "The launch command starts {} GPU{} (line {}), while Trainer's total train batch size "
            "of {} comes to {} (line {}): what is started is taken; ⟦gpus⟧ says otherwise.",
            launched, launched == 1 ? "" : "s", launch_line_, total_batch_, counted,
            total_batch_line_);
      }
    }
  }
  if (launches) {
    Add("⟦gpus⟧", std::to_string(launched), launch_line_, "the launch command", kStated);
    if (nodes_ > 1) {
      Add("⟦gpus_per_node⟧", std::to_string(per_node_), launch_line_, "the launch command",
          kStated);
    }
  }
  for (const std::string& program : log_->programs) {
    if (program != "transformers Trainer") continue;
    Add("⟦code⟧", "hf", 0, "transformers' Trainer", kFromFrames);
  }
  const LogFact* params = log_->Fact("⟦param_dtype⟧");
  if (no_bf16_line_ > 0 && no_fp16_line_ > 0 && (params == nullptr || params->text == "fp32")) {
    Add("⟦dtype⟧", "fp32", std::max(no_bf16_line_, no_fp16_line_), "bf16 and fp16 are off",
        kFollows);
  }
  // On one GPU there is nothing to shard.
  const LogFact* gpus = log_->Fact("⟦gpus⟧");
  if (log_->plain_backward_line > 0 && gpus != nullptr && gpus->text == "1") {
    Add("⟦runtime⟧", "ddp", log_->plain_backward_line,
        "a backward pass of PyTorch's own on one GPU", kFollows);
  }
}

}  // namespace zeroplan
