#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/config/reader_state.h"
#include "core/settings/setup_facts.h"
#include "planner/estimate/choices.h"
#include "planner/formats/config_format.h"
#include "planner/runtimes/fsdp2_engine.h"
#include "planner/runtimes/runtimes.h"
#include "planner/runtimes/torch_based.h"
#include "planner/runtimes/torch_phases.h"
#include "planner/search/search.h"

namespace zeroplan {
namespace {

// Whether torchtitan's per-op policy (TorchRun::saves_products) is modelled: of products with a
// bias (aten.addmm) it keeps none, which is not.
bool CanSaveProducts(const ModelSpec& model) {
  const TorchCode code = TorchModel(model).code;
  return code.gated && !code.one_qkv && code.none_biased && code.planned == nullptr;
}

// The arguments of fully_shard, which has no file of its own, and what the training code has to do
// (docs/runtimes.md).
nlohmann::ordered_json Fsdp2Config(const TrainSetup& setup) {
  const PrecisionConfig& precision = setup.precision;
  const bool offload = setup.zero.offload_param.device != OffloadDevice::kNone;
  nlohmann::ordered_json config = {
      {"fully_shard",
       {{"reshard_after_forward", setup.zero.stage == 3},
        {"mp_policy",
         {{"param_dtype", TorchDtypeName(precision.dtype)},
          {"reduce_dtype",
           TorchDtypeName(precision.fp32_reduction ? Dtype::kF32 : precision.dtype)}}},
        {"offload_policy",
         offload ? nlohmann::ordered_json("CPUOffloadPolicy") : nlohmann::ordered_json(nullptr)}}},
      {"train_batch_size", setup.batch.global_batch()},
      {"train_micro_batch_size_per_gpu", setup.batch.micro_batch},
      {"gradient_accumulation_steps", setup.batch.grad_accum},
      {"sequence_length", setup.batch.seq_len},
      {"activation_checkpointing", setup.recompute.kind != RecomputeKind::kNone},
      {"gradient_clipping", setup.optimizer.gradient_clipping},
      {"optimizer",
       {{"type", "AdamW"},
        {"params",
         {{"lr", setup.optimizer.lr},
          {"betas", setup.optimizer.betas},
          {"eps", setup.optimizer.eps},
          {"weight_decay", setup.optimizer.weight_decay},
          {"fused", true}}}}}};
  if (setup.batch.sequence_ranks > 1) {
    config["context_parallel"] = {{"size", setup.batch.sequence_ranks},
                                  {"rotate_method", "allgather"}};
  }
  if (Hybrid(setup)) {
    const int group = setup.zero.shard_group;
    config["fully_shard"]["mesh"] = {{"mesh_shape", {setup.batch.world_size / group, group}},
                                     {"mesh_dim_names", {"replicate", "shard"}}};
  }
  return config;
}

void AddFsdp2Limits(const ZeroConfig& zero, Reasons& reasons) {
  const OffloadDevice optimizer = zero.offload_optimizer.device;
  const OffloadDevice param = zero.offload_param.device;
  reasons.Add(zero.stage < 2, "stage {} (FSDP2 is stage 3, or 2 without resharding)", zero.stage);
  reasons.Add(optimizer == OffloadDevice::kNvme || param == OffloadDevice::kNvme,
              "offload to NVMe");
  reasons.Add(optimizer != param,
              "offload of parameters or optimizer alone (FSDP2 moves both or none)");
  reasons.Add(optimizer != OffloadDevice::kNone && zero.offload_optimizer.ratio < 1,
              "offload of {} of the optimizer", zero.offload_optimizer.ratio);
}

std::string Fsdp2FormatCannot(ConfigFormat format, const TrainSetup& setup) {
  const PrecisionConfig& precision = setup.precision;
  const bool titan = format == ConfigFormat::kTorchtitan;
  const bool mixed = precision.dtype != Dtype::kF32;
  Reasons reasons;
  AddFsdp2Limits(setup.zero, reasons);
  reasons.Add(Hybrid(setup) && setup.zero.across_stage > 0,
              "shard groups that share the optimizer (its groups hold replicas)");
  reasons.Add(precision.fp8.enabled && format == ConfigFormat::kHfTrainer, "{}", kNoFp8Argument);
  // TrainingArguments' parallelism_config is an object, no argument.
  reasons.Add(Hybrid(setup) && format == ConfigFormat::kHfTrainer,
              "shard groups, for which TrainingArguments have no argument (accelerate has keys)");
  reasons.Add(setup.batch.sequence_ranks > 1 && format == ConfigFormat::kHfTrainer,
              "sequences over GPUs, for which TrainingArguments have no argument (accelerate has "
              "keys)");
  reasons.Add(format == ConfigFormat::kAccelerate && Hybrid(setup) &&
                  setup.batch.sequence_ranks > 1 &&
                  setup.zero.shard_group == setup.batch.sequence_ranks,
              "shard groups of the GPUs that share a sequence alone (it wants shards over data "
              "beside them)");
  reasons.Add(!titan && setup.recompute.kind == RecomputeKind::kSelective, "selective recompute");
  reasons.Add(setup.recompute.every > 1, "recompute of {} layers at a time", setup.recompute.every);
  if (titan) {
    reasons.Add(precision.dtype == Dtype::kF16, "fp16 (it has bf16 and fp32)");
    reasons.Add(mixed && !precision.fp32_reduction,
                "reduction of gradients in bf16 (it reduces in fp32)");
    reasons.Add(setup.batch.world_size == 1, "one GPU (it shards on two or more)");
  } else {
    reasons.Add(mixed && precision.fp32_reduction, "fp32 reduction of gradients");
    reasons.Add(precision.dtype == Dtype::kF16 && precision.loss_scale != 0, "a fixed loss scale");
    reasons.Add(setup.deterministic, "deterministic runs");
  }
  return reasons.Take();
}

// fully_shard on every layer and on the rest, parameters in fp32, MixedPrecisionPolicy with
// param_dtype of 16 bit; PyTorch 2.11, torch.optim.AdamW(fused=True) and clip_grad_norm_. Of a
// setup:
//   stage 3: reshard_after_forward; stage 2: not
//   optimizer and parameters on the CPU together: CPUOffloadPolicy
//   fp32_reduction: reduce_dtype fp32, else the parameters' 16 bit
//   recompute: none; full, torch.utils.checkpoint around every layer; selective, torchtitan's
//     per-op policy within it
// Other ZeRO keys have no meaning for it.
class Fsdp2OfTorch : public TorchBased {
 public:
  std::string_view key() const override { return "fsdp2"; }
  std::string_view name() const override { return "FSDP2"; }
  std::string_view version() const override { return "fsdp2 of PyTorch 2.11"; }
  std::string Label(const TrainSetup& setup) const override {
    std::string label =
        setup.zero.stage == 3 ? "resharded after forward" : "not resharded after forward";
    if (Hybrid(setup)) label += fmt::format(", in groups of {}", setup.zero.shard_group);
    if (setup.zero.offload_param.device != OffloadDevice::kNone) {
      label += ", parameters and optimizer on the CPU";
    }
    if (setup.batch.sequence_ranks > 1) {
      label += fmt::format(", sequences over {} GPUs", setup.batch.sequence_ranks);
    }
    if (setup.recompute.kind == RecomputeKind::kFull) label += ", full recompute";
    if (setup.recompute.kind == RecomputeKind::kSelective)
      label += ", selective recompute (torchtitan's)";
    return label;
  }
  std::string StageName(int stage) const override {
    return stage == 3 ? "Resharded after forward" : "Not resharded after forward";
  }

