// What a script says that no file and no argument does: how the model is loaded, its adapters, and
// with accelerate the optimizer. Python for transformers 5, PEFT 0.21 and bitsandbytes 0.50.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/strings.h"
#include "core/families/adapter_config.h"
#include "core/model/lora.h"
#include "planner/formats/format_parts.h"
#include "planner/program_options.h"
#include "planner/runtimes/planned/planned_models.h"

namespace zeroplan {
namespace {

// What the weights are loaded in. DeepSpeed casts them to what it computes in, FSDP2 of accelerate
// those that are trained to fp32.
Dtype LoadedDtype(const FormatRequest& request) {
  const Dtype computes = request.setup.precision.dtype;
  if (HasAdapters(request.model)) return computes;
  if (IsDdp(request)) return HeldByDdp(request.recipe, computes, /*adapters=*/false);
  return request.recipe.param_dtype.value_or(computes);
}

std::string PythonList(const std::string& names) {
  std::vector<std::string> quoted;
  for (const std::string_view name : SplitList(names)) {
    quoted.push_back(Quoted(std::string(name)));
  }
  return fmt::format("[{}]", fmt::join(quoted, ", "));
}

// As said, or where that says layers or ranks too, which are the same for all, the names alone.
std::string TargetNames(const ModelSpec& model) {
  if (model.lora_targets.find_first_of("@:") == std::string::npos) return model.lora_targets;
  return fmt::format("{}", fmt::join(NamesOfAdapters(model).modules, ","));
}

// A pattern of the language model's linears, which leaves a tower's of the same names out.
std::string LanguageTargets(const ModelSpec& model) {
  const std::vector<std::string> names = NamesOfAdapters(model).modules;
  return fmt::format(".*language_model.*({})", fmt::join(names, "|"));
}

bool Sees(const ModelSpec& model) {
  const PlannedCode* planned = model.family->planned();
  return planned != nullptr && planned->vision.present();
}

std::string TargetModules(const ModelSpec& model) {
  if (Sees(model)) return Quoted(LanguageTargets(model));
  return model.lora_targets == kAllLinear ? Quoted(model.lora_targets)
                                          : PythonList(TargetNames(model));
}

// The shortest decimal number that is the same float.
std::string PythonNumber(float value) { return fmt::format("{}", value); }

// Under DeepSpeed all that is trained is in 16 bit; at stage 3 what is not made so stays as it is,
// which zero.Init partitions.
bool AdaptersIn16Bit(const FormatRequest& request) {
  return request.runtime->reads_deepspeed_config() || request.recipe.param_dtype == Dtype::kBF16;
}

// bitsandbytes' default is uint8.
std::optional<Dtype> WrittenStorage(const FormatRequest& request) {
  const Dtype storage = QuantStorageOf(request.recipe, request.runtime->facts().fully_shards,
                                       request.setup.precision.dtype);
  if (!request.model.lora_quantized || storage == Dtype::kU8) return std::nullopt;
  return storage;
}

void AddLora(const FormatRequest& request, std::vector<std::string>& lines) {
  const ModelSpec& model = request.model;
  lines.push_back(fmt::format(
      "lora = LoraConfig(r={}, lora_alpha={}, lora_dropout={}, bias=\"none\",", model.lora_rank,
      PythonNumber(model.lora_alpha), PythonNumber(model.lora_dropout)));
  std::string rest = fmt::format("                  target_modules={}, ", TargetModules(model));
  if (model.lora_rslora) rest += "use_rslora=True, ";
  if (!model.lora_saved.empty()) {
    rest += fmt::format("modules_to_save={}, ",
                        PythonList(fmt::format("{}", fmt::join(SavedModules(model), ","))));
    if (TrainsTiedHead(model)) rest += "ensure_weight_tying=True, ";
  }
  lines.push_back(rest + "task_type=\"CAUSAL_LM\")");
  if (request.recipe.kbit) {
    lines.push_back(
        fmt::format("model = prepare_model_for_kbit_training(model, use_gradient_checkpointing={},",
                    request.setup.recompute.kind == RecomputeKind::kFull ? "True" : "False"));
    lines.emplace_back(
        "                                        "
        "gradient_checkpointing_kwargs={\"use_reentrant\": False})");
  }
  // PEFT leaves adapters of a quantized model in fp32 whatever it is told.
  const bool casts = AdaptersIn16Bit(request);
  lines.push_back(
      fmt::format("model = get_peft_model(model, lora{})",
                  casts && !model.lora_quantized ? ", autocast_adapter_dtype=False" : ""));
  if (casts && model.lora_quantized && !request.runtime->reads_deepspeed_config()) {
    lines.emplace_back("for p in model.parameters():");
    lines.emplace_back("    if p.requires_grad: p.data = p.data.to(torch.bfloat16)");
  }
}

std::string_view OptimizerCall(TorchOptimizer optimizer) {
  switch (optimizer) {
    case TorchOptimizer::kAdamWFused:
      return "torch.optim.AdamW(trained, lr=LR, fused=True)";
    case TorchOptimizer::kAdamW:
      return "torch.optim.AdamW(trained, lr=LR, foreach=True)";
    case TorchOptimizer::kAdamW8bit:
      return "bitsandbytes.optim.AdamW8bit(trained, lr=LR)";
    case TorchOptimizer::kPagedAdamW:
      return "bitsandbytes.optim.PagedAdamW32bit(trained, lr=LR)";
    case TorchOptimizer::kPagedAdamW8bit:
      return "bitsandbytes.optim.PagedAdamW8bit(trained, lr=LR)";
    case TorchOptimizer::kAdamWTorchao8bit:
      return "torchao.optim.AdamW8bit(trained, lr=LR)";
    case TorchOptimizer::kAdafactor:
      return "transformers.Adafactor(trained, lr=LR, scale_parameter=False, relative_step=False)";
  }
  return "";
}

// Puts the package that it needs in front.
void AddOptimizerCall(TorchOptimizer optimizer, std::vector<std::string>& lines) {
  const std::string_view call = OptimizerCall(optimizer);
  std::string import = fmt::format("import {}", call.substr(0, call.find('.')));
  if (std::find(lines.begin(), lines.end(), import) == lines.end()) {
    lines.insert(lines.begin(), std::move(import));
  }
  lines.emplace_back("trained = [p for p in model.parameters() if p.requires_grad]");
  lines.push_back(fmt::format("optimizer = {}", call));
}

// The name that TRL's ModelConfig and transformers' from_pretrained have for a field.
consteval std::string_view TrlOption(std::string_view field, std::string_view text = "") {
  return OptionName(OtherProgram::kTrl, field, text);
}

}  // namespace

std::string_view AttentionArgument(TorchAttention attention) {
  return ValueForText(TrlOption("⟦attn⟧"), TorchAttentionName(attention));
}

bool IsDdp(const FormatRequest& request) { return request.runtime->facts().replicates; }

std::vector<std::string> ModelScript(const FormatRequest& request) {
  const TorchRecipe& recipe = request.recipe;
  const bool trainer = request.format == ConfigFormat::kHfTrainer;
  const bool adapters = HasAdapters(request.model), quantized = request.model.lora_quantized;
  // The Trainer puts Liger's kernels in by itself.
  const bool liger = recipe.code == CodeStyle::kLiger && !trainer;
  std::vector<std::string> lines = {"import torch"};
  const PlannedCode* planned =
      request.model.family == nullptr ? nullptr : request.model.family->planned();
  const bool sees = planned != nullptr && planned->vision.present();
  const std::string_view loader = liger  ? "AutoLigerKernelForCausalLM"
                                  : sees ? "AutoModelForImageTextToText"
                                         : "AutoModelForCausalLM";
  if (liger) lines.push_back(fmt::format("from liger_kernel.transformers import {}", loader));
  std::vector<std::string_view> names;
  if (!liger) names.push_back(loader);
  if (quantized) names.push_back("BitsAndBytesConfig");
  if (!names.empty())
    lines.push_back(fmt::format("from transformers import {}", fmt::join(names, ", ")));
  if (adapters) {
    lines.push_back(fmt::format("from peft import LoraConfig, get_peft_model{}",
                                recipe.kbit ? ", prepare_model_for_kbit_training" : ""));
  }
  const std::string_view dtype = TorchDtypeName(LoadedDtype(request));
  lines.push_back(fmt::format("model = {}.from_pretrained(", loader));
  lines.push_back(fmt::format("    MODEL, dtype=torch.{}, attn_implementation=\"{}\"{}", dtype,
                              AttentionArgument(recipe.attention), quantized ? "," : ")"));
  if (quantized) {
    if (request.quantizes_on_host) lines.emplace_back("    device_map={\"\": \"cpu\"},");
    lines.emplace_back("    quantization_config=BitsAndBytesConfig(");
    lines.emplace_back(
        "        load_in_4bit=True, bnb_4bit_quant_type=\"nf4\", bnb_4bit_use_double_quant=True,");
    std::string last = fmt::format("        bnb_4bit_compute_dtype=torch.{}", dtype);
    if (const std::optional<Dtype> storage = WrittenStorage(request)) {
      last += fmt::format(", {}=torch.{}", TrlOption("⟦quant_storage⟧"), TorchDtypeName(*storage));
    }
    lines.push_back(last + "))");
  }
  if (adapters) AddLora(request, lines);
  if (trainer) return lines;
  if (request.setup.recompute.kind == RecomputeKind::kFull &&
      !request.runtime->facts().fully_shards) {
    lines.emplace_back(
        "model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={\"use_reentrant\": "
        "False})");
  }
  if (request.runtime->reads_deepspeed_config() && !recipe.optimizer) return lines;
  AddOptimizerCall(recipe.UsedOptimizer(), lines);
  return lines;
}

std::vector<std::string> OptimizerScript(const FormatRequest& request) {
  std::vector<std::string> lines = {"import deepspeed"};
  AddOptimizerCall(request.recipe.UsedOptimizer(), lines);
  lines.emplace_back("engine, *_ = deepspeed.initialize(");
  lines.push_back(fmt::format("    model=model, optimizer=optimizer, config={})",
                              Quoted(PrintableText(request.file, 200))));
  return lines;
}

std::string TrlArguments(const FormatRequest& request) {
  const ModelSpec& model = request.model;
  std::string text =
      fmt::format("--{} --{} {} --{} {} --lora_dropout {} --{} {}", TrlOption("⟦method⟧", "lora"),
                  TrlOption("⟦lora_rank⟧"), model.lora_rank, TrlOption("⟦lora_alpha⟧"),
                  static_cast<int64_t>(model.lora_alpha), PythonNumber(model.lora_dropout),
                  TrlOption("⟦lora_targets⟧"),
                  Sees(model) ? fmt::format("'{}'", LanguageTargets(model))
                              : fmt::format("{}", fmt::join(SplitList(TargetNames(model)), " ")));
  if (model.lora_rslora) text += " --use_rslora";
  if (!model.lora_saved.empty()) {
    text += fmt::format(" --lora_modules_to_save {}", fmt::join(SplitList(model.lora_saved), " "));
  }
  if (model.lora_quantized) {
    text += fmt::format(" --{} --bnb_4bit_quant_type nf4 --use_bnb_nested_quant",
                        TrlOption("⟦method⟧", "qlora"));
  }
  if (const std::optional<Dtype> storage = WrittenStorage(request)) {
    text += fmt::format(" --{} {}", TrlOption("⟦quant_storage⟧"), TorchDtypeName(*storage));
  }
  // SFTConfig's default is on.
  if (request.setup.recompute.kind == RecomputeKind::kNone) {
    text += fmt::format(" --no_{}", OptionName(OtherProgram::kTrainer, "⟦checkpointing⟧", "none"));
  }
  return fmt::format("{} --dtype {} --{} {}", text, TorchDtypeName(LoadedDtype(request)),
                     TrlOption("⟦attn⟧"), AttentionArgument(request.recipe.attention));
}

void AddProbe(const FormatRequest& request, std::string_view dataset, std::string_view where,
              const std::vector<std::string>& more, WrittenConfig& out) {
  if (!request.longest_sample) return;
  // As many of it as two steps take: torch's optimizers make their states at the end of the first.
  const int64_t samples = 2 * request.setup.batch.global_batch();
  out.probe_script = {
      "import os",
      "if os.environ.get(\"PROBE\"):",
      fmt::format("    rows = {}", dataset),
      "    longest = max(range(len(rows)), key=lambda i: len(rows[i][\"input_ids\"]))",
      fmt::format("    {} = torch.utils.data.Subset(rows, [longest] * {})", dataset, samples),
  };
  out.probe_text = fmt::format(
      "First a probe: two steps of the longest sample alone, in micro-batches of {} x {} tokens. "
      "What does not fit fails there, not at step N. In the script, {}:",
      request.setup.batch.micro_batch, *request.longest_sample, where);
  WrittenConfig probe;
  probe.launch = "PROBE=1 " + out.launch;
  probe.arguments = out.arguments;
  probe.arguments.insert(probe.arguments.end(), more.begin(), more.end());
  out.probe_command = probe.Command();
}

std::string AllocatorVariable(const FormatRequest& request) {
  const bool asked = request.short_of_memory || request.recipe.expandable_segments;
  return asked ? "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True " : "";
}

std::string RecipeCannot(ConfigFormat format, const Runtime& runtime, const ModelSpec& model,
                         const TorchRecipe& recipe) {
  const bool titan = format == ConfigFormat::kTorchtitan;
  const bool deepspeed = runtime.reads_deepspeed_config();
  Reasons reasons;
  if (format == ConfigFormat::kDeepSpeed) return "";
  const bool of_transformers = recipe.code == CodeStyle::kHf || recipe.code == CodeStyle::kLiger;
  const bool plain = recipe.code == CodeStyle::kPlain;
  reasons.Add(titan && !plain && recipe.code != CodeStyle::kTorchtitan,
              "⟦code⟧ {} (it trains its own models)", CodeStyleName(recipe.code));
  reasons.Add(!titan && !plain && !of_transformers,
              "⟦code⟧ {} (what it loads is of transformers: hf or liger)",
              CodeStyleName(recipe.code));
  reasons.Add(titan && recipe.attention != TorchAttention::kSdpa,
              "⟦attn⟧ {} (its models call scaled_dot_product_attention)",
              TorchAttentionName(recipe.attention));
  const bool fp32 = recipe.param_dtype.value_or(Dtype::kF32) == Dtype::kF32;
  reasons.Add(titan && !fp32, "⟦param_dtype⟧ bf16 with the plan's fp32 reduction");
  // fsdp2_prepare_model: not of models with 4-bit weights.
  reasons.Add(!titan && runtime.facts().fully_shards && !fp32 && !model.lora_quantized,
              "⟦param_dtype⟧ bf16 (accelerate casts what is trained to fp32)");
  const TorchOptimizer optimizer = recipe.UsedOptimizer();
  reasons.Add(
      titan && optimizer != TorchOptimizer::kAdamWFused && optimizer != TorchOptimizer::kAdamW,
      "⟦optim⟧ {} (it has torch.optim.AdamW)", TorchOptimizerName(optimizer));
  reasons.Add(!titan && recipe.attention == TorchAttention::kTriton,
              "⟦attn⟧ triton, which transformers does not have");
  reasons.Add(!titan && recipe.optimizer_in_backward,
              "⟦optimizer_in_backward⟧, for which it has no setting");
  reasons.Add(format == ConfigFormat::kAccelerate && recipe.float8 == TorchFloat8::kRowwise,
              "⟦float8⟧ rowwise, for which its file has no key");
  reasons.Add(recipe.offload_activations, "⟦offload_activations⟧, for which it has no setting");
  reasons.Add(recipe.experts != ExpertModules::kFused,
              "⟦experts⟧ {} (it loads transformers 5's models)", ExpertModulesName(recipe.experts));
  reasons.Add(recipe.tiled_mlp, "⟦tiled_mlp⟧, for which it has no setting");
  reasons.Add(titan && HasAdapters(model), "adapters (torchtitan 0.2.2 trains all weights)");
  // transformers 5.24 sets a wrap policy of PEFT's there, which accelerate 1.15 does not know.
  reasons.Add(format == ConfigFormat::kHfTrainer && HasAdapters(model) && !deepspeed &&
                  runtime.facts().fully_shards,
              "adapters (the Trainer then shards the model as one group, all of which is gathered "
              "at once; with accelerate layers are groups)");
  return reasons.Take();
}

}  // namespace zeroplan
