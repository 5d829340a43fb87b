#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/config/deepspeed_writer.h"
#include "core/config/reader_state.h"
#include "core/settings/setup_facts.h"
#include "planner/estimate/choices.h"
#include "planner/formats/config_format.h"
#include "planner/runtimes/deepspeed_engine.h"
#include "planner/runtimes/runtimes.h"
#include "planner/runtimes/torch_based.h"
#include "planner/runtimes/torch_phases.h"
#include "planner/search/search.h"

namespace zeroplan {
namespace {

constexpr const char* kSequenceDtypeKey = "seq_parallel_communication_data_type";

struct UnknownKey {
  std::string_view section, key;  // section empty: the top level
  std::string_view plain;         // a value that is as modelled
};

// Keys that change DeepSpeed's memory, that zeroplan's reader accepts as having no effect on
// zeroplan, and that the model does not know: only their default is let through.
constexpr UnknownKey kUnknownKeys[] = {
    {"zero_optimization", "round_robin_gradients", "false"},
    {"zero_optimization", "use_multi_rank_bucket_allreduce", "true"},
    {"zero_optimization", "allgather_sequential", "false"},
    {"zero_optimization", "stage3_allgather_sequential", "false"},
    {"zero_optimization", "use_all_reduce_for_fetch_params", "false"},
    {"zero_optimization", "stage3_use_all_reduce_for_fetch_params", "false"},
    {"zero_optimization", "module_granularity_threshold", "0"},
    {"zero_optimization", "stage3_module_granularity_threshold", "0"},
    {"zero_optimization", "leaf_module", "null"},
    {"zero_optimization", "memory_efficient_linear", "true"},
    {"zero_optimization", "mics_hierarchical_params_gather", "false"},
    {"zero_optimization", "override_module_apply", "true"},
    {"zero_optimization", "parameter_alignment", "false"},
    {"zero_optimization", "compute_grad_norm", "true"},
    {"bf16", "check_grad_overflow", "true"},
    {"fp16", "auto_cast", "false"},
    {"activation_checkpointing", "contiguous_memory_optimization", "false"},
    {"", "compile", "null"},
};

// With Ulysses gradients are reduced in a dtype that has a key of its own (runtime/engine.py),
// whose default is fp32.
void RefuseFp32Reduction(const JsonNode& root, const std::string& file) {
  const JsonNode* shared = root.Find("sequence_parallel_size");
  if (shared == nullptr || shared->is_null() || shared->Quote() == "1") return;
  const JsonNode* fp16 = root.Find("fp16");
  const JsonNode* enabled = fp16 == nullptr ? nullptr : fp16->Find("enabled");
  const std::string wanted =
      enabled != nullptr && enabled->Quote() == "true" ? "\"fp16\"" : "\"bf16\"";
  const JsonNode* dtype = root.Find(kSequenceDtypeKey);
  const std::string value = dtype == nullptr ? "not given" : dtype->Quote();
  if (value == wanted) return;
  ThrowUsage(
      "{}:{}: {} is {}: DeepSpeed reduces gradients in it, in fp32 where it is not given, and "
      "another dtype than the parameters' is not modelled; set \"{}\": {}",
      file, shared->line, kSequenceDtypeKey, value, kSequenceDtypeKey, wanted);
}

// Keys of a config that change DeepSpeed's memory in ways that are not modelled.
void RefuseUnknownKeys(const ConfigDocument& config) {
  const std::string& file = config.name();
  const JsonNode& root = config.root();
  RefuseFp32Reduction(root, file);
  for (const UnknownKey& unknown : kUnknownKeys) {
    const JsonNode* section = unknown.section.empty() ? &root : root.Find(unknown.section);
    const JsonNode* value = section == nullptr ? nullptr : section->Find(unknown.key);
    if (value == nullptr || value->is_null()) continue;
    if (value->Quote() == unknown.plain || value->Quote() == "\"auto\"") continue;
    if (unknown.key == "leaf_module") {
      ThrowUsage(
          "{}:{}: zero_optimization.leaf_module: ⟦runtime⟧ deepspeed does not read it; leave it "
          "out, and give ⟦experts⟧ leaf, or modules where its classes are empty",
          file, value->line);
    }
    ThrowUsage(
        "{}:{}: {}{}{}: {} changes DeepSpeed's memory in a way that {} does not model; use {} or "
        "leave it out",
        file, value->line, unknown.section, unknown.section.empty() ? "" : ".", unknown.key,
        value->Quote(), "⟦runtime⟧ deepspeed", unknown.plain);
  }
}

bool IsMics(const TrainSetup& setup) {
  return Hybrid(setup) && setup.zero.stage == 3 && setup.zero.across_stage == 0;
}

// What this format cannot say of DeepSpeed's choices, beyond DeepSpeed's own limits.
std::string DeepSpeedFormatCannot(ConfigFormat format, TrainSetup setup) {
  const bool trainer = format == ConfigFormat::kHfTrainer;
  // The Trainer and accelerate fill in the run's length.
  if (format != ConfigFormat::kDeepSpeed) setup = WithScheduleLength(setup);
  Reasons reasons;
  const std::string cannot = DeepSpeedCannot(setup);
  reasons.Add(!cannot.empty(), "{}", cannot);
  // transformers makes models of stage 3 under deepspeed.zero.Init.
  reasons.Add(trainer && IsMics(setup),
              "mics_shard_size, which takes models made under deepspeed.zero.MiCS_Init alone "
              "(for accelerate a model of the script's own is)");
  // gradient_checkpointing of transformers' models is layer by layer.
  reasons.Add(trainer && setup.recompute.every > 1, "recompute of {} layers at a time",
              setup.recompute.every);
  reasons.Add(trainer && setup.batch.sequence_ranks > 1,
              "sequences over GPUs, for which TrainingArguments take a ParallelismConfig that the "
              "script makes (for accelerate it is printed)");
  // torch.utils.checkpoint, which transformers calls, knows nothing of cpu_checkpointing.
  reasons.Add(
      format != ConfigFormat::kDeepSpeed && setup.recompute.offload.device != OffloadDevice::kNone,
      "activations on the CPU, for which it has no setting");
  return reasons.Take();
}

// What DeepSpeed has not of shard groups, with a way out; "": nothing. mics.py raises an error
// where what it all-reduces is on the CPU, and gathers from the GPU alone; MiCS_Optimizer is made
// without ZeRO++'s keys.
std::string GroupsProblem(const TrainSetup& setup) {
  if (!Hybrid(setup)) return "";
  const ZeroConfig& zero = setup.zero;
  if (zero.across_stage == 1) {
    return "⟦across_groups⟧ optimizer: DeepSpeed's shard groups hold replicas (mics_shard_size) or "
           "share gradients and optimizer (zero_hpz_partition_size); give replicate or gradients";
  }
  if (zero.stage < 3) {
    return fmt::format(
        "⟦shard_group⟧ {}: DeepSpeed has shard groups at stage 3 alone (mics_shard_size, "
        "zero_hpz_partition_size), not at stage {}; use stage 3 or leave it out",
        zero.shard_group, zero.stage);
  }
  if (zero.across_stage == 2) return "";
  if (zero.offload_optimizer.device != OffloadDevice::kNone ||
      zero.offload_param.device != OffloadDevice::kNone) {
    return fmt::format(
        "mics_shard_size {}: DeepSpeed's MiCS has no offload; leave that out, or give "
        "⟦across_groups⟧ gradients (zero_hpz_partition_size), which takes the optimizer on the CPU",
        zero.shard_group);
  }
  if (zero.quantized_weights || zero.quantized_gradients) {
    return fmt::format(
        "mics_shard_size {}: DeepSpeed's MiCS ignores zero_quantized_weights and "
        "zero_quantized_gradients; leave them out, or give ⟦across_groups⟧ gradients "
        "(zero_hpz_partition_size)",
        zero.shard_group);
  }
  return "";
}

// Searched beside the space, the preferred value first. A smaller bucket is tried where a larger
// one's reserved memory does not fit with its margin.
constexpr uint64_t kReduceBuckets[] = {500'000'000, 200'000'000, 100'000'000, 50'000'000};
// Its time at stage 3 is that of Python code around every module, known less well than kernels' is;
// with recompute a slow host took 1.45 times the prediction (docs/runtimes.md).
constexpr double kStage3Margin = 0.03, kStage3RecomputeMargin = 0.15;

// DeepSpeed offloads whole sub-groups, so a share wants many.
uint64_t SubGroupFor(const ModelSpec& model, int gpus, uint64_t otherwise) {
  const uint64_t partition = model.ParamCount() / static_cast<uint64_t>(gpus);
  return std::min(otherwise, std::max<uint64_t>(1'000'000, partition / 20));
}

std::string Elements(uint64_t elements) {
  std::string text = fmt::format("{:.3g}", static_cast<double>(elements));
  const size_t at = text.find("e+0");
  return at == std::string::npos ? text : text.replace(at, 3, "e");
}

class DeepSpeed : public TorchBased {
 public:
  std::string_view key() const override { return "deepspeed"; }
  std::string_view name() const override { return "DeepSpeed"; }
  std::string_view version() const override { return "deepspeed 0.19.6"; }
  // Keys that are not DeepSpeed's default, or that it has no default for.
  std::string SettingsText(const TrainSetup& setup) const override {
    const ZeroConfig& zero = setup.zero;
    if (zero.stage == 0) return "";
    std::string text;
    if (zero.reduce_bucket_elements != ReaderZeroDefaults(zero.stage).reduce_bucket_elements) {
      text += fmt::format(", reduce_bucket_size {}", Elements(zero.reduce_bucket_elements));
    }
    if (!zero.overlap_comm) text += ", no overlap_comm";
    if (Hybrid(setup)) {
      text += fmt::format(", {} {}",
                          zero.across_stage == 0 ? "mics_shard_size" : "zero_hpz_partition_size",
                          zero.shard_group);
    }
    if (zero.quantized_weights) text += ", zero_quantized_weights";
    if (zero.quantized_gradients) text += ", zero_quantized_gradients";
    return text;
  }