  RuntimeFacts facts() const override { return {.fully_shards = true}; }
  void Refuse(const AskedOfRuntime& asked) const override {
    TorchBased::Refuse(asked);
    if (asked.config.given()) {
      ThrowUsage(
          "⟦config⟧: {} is a DeepSpeed config, which ⟦runtime⟧ fsdp2 does not read; give ⟦stage⟧, "
          "⟦checkpointing⟧ and ⟦offload_param⟧",
          asked.config.name());
    }
    if (!asked.grad_accum_dtype.empty()) {
      ThrowUsage(
          "⟦grad_accum_dtype⟧: {} has no effect with ⟦runtime⟧ fsdp2, which sums gradients in the "
          "parameters' fp32; leave it out",
          asked.grad_accum_dtype);
    }
  }
  ChoiceSpace EstimateSpace() const override {
    ChoiceSpace space;
    space.stages = {2, 3};
    space.offload_optimizer = space.offload_param = {OffloadDevice::kNone, OffloadDevice::kCpu};
    return space;
  }
  // Parameters and optimizer in one place, unless nothing else was asked for.
  std::vector<TrainSetup> Completed(std::vector<TrainSetup> setups, bool /*given*/) const override {
    std::vector<TrainSetup> together;
    for (const TrainSetup& setup : setups) {
      const ZeroConfig& zero = setup.zero;
      if (zero.offload_optimizer.device == zero.offload_param.device) together.push_back(setup);
    }
    return together.empty() ? setups : together;
  }

