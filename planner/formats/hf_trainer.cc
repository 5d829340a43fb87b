// transformers' Trainer. With DeepSpeed its config leaves to "auto" what TrainingArguments fills in
// (HfTrainerDeepSpeedConfig: batch, precision, clipping, the optimizer's values, the schedule's
// rate, warm-up and length). With FSDP2 the file is TrainingArguments.fsdp_config, with DDP
// TrainingArguments themselves.
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/strings.h"
#include "core/config/deepspeed_writer.h"
#include "core/model/lora.h"
#include "planner/formats/format_parts.h"
#include "planner/program_options.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kAutoValue = "auto";

void SetAuto(Json& section, const char* key) {
  if (section.contains(key)) section[key] = kAutoValue;
}

JsonText LeaveToTrainer(const JsonText& text) {
  Json out = Json::parse(text);
  for (const char* key : {"train_batch_size", "train_micro_batch_size_per_gpu",
                          "gradient_accumulation_steps", "gradient_clipping"}) {
    out[key] = kAutoValue;
  }
  out["bf16"]["enabled"] = out["fp16"]["enabled"] = kAutoValue;
  Json& optimizer = out["optimizer"]["params"];
  for (const char* key : {"lr", "betas", "eps", "weight_decay"}) SetAuto(optimizer, key);
  if (!out.contains("scheduler")) return out.dump();
  Json& schedule = out["scheduler"]["params"];
  for (const char* key : {"warmup_max_lr", "warmup_num_steps", "total_num_steps"}) {
    SetAuto(schedule, key);
  }
  // It has no argument: "auto" is 0.
  if (schedule.contains("warmup_min_lr") && schedule["warmup_min_lr"] == 0.0) {
    schedule["warmup_min_lr"] = kAutoValue;
  }
  return out.dump();
}

// The name of a field in TrainingArguments.
consteval const char* Trainer(std::string_view field, std::string_view text = "") {
  return OptionName(OtherProgram::kTrainer, field, text).data();
}

// Arguments that the config that came in says, and the names of those that it leaves open.
class Arguments {
 public:
  explicit Arguments(const FormatRequest& request) : request_(request) {}

  template <typename T>
  void Add(const char* name, const T& value) {
    list_.push_back(fmt::format("--{} {}", name, value));
  }
  void Switch(bool on, const char* name) {
    if (on) list_.push_back(fmt::format("--{}", name));
  }
  template <typename T>
  void AddSaid(bool said, const char* name, const T& value) {
    if (said) {
      Add(name, value);
    } else {
      open_.emplace_back(name);
    }
  }
  bool Says(const char* key) const { return Said(request_, key); }

  std::vector<std::string>& list() { return list_; }
  const std::vector<std::string>& open() const { return open_; }

 private:
  const FormatRequest& request_;
  std::vector<std::string> list_, open_;
};

void AddBatch(const FormatRequest& request, Arguments& arguments) {
  const Dtype dtype = request.setup.precision.dtype;
  arguments.Add(Trainer("⟦micro_batch⟧"), request.setup.batch.micro_batch);
  arguments.Add(Trainer("⟦grad_accum⟧"), request.setup.batch.grad_accum);
  if (request.eval_batch) arguments.Add(Trainer(kEvalBatchFact), *request.eval_batch);
  // With a value, which SFTConfig wants.
  if (dtype == Dtype::kBF16) arguments.Add(Trainer("⟦dtype⟧", "bf16"), true);
  if (dtype == Dtype::kF16) arguments.Add(Trainer("⟦dtype⟧", "fp16"), true);
}

void AddOptimizer(const FormatRequest& request, Arguments& arguments) {
  const OptimizerConfig& optimizer = request.setup.optimizer;
  const ScheduleKind kind = optimizer.schedule.kind;
  // Their rate is the schedule's own.
  const bool warms_up = kind == ScheduleKind::kWarmup || kind == ScheduleKind::kWarmupDecay;
  const bool says_rate = arguments.Says("optimizer.params.lr") ||
                         (warms_up && arguments.Says("scheduler.params.warmup_max_lr"));
  arguments.AddSaid(says_rate, "learning_rate",
                    warms_up ? optimizer.schedule.warmup_max_lr : optimizer.lr);
  const bool says_betas = arguments.Says("optimizer.params.betas");
  arguments.AddSaid(says_betas, "adam_beta1", optimizer.betas[0]);
  arguments.AddSaid(says_betas, "adam_beta2", optimizer.betas[1]);
  arguments.AddSaid(arguments.Says("optimizer.params.eps"), "adam_epsilon", optimizer.eps);
  arguments.AddSaid(arguments.Says("optimizer.params.weight_decay"), "weight_decay",
                    optimizer.weight_decay);
  arguments.AddSaid(arguments.Says("gradient_clipping"), "max_grad_norm",
                    optimizer.gradient_clipping);
}