  void Refuse(const AskedOfRuntime& asked) const override {
    TorchBased::Refuse(asked);
    if (asked.config.given()) RefuseUnknownKeys(asked.config);
  }
  ChoiceSpace EstimateSpace() const override {
    ChoiceSpace space;
    space.offload_optimizer = space.offload_param = {OffloadDevice::kNone, OffloadDevice::kCpu};
    return space;
  }
  // What has a key is DeepSpeed's default. Of shard groups those that it has, unless there are
  // none.
  std::vector<TrainSetup> Completed(std::vector<TrainSetup> setups, bool given) const override {
    if (given) return setups;
    std::vector<TrainSetup> can;
    for (TrainSetup& setup : setups) {
      ZeroConfig zero = ReaderZeroDefaults(setup.zero.stage);
      zero.offload_optimizer = setup.zero.offload_optimizer;
      zero.offload_param = setup.zero.offload_param;
      zero.shard_group = setup.zero.shard_group;
      zero.across_stage = setup.zero.across_stage;
      zero.quantized_weights = setup.zero.quantized_weights;
      zero.quantized_gradients = setup.zero.quantized_gradients;
      setup.zero = zero;
      if (GroupsProblem(setup).empty()) can.push_back(setup);
    }
    return can.empty() ? setups : can;
  }

