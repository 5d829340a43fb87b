#include "core/config/effective_values.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/settings/settings.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {
namespace {

class Table {
 public:
  explicit Table(const JsonNode& root) : root_(root) {}

  // Sets the prefix of the keys that are added next: "optimizer.params.".
  void In(const char* section) { section_ = section; }

  // `name` may be dotted. `aliases` are other keys, as paths from the root, that may set the value.
  // `otherwise`: the origin of a value that the config leaves out.
  template <typename T>
  void Add(const std::string& name, const T& value, const std::vector<std::string>& aliases = {},
           const char* otherwise = "default") {
    const std::string key = section_ + name;
    const JsonNode* node = Find(key);
    for (const std::string& alias : aliases) {
      if (node == nullptr) node = Find(alias);
    }
    std::string origin = otherwise;
    if (node != nullptr && !node->is_null()) {
      const bool open = node->is_string() && node->scalar == "auto";
      origin = open ? "auto" : fmt::format("line {}", node->line);
    }
    rows.push_back({key, fmt::format("{}", value), std::move(origin)});
  }

  // The text of the config at `key`; "" if there is none.
  std::string TextAt(std::string_view key) const {
    const JsonNode* node = Find(key);
    return node != nullptr && node->is_string() ? node->scalar.text() : std::string();
  }

  // Adds a size in elements. zeroplan may choose it later.
  void AddElements(const std::string& key, uint64_t value,
                   const std::vector<std::string>& aliases = {}) {
    if (value == kAuto) return Add(key, "auto", aliases);
    if (value == kUnlimited) return Add(key, "unlimited", aliases);
    Add(key, value, aliases);
  }

  // Adds a stage 3 key. A config may write it with or without its prefix.
  void AddStage3(const std::string& key, uint64_t value) {
    AddElements("stage3_" + key, value, {section_ + key});
  }

  std::vector<EffectiveValue> rows;

 private:
  const JsonNode* Find(std::string_view key) const {
    const JsonNode* node = &root_;
    while (node != nullptr) {
      const size_t dot = key.find('.');
      node = node->Find(key.substr(0, dot));
      if (dot == std::string_view::npos) break;
      key.remove_prefix(dot + 1);
      // A section that is left open opens all its keys.
      if (node != nullptr && node->is_string() && node->scalar == "auto") break;
      if (node != nullptr && !node->is_object()) return nullptr;
    }
    return node;
  }