void AddSchedule(const FormatRequest& request, Arguments& arguments,
                 std::vector<std::string>& notes) {
  const ScheduleConfig& schedule = request.setup.optimizer.schedule;
  switch (schedule.kind) {
    case ScheduleKind::kConstant:
      // A config with a rate and no schedule means that rate throughout.
      arguments.AddSaid(arguments.Says("optimizer.params.lr"), "lr_scheduler_type", "constant");
      return;
    case ScheduleKind::kWarmup:
    case ScheduleKind::kWarmupDecay:
    case ScheduleKind::kWarmupCosine:
      arguments.AddSaid(arguments.Says("scheduler.params.warmup_num_steps"), "warmup_steps",
                        schedule.warmup_steps);
      if (schedule.kind != ScheduleKind::kWarmup) {
        arguments.AddSaid(arguments.Says("scheduler.params.total_num_steps"), "max_steps",
                          schedule.total_steps);
      }
      return;
    case ScheduleKind::kOneCycle:
    case ScheduleKind::kRangeTest:
      notes.emplace_back(
          "The schedule has no arguments: its numbers stay in the file, and are the learning "
          "rate.");
      return;
    case ScheduleKind::kOfRun:
      notes.emplace_back(
          "The schedule is the Trainer's own kind: give --lr_scheduler_type (constant_with_warmup, "
          "linear or cosine_with_min_lr), --warmup_ratio and --lr_scheduler_kwargs as "
          "_zeroplan.lr_schedule has them.");
  }
}

std::string_view OptimizerOf(const FormatRequest& request) {
  return ValueForText(Trainer("⟦optim⟧"), TorchOptimizerName(request.recipe.UsedOptimizer()));
}

// What the plan assumes of the code; what the model is loaded with is the script's.
void AddCode(const FormatRequest& request, Arguments& arguments) {
  const TorchRecipe& recipe = request.recipe;
  const bool fsdp2 = !request.runtime->reads_deepspeed_config() && !IsDdp(request);
  // FSDP2's is a key of its own.
  if (request.setup.recompute.kind == RecomputeKind::kFull && !fsdp2) {
    arguments.Switch(true, Trainer("⟦checkpointing⟧", "full"));
    arguments.Add("gradient_checkpointing_kwargs", ShellWord(R"({"use_reentrant": false})"));
  }
  arguments.Switch(recipe.code == CodeStyle::kLiger, Trainer("⟦code⟧", "liger"));
  arguments.Switch(recipe.compile.layers, Trainer("⟦compile⟧", "all"));
}

// An optimizer of the Trainer's takes the place of the config's.
JsonText LeaveOptimizerToTrainer(const JsonText& text) {
  Json out = Json::parse(LeaveToTrainer(text));
  out.erase("optimizer");
  return out.dump();
}

void AddDeepSpeedArguments(const FormatRequest& request, WrittenConfig& out) {
  const std::optional<TorchOptimizer>& optimizer = request.recipe.optimizer;
  out.files.push_back(
      {request.file, DeepSpeedJson(request, optimizer ? LeaveOptimizerToTrainer : LeaveToTrainer)});
  Arguments arguments(request);
  arguments.Add(Trainer("⟦runtime⟧"), ShellWord(request.file));
  AddBatch(request, arguments);
  if (optimizer) arguments.Add(Trainer("⟦optim⟧"), OptimizerOf(request));
  AddOptimizer(request, arguments);
  AddSchedule(request, arguments, out.notes);
  AddCode(request, arguments);
  out.arguments = std::move(arguments.list());
  if (!arguments.open().empty()) {
    out.notes.push_back(fmt::format("No config says {}: TrainingArguments' own hold.",
                                    fmt::join(arguments.open(), ", ")));
  }
}