  const RuntimeMargins& margins() const override { return kFsdp2Margins; }
  std::vector<std::string> Notes(const ChoiceEstimate& choice,
                                 const TorchRecipe& recipe) const override {
    std::vector<std::string> notes = TorchBased::Notes(choice, recipe);
    if (StyleCodeOf(recipe.code, false).transformers) {
      notes.emplace_back(
          "FSDP1 (FullyShardedDataParallel), which accelerate runs unless fsdp_version is 2, is "
          "taken to need the same: 13 published runs of it with LoRA and QLoRA reserved 5 % less "
          "to "
          "21 % more than is predicted.");
    }
    if (recipe.quant_storage == Dtype::kU8) {
      notes.emplace_back(
          "4-bit weights in uint8 are whole on every GPU under FSDP2; FSDP1 fails on them.");
    }
    return notes;
  }

  std::string FormatCannot(ConfigFormat format, const TrainSetup& setup) const override {
    // DeepSpeed's own config is NoFormat's to refuse.
    return format == ConfigFormat::kDeepSpeed ? "" : Fsdp2FormatCannot(format, setup);
  }
  std::string NoFormat(ConfigFormat format, const std::string& file) const override {
    if (format != ConfigFormat::kDeepSpeed) return "";
    return fmt::format(
        "⟦out⟧: {} would be a DeepSpeed config, which FSDP2 does not read; add ⟦for⟧ hf-trainer, "
        "accelerate or torchtitan",
        file);
  }
  std::string ConfigJson(const TrainSetup& setup, int64_t /*layers*/) const override {
    return Fsdp2Config(setup).dump();
  }