  const JsonNode& root_;
  std::string section_;
};

void AddOffload(const ZeroConfig& zero, Table* table) {
  const auto& optimizer = zero.offload_optimizer;
  table->In("zero_optimization.offload_optimizer.");
  table->Add("device", OffloadDeviceName(optimizer.device), {"zero_optimization.cpu_offload"});
  if (optimizer.device != OffloadDevice::kNone) {
    table->Add("ratio", optimizer.ratio);
    table->Add("pin_memory", optimizer.pin_memory,
               {"zero_optimization.cpu_offload_use_pin_memory"});
    table->Add("buffer_count", optimizer.buffer_count);
  }
  if (optimizer.device == OffloadDevice::kNvme) table->Add("nvme_path", optimizer.nvme_path);
  if (zero.stage < 3) return;
  const auto& param = zero.offload_param;
  table->In("zero_optimization.offload_param.");
  table->Add("device", OffloadDeviceName(param.device), {"zero_optimization.cpu_offload_param"});
  if (param.device == OffloadDevice::kNone) return;
  table->Add("pin_memory", param.pin_memory, {"zero_optimization.cpu_offload_use_pin_memory"});
  table->Add("buffer_count", param.buffer_count);
  if (param.device != OffloadDevice::kNvme) return;
  table->AddElements("max_in_cpu", param.max_in_cpu_elements);
  table->Add("nvme_path", param.nvme_path);
}

void AddZero(const ZeroConfig& zero, Table* table) {
  table->In("zero_optimization.");
  table->Add("stage", zero.stage, {"zero_optimization"});
  if (zero.stage >= 1) {
    table->AddElements("reduce_bucket_size", zero.reduce_bucket_elements);
    table->Add("overlap_comm", zero.overlap_comm);
    table->Add("reduce_scatter", zero.reduce_scatter);
  }
  if (zero.stage >= 1 && zero.shard_group > 0) {
    table->In("_zeroplan.");
    table->Add("shard_group", zero.shard_group,
               {"zero_optimization.mics_shard_size", "zero_optimization.zero_hpz_partition_size"});
    table->Add("across_groups", AcrossName(zero.across_stage), {}, "derived");
    table->In("zero_optimization.");
  }
  if (zero.stage >= 2) table->Add("contiguous_gradients", zero.contiguous_gradients);
  if (zero.stage == 1 || zero.stage == 2) {
    table->Add("allgather_partitions", zero.allgather_partitions);
    table->AddElements("allgather_bucket_size", zero.allgather_bucket_elements, {"allgather_size"});
  }
  if (zero.stage == 3) {
    table->AddStage3("prefetch_bucket_size", zero.prefetch_bucket_elements);
    table->AddStage3("param_persistence_threshold", zero.param_persistence_threshold);
    table->AddStage3("model_persistence_threshold", zero.model_persistence_threshold);
    table->AddStage3("max_live_parameters", zero.max_live_parameters);
    table->AddStage3("max_reuse_distance", zero.max_reuse_distance);
    if (zero.quantized_weights) table->Add("zero_quantized_weights", true);
    if (zero.quantized_gradients) table->Add("zero_quantized_gradients", true);
  }
  if (zero.stage > 0) AddOffload(zero, table);
  table->In("zero_optimization.");
  if (zero.stage > 0 && zero.offload_optimizer.device != OffloadDevice::kNone) {
    table->AddElements("sub_group_size", zero.sub_group_elements);
  }
  table->In("");
}

void AddPrecision(const TrainSetup& setup, Table* table) {
  const PrecisionConfig& precision = setup.precision;
  const bool fp16 = precision.dtype == Dtype::kF16;
  table->Add("bf16.enabled", precision.dtype == Dtype::kBF16, {"bfloat16.enabled"});
  table->Add("fp16.enabled", fp16);
  if (fp16) {
    table->Add("fp16.loss_scale", precision.loss_scale);
    table->Add("fp16.initial_scale_power", precision.initial_scale_power);
    table->Add("fp16.loss_scale_window", precision.loss_scale_window);
    table->Add("fp16.hysteresis", precision.hysteresis);
    table->Add("fp16.consecutive_hysteresis", precision.consecutive_hysteresis);
    table->Add("fp16.min_loss_scale", precision.min_loss_scale);
  }
  table->Add("data_types.grad_accum_dtype", DtypeName(precision.grad_accum_dtype), {}, "derived");
  table->Add("communication_data_type", DtypeName(SentGradDtype(setup)), {"fp32_allreduce"},
             "derived");
  table->Add("_zeroplan.master_weights", MasterWeightsName(precision.master_weights),
             {fmt::format("{}.{}_master_weights_and_grads", fp16 ? "fp16" : "bf16",
                          fp16 ? "fp16" : "bf16")});
  table->Add("_zeroplan.optimizer_states", MomentsName(precision.moment_dtype),
             {"bf16.bf16_optimizer_states", "bf16.fp32_optimizer_states"});
  const Fp8Config& fp8 = precision.fp8;
  table->Add("_zeroplan.fp8.enabled", fp8.enabled);
  if (fp8.enabled) {
    table->Add("_zeroplan.fp8.recipe", Fp8RecipeName(fp8.recipe));
    table->Add("_zeroplan.fp8.gradients", DtypeName(fp8.gradients));
    table->Add("_zeroplan.fp8.fast_gradients", fp8.fast_gradients);
    table->Add("_zeroplan.fp8.least_side", fp8.least_side);
  }
}

// Optimizers other than Adam have other parameters, which are not read.
void AddOptimizer(const OptimizerConfig& optimizer, Table* table) {
  const std::string type = table->TextAt("optimizer.type");
  const std::string lower = LowerAscii(type);
  const bool other = !lower.empty() && lower != "auto" && lower != "adam" && lower != "adamw";
  if (other) return table->Add("optimizer.type", type);
  table->Add("optimizer.type", optimizer.adam_w_mode ? "AdamW" : "Adam");
  table->Add("optimizer.params.lr", optimizer.lr);
  table->Add("optimizer.params.betas",
             fmt::format("[{}, {}]", optimizer.betas[0], optimizer.betas[1]));
  table->Add("optimizer.params.eps", optimizer.eps);
  table->Add("optimizer.params.weight_decay", optimizer.weight_decay);
  table->Add("optimizer.params.bias_correction", optimizer.bias_correction);
}

void AddSchedule(const ScheduleConfig& schedule, Table* table) {
  constexpr const char* kNames[] = {
      "constant", "WarmupLR",    "WarmupDecayLR",        "WarmupCosineLR",
      "OneCycle", "LRRangeTest", "_zeroplan.lr_schedule"};
  const ScheduleKind kind = schedule.kind;
  const std::string type = table->TextAt("scheduler.type");
  const bool other = kind == ScheduleKind::kConstant && !type.empty() && type != "auto";
  table->Add("scheduler.type", other ? type : kNames[static_cast<size_t>(kind)]);
  table->In("scheduler.params.");
  const bool decays = kind == ScheduleKind::kWarmupDecay || kind == ScheduleKind::kWarmupCosine;
  if (kind == ScheduleKind::kWarmup || kind == ScheduleKind::kWarmupDecay) {
    table->Add("warmup_min_lr", schedule.warmup_min_lr);
    table->Add("warmup_max_lr", schedule.warmup_max_lr);
  }
  if (kind == ScheduleKind::kWarmup || decays) {
    table->Add("warmup_num_steps", schedule.warmup_steps);
    table->Add("warmup_type", schedule.log_warmup ? "log" : "linear");
  }
  if (decays) {
    table->Add("total_num_steps", schedule.total_steps == 0 ? std::string("the run's length")
                                                            : std::to_string(schedule.total_steps));
  }
  if (kind == ScheduleKind::kWarmupCosine) {
    table->Add("warmup_min_ratio", schedule.warmup_min_ratio);
    table->Add("cos_min_ratio", schedule.cos_min_ratio);
  }
  if (kind == ScheduleKind::kOfRun) {
    const RunScheduleConfig& run = schedule.of_run;
    table->In("_zeroplan.");
    table->Add("lr_schedule", std::string(DecayShapeName(run.shape)));
    if (run.warmup_share > 0) table->Add("warmup_ratio", run.warmup_share);
    if (run.warmup_share == 0) table->Add("warmup_num_steps", run.warmup_steps);
    table->Add("min_lr_ratio", run.min_ratio);
  }
  if (kind == ScheduleKind::kOneCycle) {
    const OneCycleConfig& cycle = schedule.one_cycle;
    table->Add("cycle_min_lr", cycle.min_lr);
    table->Add("cycle_max_lr", cycle.max_lr);
    table->Add("cycle_first_step_size", cycle.first_steps);
    table->Add("cycle_second_step_size", cycle.second_steps);
    table->Add("cycle_first_stair_count", cycle.first_stairs);
    table->Add("cycle_second_stair_count", cycle.second_stairs);
    table->Add("decay_step_size", cycle.decay_steps);
    table->Add("decay_lr_rate", cycle.decay_rate);
  }
  if (kind == ScheduleKind::kRangeTest) {
    const RangeTestConfig& test = schedule.range_test;
    table->Add("lr_range_test_min_lr", test.min_lr);
    table->Add("lr_range_test_step_size", test.step_size);
    table->Add("lr_range_test_step_rate", test.step_rate);
    table->Add("lr_range_test_staircase", test.staircase);
  }
  table->In("");
}

void AddRecompute(const RecomputeConfig& recompute, Table* table) {
  const bool full = recompute.kind == RecomputeKind::kFull;
  table->Add("activation_checkpointing",
             recompute.kind == RecomputeKind::kNone ? std::string("off")
             : !full                                ? std::string(RecomputeName(recompute))
             : recompute.every == 1                 ? std::string("every layer")
                                    : fmt::format("segments of {} layers", recompute.every),
             {"_zeroplan.checkpointing"});
  if (recompute.layers > 0) {
    table->Add("_zeroplan.checkpoint_layers", recompute.layers);
    table->Add("_zeroplan.checkpointing_above", RecomputeName(recompute.above));
  }
  const ActivationHome& offload = recompute.offload;
  const bool offloads = offload.device != OffloadDevice::kNone;
  if (full) {
    table->Add("activation_checkpointing.cpu_checkpointing", offloads,
               {"_zeroplan.offload_activations"});
  } else {
    table->Add("_zeroplan.offload_activations", offloads);
  }
  if (offload.layers > 0) table->Add("_zeroplan.offload_activation_layers", offload.layers);
}

}  // namespace

std::vector<EffectiveValue> EffectiveValues(const TrainSetup& setup, const JsonNode& root) {
  Table table(root);
  const BatchSpec& batch = setup.batch;
  table.Add("train_batch_size", batch.global_batch(), {}, "derived");
  table.Add("train_micro_batch_size_per_gpu", batch.micro_batch, {}, "derived");
  table.Add("gradient_accumulation_steps", batch.grad_accum, {}, "derived");
  if (batch.sequence_ranks > 1) table.Add("sequence_parallel_size", batch.sequence_ranks);
  AddZero(setup.zero, &table);
  AddPrecision(setup, &table);
  const OptimizerConfig& optimizer = setup.optimizer;
  table.Add("gradient_clipping", optimizer.gradient_clipping);
  AddOptimizer(optimizer, &table);
  AddSchedule(optimizer.schedule, &table);
  AddRecompute(setup.recompute, &table);
  for (const SettingRow* row : kSettingRows) {
    if (row->set == nullptr) continue;
    table.Add(fmt::format("_zeroplan.{}", row->name), SettingText(row->get(setup)));
  }
  table.Add("_zeroplan.optimizer_in_backward", setup.zero.optimizer_in_backward);
  return std::move(table.rows);
}

}  // namespace zeroplan