JsonText Fsdp2Json(const FormatRequest& request) {
  const TrainSetup& setup = request.setup;
  const Json out = {{"version", 2},
                    {"reshard_after_forward", setup.zero.stage == 3},
                    {"cpu_offload", setup.zero.offload_param.device == OffloadDevice::kCpu},
                    {"auto_wrap_policy", "TRANSFORMER_BASED_WRAP"},
                    {"activation_checkpointing", setup.recompute.kind == RecomputeKind::kFull}};
  return NameRuntime(out.dump(), request.runtime_name, RecipeWords(request.recipe));
}

// PyTorch alone has no file of its own: it is TrainingArguments, which HfArgumentParser's
// parse_json_file reads.
JsonText DdpJson(const FormatRequest& request) {
  const TrainSetup& setup = request.setup;
  Json out = {{Trainer("⟦micro_batch⟧"), setup.batch.micro_batch},
              {Trainer("⟦grad_accum⟧"), setup.batch.grad_accum},
              {Trainer("⟦dtype⟧", "bf16"), setup.precision.dtype == Dtype::kBF16},
              {Trainer("⟦dtype⟧", "fp16"), setup.precision.dtype == Dtype::kF16},
              {Trainer("⟦optim⟧"), OptimizerOf(request)},
              {Trainer("⟦checkpointing⟧", "full"), setup.recompute.kind == RecomputeKind::kFull}};
  if (setup.recompute.kind == RecomputeKind::kFull) {
    out["gradient_checkpointing_kwargs"] = {{"use_reentrant", false}};
  }
  out[Trainer("⟦code⟧", "liger")] = request.recipe.code == CodeStyle::kLiger;
  out[Trainer("⟦compile⟧", "all")] = request.recipe.compile.layers;
  return NameRuntime(out.dump(), request.runtime_name, RecipeWords(request.recipe));
}

void AddPyTorchArguments(const FormatRequest& request, WrittenConfig& out) {
  const bool ddp = IsDdp(request);
  out.files.push_back({request.file, ddp ? DdpJson(request) : Fsdp2Json(request)});
  Arguments arguments(request);
  if (!ddp) {
    arguments.Switch(true, "fsdp");
    arguments.Add("fsdp_config", ShellWord(request.file));
  }
  AddBatch(request, arguments);
  arguments.Add(Trainer("⟦optim⟧"), OptimizerOf(request));
  AddCode(request, arguments);
  out.arguments = std::move(arguments.list());
  if (ddp) {
    out.notes.push_back(
        fmt::format("{} has the same: HfArgumentParser(TrainingArguments).parse_json_file({}, "
                    "allow_extra_keys=True).",
                    request.file, Quoted(request.file)));
  }
  out.notes.emplace_back(
      "Learning rate, decay, clipping and schedule are no part of the plan: TrainingArguments' own "
      "hold.");
}

}  // namespace

WrittenConfig WriteHfTrainer(const FormatRequest& request) {
  WrittenConfig out;
  if (request.runtime->reads_deepspeed_config()) {
    AddDeepSpeedArguments(request, out);
  } else {
    AddPyTorchArguments(request, out);
  }
  const bool regions = request.recipe.compile.layers && !request.recipe.compile.loss;
  // The Trainer compiles the whole model otherwise, with the loss in it.
  out.launch = fmt::format("{}{}{} train.py", AllocatorVariable(request),
                           regions ? "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=true " : "",
                           TorchrunLaunch(request.cluster));
  out.script = ModelScript(request);
  const ModelSpec& model = request.model;
  if (HasAdapters(model) && model.lora_alpha == std::floor(model.lora_alpha)) {
    out.notes.push_back(fmt::format(
        "With TRL's SFTTrainer these are SFTConfig's, and ModelConfig's are {}.{}",
        TrlArguments(request),
        model.lora_quantized && IsDdp(request) && request.recipe.param_dtype != Dtype::kBF16
            ? " It casts adapters of quantized models to bf16, which takes less than was planned."
            : ""));
  }
  out.notes.push_back(fmt::format("That is {}; the data says how long its sequences are.",
                                  StepText(request.setup.batch)));
  AddProbe(request, "trainer.train_dataset", "before trainer.train()",
           {"--max_steps 2", "--save_strategy no"}, out);
  return out;
}

}  // namespace zeroplan