 protected:
  void RefuseSetup(const TorchPlay& play) const override {
    const TrainSetup& setup = play.setup;
    const ModelSpec& model = play.model;
    const OffloadDevice optimizer = setup.zero.offload_optimizer.device;
    const OffloadDevice param = setup.zero.offload_param.device;
    RefuseDtype(play, Fsdp2ShardDtype(play.recipe));
    RefuseIf(Hybrid(setup) && setup.zero.across_stage > 0,
             "⟦across_groups⟧ {}: FSDP2's shard groups hold replicas (a mesh of two dimensions); "
             "give replicate",
             AcrossName(setup.zero.across_stage));
    RefuseIf(setup.zero.stage < 2,
             "stage {} is not what fully_shard does; use 3 (reshard_after_forward) or 2 "
             "(without)",
             setup.zero.stage);
    RefuseIf(setup.zero.quantized_weights || setup.zero.quantized_gradients,
             "FSDP2 quantizes nothing that it sends; leave quantized weights and gradients out");
    RefuseIf(optimizer == OffloadDevice::kNvme || param == OffloadDevice::kNvme,
             "FSDP2 has no offload to NVMe; use cpu or none");
    RefuseIf((optimizer != param && setup.zero.stage == 3) ||
                 (optimizer != OffloadDevice::kNone && setup.zero.stage < 3),
             "CPUOffloadPolicy moves parameters and optimizer together, at stage 3; give ⟦stage⟧ 3 "
             "with ⟦offload_optimizer⟧ cpu ⟦offload_param⟧ cpu, or none");
    RefuseIf(optimizer != OffloadDevice::kNone &&
                 !(setup.zero.offload_optimizer.pin_memory && setup.zero.offload_param.pin_memory),
             "⟦pin_memory⟧ off: CPUOffloadPolicy is modelled with page-locked memory, its default; "
             "leave it out");
    RefuseOptimizer(play, optimizer != OffloadDevice::kNone);
    RefuseIf(setup.zero.offload_optimizer.ratio < 1,
             "⟦offload_ratio⟧ {}: CPUOffloadPolicy moves all or nothing; leave it out",
             setup.zero.offload_optimizer.ratio);
    RefuseIf(
        setup.recompute != kSelectiveRecompute && !IsNoneOrEveryLayer(setup.recompute),
        "recompute is modelled for none, every layer (torch.utils.checkpoint) and every second "
        "product (torchtitan's); give ⟦checkpointing⟧ none, full or selective, ⟦checkpoint_every⟧ "
        "1 and no ⟦checkpoint_layers⟧");
    RefuseIf(
        setup.recompute.kind == RecomputeKind::kSelective && !CanSaveProducts(model),
        "⟦checkpointing⟧ selective stands for torchtitan's, which keeps every second "
        "product without a bias, and {} {}; give none or full",
        model.name,
        model.family->planned() != nullptr ? "is of a type that it does not train" : "has biases");
  }
  // What fails on DTensors was tried on the CPU with PyTorch 2.15; what else is refused, in
  // torchtune's recipes.
  void RefuseOptimizer(const TorchPlay& play, bool on_host) const {
    const TorchOptimizer optimizer = play.recipe.UsedOptimizer();
    RefuseIf(!RowOf(optimizer).dtensors,
             "⟦optim⟧ {}: {} fails on DTensors, as which FSDP2 has its parameters; give "
             "adamw_torch_8bit, which takes them, or ⟦runtime⟧ ddp or deepspeed",
             TorchOptimizerName(optimizer), RowOf(optimizer).text);
    RefuseIf(on_host && RowOf(optimizer).states != StatesKept::kLikeParams,
             "⟦optim⟧ {} with CPUOffloadPolicy is not modelled; leave it out",
             TorchOptimizerName(optimizer));
    RefuseIf(play.recipe.optimizer_in_backward && (play.setup.batch.grad_accum > 1 || on_host),
             "⟦optimizer_in_backward⟧: updates before gradients of other micro-steps, or on the "
             "host, are there; use ⟦grad_accum⟧ 1 and no offload, or leave it out");
  }
  // The first step makes Adam's states; then tensors and segments repeat. NCCL as DeepSpeed's stage
  // 3 has it; Python and PyTorch as with nothing of ZeRO.
  PlayedParts Parts(int /*stage*/) const override { return {3, 3, 0}; }
  bool HasRing() const override { return true; }
  std::unique_ptr<TorchRuntime> MakeEngine(const TorchModel& model, const TorchPlay& play,
                                           TorchMemory* memory, TorchTimer* timer) const override {
    return MakeFsdp2(model, play, memory, timer);
  }
  std::vector<AroundPeak> Around(const PlayedRun& run) const override { return Fsdp2Around(run); }
  std::vector<AroundPeak> Gathers(const PlayedRun& run) const override { return Fsdp2Gathers(run); }
  bool CanDo(int stage, const OffloadPlace& offloads) const override {
    return stage >= 2 && offloads.optimizer.ratio >= 1 &&
           offloads.optimizer.device == offloads.param && offloads.param != OffloadDevice::kNvme &&
           (offloads.pin_memory || !offloads.anything()) &&
           (stage == 3 || offloads.param == OffloadDevice::kNone);
  }
  bool CanGroup(int /*stage*/, const OffloadPlace& /*offloads*/,
                const Grouping& grouping) const override {
    return grouping.across_stage == 0;
  }
  // torchtitan has selective recompute, transformers and accelerate do not.
  bool CanRecompute(const SearchInputs& inputs, const RecomputeConfig& recompute) const override {
    if (recompute == kSelectiveRecompute) {
      return inputs.for_torchtitan && CanSaveProducts(inputs.model);
    }
    return IsNoneOrEveryLayer(recompute);
  }
};

}  // namespace

const Runtime& Fsdp2Runtime() {
  static const Fsdp2OfTorch runtime;
  return runtime;
}

}  // namespace zeroplan
