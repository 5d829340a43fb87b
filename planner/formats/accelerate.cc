// accelerate: the YAML that `accelerate config` makes. Its DeepSpeed section has keys for few of
// DeepSpeed's settings, so it points to a JSON that has all; beside that it refuses others of its
// own, mixed_precision among them.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/base/strings.h"
#include "core/settings/setup_facts.h"
#include "planner/formats/format_parts.h"
#include "planner/program_options.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

// The key in accelerate's YAML for a field.
consteval std::string_view AccelerateKey(std::string_view field, std::string_view text = "") {
  return OptionName(OtherProgram::kAccelerate, field, text);
}

std::string DynamoSection(TorchCompile compile) {
  if (!compile.layers) return "";
  return fmt::format(
      "dynamo_config:\n  dynamo_backend: INDUCTOR\n  dynamo_use_regional_compilation: {}\n",
      !compile.loss);
}

std::string ProcessLines(const FormatRequest& request) {
  std::string text =
      fmt::format("machine_rank: 0\nnum_machines: {}\n{}: {}\n", request.cluster.nodes(),
                  AccelerateKey("⟦gpus⟧"), request.cluster.gpus);
  if (request.cluster.nodes() > 1) text += "rdzv_backend: static\nsame_network: true\n";
  return text;
}

std::string DeepSpeedYaml(const FormatRequest& request) {
  std::string text = HeadComment(request, "accelerate 1.15");
  text += "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\ndeepspeed_config:\n";
  text += fmt::format("  deepspeed_config_file: {}\n", Quoted(DeepSpeedFileBeside(request.file)));
  if (request.cluster.nodes() > 1) text += "  deepspeed_multinode_launcher: standard\n";
  // MiCS takes no model that was made under deepspeed.zero.Init.
  const bool mics = Hybrid(request.setup) && request.setup.zero.across_stage == 0;
  text += fmt::format("  zero3_init_flag: {}\n", request.setup.zero.stage == 3 && !mics);
  return text + ProcessLines(request);
}

// accelerate hands dynamo_config on to processes of FSDP, not to those of DeepSpeed.
std::string DynamoVariables(TorchCompile compile) {
  if (!compile.layers) return "";
  return fmt::format("ACCELERATE_DYNAMO_BACKEND=INDUCTOR {}",
                     compile.loss ? "" : "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=true ");
}

// What DummyOptim and DummyScheduler fill in, where no config says it.
JsonText LeaveToScript(const FormatRequest& request, const JsonText& text) {
  Json out = Json::parse(text);
  const auto leave = [&](const char* section, const char* key) {
    if (!out.contains(section) || !out[section]["params"].contains(key)) return;
    if (Said(request, fmt::format("{}.params.{}", section, key))) return;
    out[section]["params"][key] = "auto";
  };
  for (const char* key : {"lr", "weight_decay"}) leave("optimizer", key);
  for (const char* key : {"warmup_max_lr", "warmup_num_steps", "total_num_steps"}) {
    leave("scheduler", key);
  }
  return out.dump();
}

std::string PrecisionLine(const FormatRequest& request) {
  const PrecisionConfig& precision = request.setup.precision;
  // "no" without quotes is false in YAML.
  constexpr std::string_view kKey = AccelerateKey("⟦dtype⟧");
  const std::string_view name =
      precision.fp8.enabled ? "fp8" : ValueForText(kKey, DtypeName(precision.dtype));
  return fmt::format("{}: {}\n", kKey, Quoted(std::string(name)));
}

// torchao (AORecipeKwargs). What it pads are products that are left in 16 bits.
std::string Float8Section(const FormatRequest& request) {
  const std::optional<TorchFloat8> float8 = Float8Of(request.setup.precision, request.recipe);
  if (!float8) return "";
  return fmt::format(
      "fp8_config:\n  backend: AO\n  enable_fsdp_float8_all_gather: {}\n  pad_inner_dim: false\n",
      float8 == TorchFloat8::kTensorwiseGathers);
}

std::string Fsdp2Yaml(const FormatRequest& request) {
  const TrainSetup& setup = request.setup;
  std::string text = HeadComment(request, "accelerate 1.15");
  text += "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n";
  text += PrecisionLine(request) + Float8Section(request) + "fsdp_config:\n";
  text += "  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n";
  text += fmt::format("  {}: {}\n", AccelerateKey("⟦stage⟧", "3"), setup.zero.stage == 3);
  text += fmt::format("  {}: {}\n", AccelerateKey("⟦offload_param⟧", "cpu"),
                      setup.zero.offload_param.device == OffloadDevice::kCpu);
  text += fmt::format("  {}: {}\n", AccelerateKey("⟦checkpointing⟧", "full"),
                      setup.recompute.kind == RecomputeKind::kFull);
  // accelerate refuses it with torchao.
  if (setup.precision.fp8.enabled) text += "  fsdp_cpu_ram_efficient_loading: false\n";
  const int shared = setup.batch.sequence_ranks;
  if (Hybrid(setup) || shared > 1) {
    const int group = ShardRanks(setup.zero, setup.batch.world_size);
    text += fmt::format(
        "parallelism_config:\n  parallelism_config_dp_replicate_size: {}\n"
        "  parallelism_config_dp_shard_size: {}\n  parallelism_config_tp_size: 1\n"
        "  parallelism_config_cp_size: {}\n{}",
        setup.batch.world_size / group, group / shared, shared,
        shared > 1 ? "  parallelism_config_cp_comm_strategy: allgather\n" : "");
  }
  return text + DynamoSection(request.recipe.compile) + ProcessLines(request);
}