  const RuntimeMargins& margins() const override { return kDeepSpeedMargins; }
  // Stage 0 on one GPU neither communicates nor gathers.
  std::string SpaceText() const override {
    return "Of DeepSpeed's keys stage, offload (shares of the optimizer at stage 3, by fifths) and "
           "batch were searched, reduce_bucket_size 5e8, 2e8, 1e8 and 5e7 (a smaller one where "
           "memory is short), overlap_comm true, and recompute of none or every layer; what "
           "⟦config⟧ says stays, and other keys are as they are by default.";
  }

  bool reads_deepspeed_config() const override { return true; }
  std::string FormatCannot(ConfigFormat format, const TrainSetup& setup) const override {
    return DeepSpeedFormatCannot(format, setup);
  }
  std::string NoFormat(ConfigFormat format, const std::string& /*file*/) const override {
    if (format != ConfigFormat::kTorchtitan) return "";
    return "⟦for⟧: torchtitan trains with FSDP2, not with DeepSpeed; use ⟦runtime⟧ fsdp2";
  }
  std::string ConfigJson(const TrainSetup& setup, int64_t layers) const override {
    std::string text = WriteDeepSpeedConfig(setup, layers);
    const bool shares = setup.batch.sequence_ranks > 1;
    // zeroplan's own stage 1 sends fp32 sums as they are; DeepSpeed by default sends 16 bit.
    const bool sends_16_bit = setup.precision.grad_accum_dtype != setup.precision.dtype &&
                              !setup.precision.fp32_reduction;
    if (!shares && !sends_16_bit) return text;
    auto json = nlohmann::ordered_json::parse(text);
    if (shares) json[kSequenceDtypeKey] = DtypeName(setup.precision.dtype);
    if (sends_16_bit) json.erase("communication_data_type");
    return json.dump();
  }