// One process is no process group.
std::string DdpYaml(const FormatRequest& request) {
  std::string text = HeadComment(request, "accelerate 1.15");
  text += fmt::format("compute_environment: LOCAL_MACHINE\ndistributed_type: {}\n",
                      request.cluster.gpus > 1 ? "MULTI_GPU" : "\"NO\"");
  text += PrecisionLine(request) + Float8Section(request);
  return text + DynamoSection(request.recipe.compile) + ProcessLines(request);
}

// The script makes one of PyTorch's in place of the config's.
JsonText WithoutOptimizer(const JsonText& text) {
  Json out = Json::parse(text);
  out.erase("optimizer");
  out.erase("scheduler");
  return out.dump(2) + "\n";
}

void AddDeepSpeedFiles(const FormatRequest& request, WrittenConfig& out) {
  const std::string beside = DeepSpeedFileBeside(request.file);
  out.files.push_back({request.file, DeepSpeedYaml(request)});
  if (request.recipe.optimizer) {
    out.files.push_back({beside, WithoutOptimizer(DeepSpeedJson(request))});
    return;
  }
  out.files.push_back({beside, DeepSpeedJson(request, [&](const JsonText& text) {
                         return LeaveToScript(request, text);
                       })});
  const bool schedule = request.setup.optimizer.schedule.kind != ScheduleKind::kConstant;
  out.notes.push_back(fmt::format(
      "The optimizer is that of {}, and the script passes accelerate.utils.DummyOptim{} for it. To "
      "make one in the script, delete \"optimizer\"{} there: accelerate takes no two.",
      beside, schedule ? " and DummyScheduler" : "", schedule ? " and \"scheduler\"" : ""));
  const bool says_rate = Said(request, "optimizer.params.lr");
  if (!says_rate) {
    out.notes.emplace_back("No config says the learning rate: DummyOptim's lr is it.");
  }
}

void AddPyTorchFile(const FormatRequest& request, WrittenConfig& out) {
  if (request.setup.precision.fp8.enabled) {
    out.notes.emplace_back(
        "FP8 wants torchao. accelerate leaves the first linear and the last one in bf16: the first "
        "layer's queries, which the plan counts in FP8, and the head.");
  }
  if (IsDdp(request)) {
    out.files.push_back({request.file, DdpYaml(request)});
    return;
  }
  out.files.push_back({request.file, Fsdp2Yaml(request)});
  if (request.setup.batch.sequence_ranks > 1) {
    out.notes.emplace_back(
        "In the script each step runs within accelerator.maybe_context_parallel, whose buffers are "
        "the token ids, labels that the script has shifted, and positions.");
  }
  out.notes.emplace_back(
      "Layers are found by the _no_split_modules of a transformers model; for others add "
      "fsdp_transformer_layer_cls_to_wrap.");
}

// accelerate launch hands no parallelism_config on to processes of DeepSpeed.
std::string SequencesOverGpus(const FormatRequest& request) {
  const BatchSpec& batch = request.setup.batch;
  if (batch.sequence_ranks == 1 || !request.runtime->reads_deepspeed_config()) return "";
  return fmt::format(
      ", parallelism_config=ParallelismConfig(dp_shard_size={}, sp_size={}, "
      "sp_handler=DeepSpeedSequenceParallelConfig(sp_attn_implementation=\"{}\"))",
      batch.data_ranks(), batch.sequence_ranks, AttentionArgument(request.recipe.attention));
}

std::string BatchNote(const FormatRequest& request) {
  const BatchSpec& batch = request.setup.batch;
  return fmt::format(
      "In the script: DataLoader(batch_size={}) and "
      "Accelerator(gradient_accumulation_steps={}{}), which is {}.",
      batch.micro_batch, batch.grad_accum, SequencesOverGpus(request), StepText(batch));
}

}  // namespace

WrittenConfig WriteAccelerate(const FormatRequest& request) {
  WrittenConfig out;
  ProcessesPerNode(request.cluster);
  const bool deepspeed = request.runtime->reads_deepspeed_config();
  if (deepspeed) {
    AddDeepSpeedFiles(request, out);
  } else {
    AddPyTorchFile(request, out);
  }
  const bool several = request.cluster.nodes() > 1;
  out.launch =
      fmt::format("{}{}accelerate launch --config_file {}{} train.py", AllocatorVariable(request),
                  deepspeed ? DynamoVariables(request.recipe.compile) : "", ShellWord(request.file),
                  several ? " \\\n  --machine_rank RANK --main_process_ip HOST" : "");
  out.script = ModelScript(request);
  out.notes.push_back(BatchNote(request));
  AddProbe(request, "dataset", "before its DataLoader, which then has two steps", {}, out);
  return out;
}

}  // namespace zeroplan