 protected:
  void RefuseSetup(const TorchPlay& play) const override {
    const TrainSetup& setup = play.setup;
    const ZeroConfig& zero = setup.zero;
    RefuseIf(setup.precision.dtype == Dtype::kF32,
             "its memory is modelled for bf16 and fp16, not fp32; give ⟦dtype⟧ bf16 or fp16");
    RefuseGradDtypes(setup);
    RefuseIf(play.recipe.param_dtype.has_value(),
             "⟦param_dtype⟧: DeepSpeed has keys of the config for it "
             "(bf16.bf16_master_weights_and_grads, bf16.bf16_optimizer_states); leave it out");
    RefuseStates(play);
    RefuseRecipe(play);
    RefuseFiles(play);
    RefuseIf(zero.stage < 3 && zero.offload_optimizer.ratio < 1,
             "DeepSpeed offloads a part of the optimizer (ratio {}) at stage 3 alone; use "
             "stage 3 or ratio 1",
             zero.offload_optimizer.ratio);
    const int shared = setup.batch.sequence_ranks;
    RefuseIf(shared > 1 && (zero.stage < 3 || Hybrid(setup)),
             "⟦sequence_ranks⟧ {} is modelled at stage 3 without shard groups alone (stages 1 "
             "and 2 then reduce in fp32); use that, or 1",
             shared);
    RefuseIf(!zero.reduce_scatter && zero.stage > 0,
             "reduce_scatter false is not modelled; leave it at true");
    RefuseIf(!zero.contiguous_gradients && zero.stage > 0,
             "contiguous_gradients false is not modelled; leave it at true");
    const std::string problem = GroupsProblem(setup);
    RefuseIf(!problem.empty(), "{}", problem);
    RefuseIf(zero.quantized_gradients && setup.precision.dtype != Dtype::kF16,
             "zero_quantized_gradients with bf16: DeepSpeed's kernels read gradients as fp16 "
             "whatever they are, and reduce wrong numbers; give ⟦dtype⟧ fp16 or leave it out");
    RefuseOtherRecompute(setup.recompute);
  }
  // Sums and reductions of gradients in fp32, which are modelled as far as DeepSpeed trains with
  // them. At stage 1 DeepSpeedZeroOptimizer reduces a 16-bit copy of its sums, and updates with the
  // sums (stage_1_and_2.py, get_gradient_for_reduction and copy_grads_in_partition).
  void RefuseGradDtypes(const TrainSetup& setup) const {
    const PrecisionConfig& precision = setup.precision;
    const ZeroConfig& zero = setup.zero;
    const bool sums = precision.grad_accum_dtype == Dtype::kF32;
    RefuseIf(sums && zero.stage == 0,
             "data_types.grad_accum_dtype fp32: DeepSpeed has no optimizer for it at stage 0 "
             "(NotImplementedError); use stage 1, 2 or 3, or leave it out");
    const bool on_host = zero.offload_optimizer.device != OffloadDevice::kNone;
    RefuseIf(sums && zero.stage == 1 && (on_host || precision.dtype == Dtype::kF16),
             "data_types.grad_accum_dtype fp32 at stage 1 {}: DeepSpeed 0.19.6 updates each rank's "
             "part with the gradients of that rank alone; use stage 2 or 3, or leave it out",
             on_host ? "with offload_optimizer" : "in fp16");
    const std::string_view key = sums ? "data_types.grad_accum_dtype" : "communication_data_type";
    const bool fp32 = sums || precision.fp32_reduction;
    RefuseIf(fp32 && precision.master_weights != MasterWeights::kFp32,
             "{} fp32 with 16-bit master weights is not modelled; leave one of them out", key);
    RefuseIf(fp32 && zero.offload_optimizer.device == OffloadDevice::kNvme,
             "{} fp32 with offload_optimizer.device nvme is not modelled; use device cpu, or leave "
             "it out",
             key);
    RefuseIf(fp32 && (zero.quantized_gradients || IsMics(setup)),
             "{} fp32 with {} is not modelled; leave one of them out", key,
             zero.quantized_gradients ? "zero_quantized_gradients" : "mics_shard_size");
  }
  void RefuseStates(const TorchPlay& play) const {
    const PrecisionConfig& precision = play.setup.precision;
    const bool light =
        precision.master_weights != MasterWeights::kFp32 || precision.moment_dtype != Dtype::kF32;
    RefuseIf(light && play.recipe.optimizer.has_value(),
             "⟦optim⟧ has states of its own; leave ⟦master_weights⟧ and ⟦optimizer_states⟧ out");
    const std::string cannot = DeepSpeedStatesCannot(play.setup);
    if (cannot.empty()) return;
    const Dtype moments = precision.moment_dtype;
    RefuseIf(precision.master_weights == MasterWeights::kSplit,
             "⟦master_weights⟧ split: DeepSpeed has no {}; use fp32 for it and ⟦optimizer_states⟧, "
             "or at stages 1 to 3 16bit with ⟦optimizer_states⟧ bf16",
             cannot);
    RefuseIf(moments == Dtype::kDynamic8,
             "⟦optimizer_states⟧ 8bit: DeepSpeed has no {}; use fp32 for it and ⟦master_weights⟧, "
             "or ⟦optim⟧ adamw_bnb_8bit in place of both",
             cannot);
    const bool bf16 = precision.dtype == Dtype::kBF16;
    RefuseIf(moments == Dtype::kBF16 && !bf16,
             "⟦optimizer_states⟧ bf16: DeepSpeed has no {}; use fp32 for it and ⟦master_weights⟧",
             cannot);
    RefuseIf(precision.master_weights == MasterWeights::kFp32,
             "⟦optimizer_states⟧ bf16: DeepSpeed has no {}; give ⟦master_weights⟧ 16bit too, at "
             "stages 1 to 3",
             cannot);
    RefuseIf(true,
             "⟦master_weights⟧ 16bit: DeepSpeed has no {}; use fp32 for it and "
             "⟦optimizer_states⟧, or at stages 1 to 3 {}⟦offload_optimizer⟧ cpu",
             cannot, bf16 ? "⟦optimizer_states⟧ bf16 or " : "");
  }
  // An optimizer that is given is one that the program hands to deepspeed.initialize.
  void RefuseRecipe(const TorchPlay& play) const {
    const TorchRecipe& recipe = play.recipe;
    const ZeroConfig& zero = play.setup.zero;
    RefuseIf(recipe.optimizer_in_backward,
             "⟦optimizer_in_backward⟧: DeepSpeed updates in engine.step(); leave it out");
    if (!recipe.optimizer) return;
    const std::string_view name = TorchOptimizerName(*recipe.optimizer);
    RefuseIf(zero.stage == 0,
             "⟦optim⟧ {} at stage 0 runs FP16_UnfusedOptimizer, which is not modelled; use stage "
             "1, 2 or 3, or leave it out",
             name);
    RefuseIf(zero.offload_optimizer.device != OffloadDevice::kNone,
             "⟦optim⟧ {}: with offload_optimizer DeepSpeed takes its own DeepSpeedCPUAdam alone "
             "(zero_force_ds_cpu_optimizer); leave it out",
             name);
  }
  // What its swapping asserts (runtime/swap_tensor/), or does below stage 3.
  void RefuseFiles(const TorchPlay& play) const {
    const TrainSetup& setup = play.setup;
    const auto& optimizer = setup.zero.offload_optimizer;
    const bool in_files = optimizer.device == OffloadDevice::kNvme;
    RefuseIf(in_files && setup.zero.stage < 3,
             "offload_optimizer.device nvme: DeepSpeed has it at stage 3 alone; use stage 3, or "
             "device cpu");
    RefuseIf(in_files && setup.precision.master_weights == MasterWeights::kParam,
             "offload_optimizer.device nvme with 16-bit master weights is not modelled; use cpu, "
             "or remove {}",
             setup.precision.dtype == Dtype::kF16 ? "fp16_master_weights_and_grads"
                                                  : "bf16_master_weights_and_grads");
    const std::string buffers_problem = ParamBufferProblem(play.model, setup);
    RefuseIf(!buffers_problem.empty(), "{}", buffers_problem);
    const uint64_t partition =
        play.model.ParamCount() / static_cast<uint64_t>(setup.batch.world_size);
    const bool several = setup.zero.sub_group_elements < partition;
    const int behind = (optimizer.pipeline_read ? 1 : 0) + (optimizer.pipeline_write ? 1 : 0);
    const int buffers = 4 * (several ? 1 + behind : 1);
    RefuseIf(in_files && optimizer.buffer_count < buffers,
             "offload_optimizer.buffer_count {}: a sub-group takes 4 buffers (master, gradient and "
             "two states), and pipeline_read and pipeline_write hold on to as many again; use {}",
             optimizer.buffer_count, buffers);
  }
  // The first step makes Adam's states, stage 3 records its trace in the second and prefetches from
  // the third on (PartitionedParameterCoordinator).
  PlayedParts Parts(int stage) const override { return {4, stage, stage}; }
  const ActivationOffloading& Offloading() const override { return kDeepSpeedOffloading; }
  std::unique_ptr<TorchRuntime> MakeEngine(const TorchModel& model, const TorchPlay& play,
                                           TorchMemory* memory, TorchTimer* timer) const override {
    return (play.setup.zero.stage == 3 ? MakeStage3 : MakeStages0To2)(model, play, memory, timer);
  }
  std::vector<AroundPeak> Around(const PlayedRun& run) const override {
    return DeepSpeedAround(run);
  }
  std::vector<AroundPeak> Gathers(const PlayedRun& run) const override {
    return DeepSpeedGathers(run);
  }
  bool HasAutocast() const override { return false; }
  bool HasFloat8() const override { return false; }
  bool HasUlysses() const override { return true; }
  bool HasModuleGraphs(int stage) const override { return stage == 3; }
  bool CanDo(int stage, const OffloadPlace& offloads) const override {
    const bool in_files = offloads.optimizer.device == OffloadDevice::kNvme;
    return stage == 3 || (offloads.optimizer.ratio >= 1 && !in_files);
  }
  bool CanGroup(int stage, const OffloadPlace& offloads, const Grouping& grouping) const override {
    TrainSetup setup;
    setup.batch.world_size = 2 * grouping.ranks;
    setup.zero.stage = stage;
    setup.zero.shard_group = grouping.ranks;
    setup.zero.across_stage = grouping.across_stage;
    setup.zero.offload_optimizer.device = offloads.optimizer.device;
    setup.zero.offload_param.device = offloads.param;
    return GroupsProblem(setup).empty();
  }
  TrainSetup SetupFor(const SearchInputs& inputs, int gpus, int stage,
                      const OffloadPlace& offloads) const override {
    TrainSetup setup = inputs.base;
    setup.batch.world_size = gpus;
    setup.zero = inputs.given_zero.value_or(ReaderZeroDefaults(stage));
    setup.zero.stage = stage;
    FillReaderSizes(setup.zero);
    setup.zero.offload_optimizer.device = offloads.optimizer.device;
    setup.zero.offload_optimizer.ratio = offloads.optimizer.ratio;
    setup.zero.offload_param.device = offloads.param;
    if (!inputs.given_zero) FitParamBuffers(inputs.model, setup);
    setup.zero.quantized_weights = inputs.base.zero.quantized_weights;
    setup.zero.quantized_gradients = inputs.base.zero.quantized_gradients;
    if (offloads.optimizer.ratio < 1 && !inputs.given_zero) {
      setup.zero.sub_group_elements =
          SubGroupFor(inputs.model, gpus, setup.zero.sub_group_elements);
    }
    return setup;
  }
  // DeepSpeed's default of overlap_comm is off at stages 1 and 2, and slower.
  std::vector<TrainSetup> WithSettings(const SearchInputs& inputs,
                                       const TrainSetup& asked) const override {
    // What DeepSpeed asserts of light states, for one.
    if (FindSetupProblem(asked)) return {};
    if (asked.zero.stage == 0) return {asked};
    TrainSetup setup = asked;
    const std::optional<ZeroConfig>& given = inputs.given_zero;
    setup.zero.overlap_comm = given ? given->overlap_comm : true;
    std::vector<TrainSetup> all;
    for (const uint64_t bucket : kReduceBuckets) {
      const bool fixed = given && given->reduce_bucket_elements != kAuto;
      setup.zero.reduce_bucket_elements = fixed ? given->reduce_bucket_elements : bucket;
      all.push_back(setup);
      if (fixed) break;
    }
    return all;
  }
  double Trust(const TrainSetup& setup) const override {
    if (setup.zero.stage != 3) return 1;
    return 1 - (setup.recompute == kNoRecompute ? kStage3Margin : kStage3RecomputeMargin);
  }
  std::vector<std::string> Notes(const ChoiceEstimate& choice,
                                 const TorchRecipe& recipe) const override {
    std::vector<std::string> notes = TorchBased::Notes(choice, recipe);
    if (IsMics(choice.setup)) {
      notes.emplace_back(
          "mics_shard_size takes models made whole or under deepspeed.zero.MiCS_Init, none made "
          "under deepspeed.zero.Init. DeepSpeed 0.19.8 refuses the key; 0.19.6 has it.");
    }
    if (choice.setup.batch.sequence_ranks > 1) {
      notes.emplace_back(
          "Sequences over GPUs are DeepSpeed's Ulysses for transformers' models: "
          "UlyssesSPAttentionHF.register_with_transformers, whose mpu deepspeed.initialize takes, "
          "and UlyssesSPDataLoaderAdapter around the data.");
    }
    if (recipe.tiled_mlp) {
      notes.emplace_back(
          "Tiles of an MLP are DeepSpeed's TiledMLP in place of its forward, with "
          "ceil(tokens / hidden) tiles of what a GPU has of a sequence.");
    }
    if (recipe.experts == ExpertModules::kModules && choice.setup.zero.stage == 3) {
      notes.emplace_back(
          "Each expert's linears are fetched by themselves: DeepSpeed 0.19 does so of mixtures "
          "that "
          "are not on its list of leaf modules (Mixtral's, Qwen2's and Qwen3's are), and older "
          "ones "
          "of all. ⟦experts⟧ leaf is a sparse block fetched at once "
          "(zero_optimization.leaf_module, "
          "accelerate's deepspeed_moe_layer_cls_names, deepspeed.utils.set_z3_leaf_modules).");
    }
    const ZeroConfig& zero = choice.setup.zero;
    const auto lacks_path = [](const auto& offload) {
      return offload.device == OffloadDevice::kNvme && offload.nvme_path.empty();
    };
    if (lacks_path(zero.offload_optimizer) || lacks_path(zero.offload_param)) {
      notes.emplace_back(
          "offload to nvme needs its folder: add nvme_path to the offload sections of the config.");
    }
    return notes;
  }
  std::string Doubt(const TrainSetup& setup) const override {
    std::string doubt;
    if (Hybrid(setup)) {
      doubt =
          IsMics(setup)
              ? "Of MiCS no run was compared: memory and time follow from its code alone."
              : "Of hpZ nothing was measured here: its time was compared with 16 published runs "
                "of ZeRO++ (docs/cost-model.md), its memory with none.";
    }
    if (setup.zero.offload_optimizer.device == OffloadDevice::kNvme ||
        setup.zero.offload_param.device == OffloadDevice::kNvme) {
      doubt += doubt.empty() ? "" : " ";
      doubt +=
          "Of NVMe no run was compared: memory and time follow from DeepSpeed's code and the "
          "rates of the profile's disks.";
    }
    if (setup.precision.grad_accum_dtype == Dtype::kF32 && setup.zero.stage == 2) {
      doubt += doubt.empty() ? "" : " ";
      doubt +=
          "data_types.grad_accum_dtype fp32 has no effect at stage 2: DeepSpeed 0.19.6 sums "
          "micro-steps in 16 bit there; stages 1 (bf16) and 3 sum in fp32.";
    }
    if (setup.batch.sequence_ranks > 1) {
      doubt += doubt.empty() ? "" : " ";
      doubt +=
          "Of Ulysses one run was compared, on four H100s, whose step took 3 % more and reserved 9 "
          "% more memory than predicted, and lengths that ALST published (docs/runtimes.md).";
    }
    if (setup.zero.stage < 3 || setup.recompute == kNoRecompute) return doubt;
    if (!doubt.empty()) doubt += " ";
    return doubt + fmt::format(
                       "Stage 3 with recompute is the least certain: it waits for the host's "
                       "Python, whose speed "
                       "is not known. {} such runs without offload took {:.2f} to {:.2f} times "
                       "their predicted "
                       "time. Try it before you rely on it.",
                       kDeepSpeedMargins.recompute_runs, kDeepSpeedMargins.recompute_fastest,
                       kDeepSpeedMargins.recompute_slowest);
  }
  std::string_view OptimizerText() const override { return "DeepSpeed's own optimizers"; }
};

}  // namespace

const Runtime& DeepSpeedRuntime() {
  static const DeepSpeed runtime;
  return runtime;
}

}  // namespace zeroplan
