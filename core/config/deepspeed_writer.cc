#include "core/config/deepspeed_writer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <variant>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/config/reader_state.h"
#include "core/settings/settings.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {

namespace {

using Json = nlohmann::ordered_json;

// Collects keys. PutUnless leaves out a value that a config without the key has anyway.
class KeyWriter {
 public:
  template <typename T>
  void Put(const char* key, const T& value) {
    json_[key] = value;
  }
  template <typename T>
  void PutUnless(const char* key, const T& value, const T& left_out) {
    if (!(value == left_out)) json_[key] = value;
  }
  // The keys of one section of key_rows.inc. `open`: the reader's setup without them.
  void PutRows(std::string_view section, const TrainSetup& setup, const TrainSetup& open) {
    const auto put = [&](const char* key, const auto& value, const auto& left_out,
                         const ConfigKey& of) {
      const std::string name = (section == kStage3Keys ? "stage3_" : "") + std::string(key);
      if (of.always || !(value == left_out)) json_[name] = value;
    };
#define KEY(of, key, member, ...) \
  if (section == (of)) put(key, setup.member, open.member, ConfigKey{__VA_ARGS__});
#include "core/config/key_rows.inc"
#undef KEY
  }
  bool empty() const { return json_.empty(); }
  Json Take() { return std::move(json_); }

 private:
  Json json_ = Json::object();
};

void AddBatch(const BatchSpec& batch, Json* out) {
  (*out)["train_batch_size"] = batch.global_batch();
  (*out)["train_micro_batch_size_per_gpu"] = batch.micro_batch;
  (*out)["gradient_accumulation_steps"] = batch.grad_accum;
  if (batch.sequence_ranks > 1) (*out)["sequence_parallel_size"] = batch.sequence_ranks;
}

// Writes the keys that both offload sections share; each caller adds its own keys after them.
template <typename Offload>
KeyWriter OffloadKeys(const Offload& offload) {
  KeyWriter out;
  out.Put("device", OffloadDeviceName(offload.device));
  out.PutUnless("nvme_path", offload.nvme_path, {});
  return out;
}

// DeepSpeed has shard groups only at stage 3: MiCS, whose groups hold replicas, and ZeRO++'s hpZ,
// whose groups share gradients and states.
bool DeepSpeedHasGroups(const ZeroConfig& zero) {
  return zero.stage == 3 && (zero.across_stage == 0 || zero.across_stage == 2);
}

Json Zero(const TrainSetup& setup) {
  const ZeroConfig& zero = setup.zero;
  TrainSetup open;
  open.zero = ReaderZeroDefaults(zero.stage);
  KeyWriter out;
  out.Put("stage", zero.stage);
  if (zero.shard_group > 0 && DeepSpeedHasGroups(zero)) {
    out.Put(zero.across_stage == 0 ? "mics_shard_size" : "zero_hpz_partition_size",
            zero.shard_group);
  }
  if (zero.offload_optimizer.device != OffloadDevice::kNone) {
    KeyWriter offload = OffloadKeys(zero.offload_optimizer);
    offload.PutRows("zero_optimization.offload_optimizer", setup, open);
    offload.PutUnless("ratio", zero.offload_optimizer.ratio, open.zero.offload_optimizer.ratio);
    offload.PutUnless("pipeline_read", zero.offload_optimizer.pipeline_read, false);
    offload.PutUnless("pipeline_write", zero.offload_optimizer.pipeline_write, false);
    out.Put("offload_optimizer", offload.Take());
  }
  if (zero.offload_param.device != OffloadDevice::kNone) {
    KeyWriter offload = OffloadKeys(zero.offload_param);
    offload.PutRows("zero_optimization.offload_param", setup, open);
    offload.PutUnless("buffer_size", zero.offload_param.buffer_elements,
                      open.zero.offload_param.buffer_elements);
    out.Put("offload_param", offload.Take());
  }
  out.PutRows("zero_optimization", setup, open);
  if (zero.stage == 3) {
    out.PutRows(kStage3Keys, setup, open);
    out.PutUnless("zero_quantized_weights", zero.quantized_weights, false);
    out.PutUnless("zero_quantized_gradients", zero.quantized_gradients, false);
    // Always true, because zeroplan always saves whole weights.
    out.Put("stage3_gather_16bit_weights_on_model_save", true);
  }
  return out.Take();
}

Json Fp16(const TrainSetup& setup) {
  const PrecisionConfig& precision = setup.precision;
  KeyWriter out;
  out.Put("enabled", true);
  out.PutRows("fp16", setup, {});
  // DeepSpeed accepts only a whole number; where the key has an effect, the value is one.
  if (precision.min_loss_scale == std::floor(precision.min_loss_scale) &&
      precision.min_loss_scale < 9e15) {
    out.Put("min_loss_scale", static_cast<int64_t>(precision.min_loss_scale));
  } else {
    out.Put("min_loss_scale", precision.min_loss_scale);
  }
  return out.Take();
}

void AddPrecision(const TrainSetup& setup, Json* out) {
  const PrecisionConfig& precision = setup.precision;
  (*out)["bf16"] = {{"enabled", precision.dtype == Dtype::kBF16}};
  (*out)["fp16"] = precision.dtype == Dtype::kF16 ? Fp16(setup) : Json{{"enabled", false}};
  const DeepSpeedStateKeys keys = StateKeysOf(setup);
  if (keys.masters) {
    const char* name = precision.dtype == Dtype::kF16 ? "fp16" : "bf16";
    (*out)[name][fmt::format("{}_master_weights_and_grads", name)] = true;
  }
  if (keys.moments) (*out)["bf16"]["bf16_optimizer_states"] = true;
  if (precision.grad_accum_dtype != precision.dtype) {
    (*out)["data_types"] = {{"grad_accum_dtype", DtypeName(precision.grad_accum_dtype)}};
  }
  // Without the key, DeepSpeed sends gradients in the compute dtype.
  const Dtype sent = SentGradDtype(setup);
  if (setup.batch.world_size > 1 && sent != precision.dtype) {
    (*out)["communication_data_type"] = DtypeName(sent);
  }
}

Json Optimizer(const TrainSetup& setup) {
  const OptimizerConfig& optimizer = setup.optimizer;
  KeyWriter params;
  params.Put("lr", optimizer.lr);
  params.Put("betas", optimizer.betas);
  params.PutRows("optimizer.params", setup, {});
  params.PutUnless("adam_w_mode", optimizer.adam_w_mode, true);
  KeyWriter out;
  out.Put("type", optimizer.adam_w_mode ? "AdamW" : "Adam");
  out.Put("params", params.Take());
  return out.Take();
}

void PutWarmup(const ScheduleConfig& schedule, KeyWriter* params) {
  params->Put("warmup_num_steps", schedule.warmup_steps);
  params->Put("warmup_type", schedule.log_warmup ? "log" : "linear");
}

void PutRates(const ScheduleConfig& schedule, KeyWriter* params) {
  params->Put("warmup_min_lr", schedule.warmup_min_lr);
  params->Put("warmup_max_lr", schedule.warmup_max_lr);
}

// Writes the number of steps; "auto" stands for the length of the run.
void PutTotal(const ScheduleConfig& schedule, KeyWriter* params) {
  if (schedule.total_steps == 0) {
    params->Put("total_num_steps", "auto");
  } else {
    params->Put("total_num_steps", schedule.total_steps);
  }
}

const char* PutSchedule(const ScheduleConfig& schedule, KeyWriter* params) {
  const OneCycleConfig& cycle = schedule.one_cycle;
  const RangeTestConfig& test = schedule.range_test;
  switch (schedule.kind) {
    case ScheduleKind::kConstant:
      return "";
    case ScheduleKind::kWarmup:
      PutRates(schedule, params);
      PutWarmup(schedule, params);
      return "WarmupLR";
    case ScheduleKind::kWarmupDecay:
      PutTotal(schedule, params);
      PutRates(schedule, params);
      PutWarmup(schedule, params);
      return "WarmupDecayLR";
    case ScheduleKind::kWarmupCosine:
      PutTotal(schedule, params);
      params->Put("warmup_min_ratio", schedule.warmup_min_ratio);
      PutWarmup(schedule, params);
      params->Put("cos_min_ratio", schedule.cos_min_ratio);
      return "WarmupCosineLR";
    case ScheduleKind::kOneCycle:
      params->Put("cycle_min_lr", cycle.min_lr);
      params->Put("cycle_max_lr", cycle.max_lr);
      params->Put("cycle_first_step_size", cycle.first_steps);
      params->Put("cycle_second_step_size", cycle.second_steps);
      params->Put("cycle_first_stair_count", cycle.first_stairs);
      params->Put("cycle_second_stair_count", cycle.second_stairs);
      params->Put("decay_step_size", cycle.decay_steps);
      params->Put("decay_lr_rate", cycle.decay_rate);
      params->Put("cycle_momentum", false);
      return "OneCycle";
    case ScheduleKind::kRangeTest:
      params->Put("lr_range_test_min_lr", test.min_lr);
      params->Put("lr_range_test_step_size", test.step_size);
      params->Put("lr_range_test_step_rate", test.step_rate);
      params->Put("lr_range_test_staircase", test.staircase);
      return "LRRangeTest";
    case ScheduleKind::kOfRun:  // AddRunSchedule
      return "";
  }
  return "";
}

void AddRunSchedule(const ScheduleConfig& schedule, Json* out) {
  if (schedule.kind != ScheduleKind::kOfRun) return;
  const RunScheduleConfig& run = schedule.of_run;
  Json& own = (*out)["_zeroplan"];
  own["lr_schedule"] = DecayShapeName(run.shape);
  if (run.warmup_share > 0) own["warmup_ratio"] = run.warmup_share;
  if (run.warmup_share == 0 && run.warmup_steps > 0) own["warmup_num_steps"] = run.warmup_steps;
  if (run.min_ratio > 0) own["min_lr_ratio"] = run.min_ratio;
}

void AddOwnStates(const TrainSetup& setup, Json* out) {
  const PrecisionConfig& precision = setup.precision;
  const DeepSpeedStateKeys keys = StateKeysOf(setup);
  if (precision.master_weights != MasterWeights::kFp32 && !keys.masters) {
    (*out)["_zeroplan"]["master_weights"] = MasterWeightsName(precision.master_weights);
  }
  if (precision.moment_dtype != Dtype::kF32 && !keys.moments) {
    (*out)["_zeroplan"]["optimizer_states"] = MomentsName(precision.moment_dtype);
  }
}

void AddOwnFp8(const Fp8Config& fp8, Json* out) {
  if (!fp8.enabled) return;
  (*out)["_zeroplan"]["fp8"] = {{"enabled", true},
                                {"recipe", Fp8RecipeName(fp8.recipe)},
                                {"gradients", DtypeName(fp8.gradients)},
                                {"fast_gradients", fp8.fast_gradients},
                                {"least_side", fp8.least_side}};
}

void AddRecompute(const RecomputeConfig& recompute, int64_t layers, Json* out) {
  // Creates "_zeroplan" at the first key, so that a config without such keys lacks it.
  const auto own = [out]() -> Json& { return (*out)["_zeroplan"]; };
  const bool offloads = recompute.offload.device != OffloadDevice::kNone;
  if (recompute.kind == RecomputeKind::kFull) {
    Json section = Json::object();
    bool exact = recompute.every == 1;
    if (layers > 0) {
      const auto count =
          CeilDiv(static_cast<uint64_t>(layers), static_cast<uint64_t>(recompute.every));
      section["number_checkpoints"] = count;
      exact =
          CeilDiv(static_cast<uint64_t>(layers), count) == static_cast<uint64_t>(recompute.every);
    }
    if (offloads) section["cpu_checkpointing"] = true;
    (*out)["activation_checkpointing"] = section;
    if (!exact) own()["checkpoint_every"] = recompute.every;
  } else if (recompute.kind != RecomputeKind::kNone) {
    own()["checkpointing"] = RecomputeName(recompute);
  }
  if (recompute.layers > 0) own()["checkpoint_layers"] = recompute.layers;
  if (recompute.above != RecomputeKind::kNone) {
    own()["checkpointing_above"] = RecomputeName(recompute.above);
  }
  if (offloads && recompute.kind != RecomputeKind::kFull) own()["offload_activations"] = true;
  if (recompute.offload.layers > 0) {
    own()["offload_activation_layers"] = recompute.offload.layers;
  }
}

// Names recompute and offload that DeepSpeed lacks: it checkpoints whole layers, and all of them,
// so a run there would keep other activations.
std::string RecomputeCannot(const RecomputeConfig& recompute) {
  const ActivationHome& offload = recompute.offload;
  std::vector<std::string> out;
  if (recompute.kind == RecomputeKind::kSelective || recompute.above != RecomputeKind::kNone) {
    out.emplace_back("selective recompute");
  }
  if (recompute.kind == RecomputeKind::kProducts) {
    out.emplace_back("recompute of all but attention");
  }
  if (recompute.layers > 0) {
    out.push_back(fmt::format("recompute of the first {} layers alone", recompute.layers));
  }
  if (offload.device != OffloadDevice::kNone && recompute.kind != RecomputeKind::kFull) {
    out.emplace_back("activations on the CPU without full recompute");
  }
  if (offload.layers > 0) {
    out.push_back(fmt::format("activations of {} layers alone on the CPU", offload.layers));
  }
  return fmt::format("{}", fmt::join(out, "; "));
}

Json ToJson(const JsonNode& node) {
  if (node.is_object()) {
    Json object = Json::object();
    for (const JsonMember& member : node.members) object[member.key] = ToJson(member.value);
    return object;
  }
  if (node.is_array()) {
    Json array = Json::array();
    for (const JsonNode& element : node.elements) array.push_back(ToJson(element));
    return array;
  }
  return std::visit([](const auto& value) { return Json(value); }, node.scalar.value());
}

bool IsAuto(const JsonNode& node) { return node.is_string() && node.scalar == "auto"; }

// Sections in which "auto" leaves a choice to zeroplan. DeepSpeed itself does not accept "auto".
constexpr std::array<std::string_view, 13> kReadSections = {"zero_optimization",
                                                            "bf16",
                                                            "bfloat16",
                                                            "fp16",
                                                            "data_types",
                                                            "optimizer",
                                                            "scheduler",
                                                            "activation_checkpointing",
                                                            "train_batch_size",
                                                            "train_micro_batch_size_per_gpu",
                                                            "gradient_accumulation_steps",
                                                            "sequence_parallel_size",
                                                            "gradient_clipping"};
constexpr std::array<std::string_view, 3> kReadCommunication = {"communication_data_type",
                                                                "fp32_allreduce", "allgather_size"};

bool IsRead(std::string_view key) {
  return std::find(kReadSections.begin(), kReadSections.end(), key) != kReadSections.end() ||
         std::find(kReadCommunication.begin(), kReadCommunication.end(), key) !=
             kReadCommunication.end();
}

struct OtherName {
  std::string_view section, name, written;
};

// Synonyms of keys that the writer writes.
constexpr OtherName kOtherNames[] = {
    {"", "bfloat16", "bf16"},
    {"", "fp32_allreduce", "communication_data_type"},
    // Belongs to the deprecated "zero_optimization": true, which the writer writes as a section.
    {"", "allgather_size", "zero_optimization"},
    {"zero_optimization", "cpu_offload", "offload_optimizer"},
    {"zero_optimization", "cpu_offload_param", "offload_param"},
    {"zero_optimization", "cpu_offload_use_pin_memory", "offload_optimizer"},
    {"zero_optimization", "cpu_offload_use_pin_memory", "offload_param"},
};

bool SaidOtherwise(std::string_view section, std::string_view key, const Json& written) {
  for (const OtherName& other : kOtherNames) {
    if (other.section == section && other.name == key && written.contains(other.written)) {
      return true;
    }
  }
  // Stage 3 keys are valid with and without their prefix; the writer writes the prefix.
  return section == "zero_optimization" && written.contains("stage3_" + std::string(key));
}

// `path`: the section's, empty for the top level. `read`: zeroplan chooses values for "auto" in
// this section.
void Merge(const JsonNode& incoming, const std::string& path, bool read, Json* out) {
  for (const JsonMember& member : incoming.members) {
    const bool member_read = read || (path.empty() && IsRead(member.key));
    if (out->contains(member.key)) {
      Json& written = (*out)[member.key];
      if (written.is_object() && member.value.is_object()) {
        Merge(member.value, path.empty() ? member.key : path + "." + member.key, member_read,
              &written);
      }
      continue;
    }
    if (member_read && IsAuto(member.value)) continue;
    if (SaidOtherwise(path, member.key, *out)) continue;
    if (member_read && member.value.is_object()) {
      Json section = Json::object();
      Merge(member.value, path.empty() ? member.key : path + "." + member.key, true, &section);
      (*out)[member.key] = std::move(section);
    } else {
      (*out)[member.key] = ToJson(member.value);
    }
  }
}

// Moves the settings of a section with a deprecated name into the section with the current name.
void MergeOldSection(const JsonNode& incoming, std::string_view old_name, const char* name,
                     Json* out) {
  const JsonNode* node = incoming.Find(old_name);
  if (node != nullptr && node->is_object() && out->contains(name)) {
    Merge(*node, name, true, &(*out)[name]);
  }
}

void KeepGatherOnSave(const JsonNode& incoming, Json* out) {
  const JsonNode* zero = incoming.Find("zero_optimization");
  if (zero == nullptr || !zero->is_object() || !out->contains("zero_optimization")) return;
  constexpr const char* kWritten = "stage3_gather_16bit_weights_on_model_save";
  for (const char* name : {kWritten, "gather_16bit_weights_on_model_save",
                           "stage3_gather_fp16_weights_on_model_save"}) {
    const JsonNode* said = zero->Find(name);
    if (said == nullptr || said->is_null() || IsAuto(*said)) continue;
    Json& section = (*out)["zero_optimization"];
    section.erase(kWritten);
    section[name] = ToJson(*said);
  }
}

}  // namespace

TrainSetup WithScheduleLength(TrainSetup setup) {
  int64_t& total = setup.optimizer.schedule.total_steps;
  total = std::max<int64_t>(1, total);
  return setup;
}

std::string WriteDeepSpeedConfig(const TrainSetup& setup, int64_t layers) {
  const std::string cannot = DeepSpeedCannot(WithScheduleLength(CanonicalSetup(setup, layers)));
  ZEROPLAN_CHECK(cannot.empty(), "{}", cannot);
  return WriteConfig(setup, layers);
}

std::string WriteConfig(const TrainSetup& given, int64_t layers) {
  const TrainSetup setup = CanonicalSetup(given, layers);
  ZEROPLAN_CHECK(setup.zero.reduce_bucket_elements != kAuto &&
                     setup.zero.prefetch_bucket_elements != kAuto &&
                     setup.zero.max_live_parameters != kAuto,
                 "kAuto is not resolved");
  Json out = Json::object();
  AddBatch(setup.batch, &out);
  out["zero_optimization"] = Zero(setup);
  AddPrecision(setup, &out);
  out["gradient_clipping"] = setup.optimizer.gradient_clipping;
  out["optimizer"] = Optimizer(setup);
  KeyWriter params;
  const std::string schedule = PutSchedule(setup.optimizer.schedule, &params);
  if (!schedule.empty()) out["scheduler"] = {{"type", schedule}, {"params", params.Take()}};
  AddRunSchedule(setup.optimizer.schedule, &out);
  AddOwnStates(setup, &out);
  AddOwnFp8(setup.precision.fp8, &out);
  AddRecompute(setup.recompute, layers, &out);
  if (setup.zero.shard_group > 0 && !DeepSpeedHasGroups(setup.zero)) {
    out["_zeroplan"]["shard_group"] = setup.zero.shard_group;
    out["_zeroplan"]["across_groups"] = AcrossName(setup.zero.across_stage);
  }
  for (const SettingRow* row : kSettingRows) {
    if (!SetsOwnKey(*row, setup)) continue;
    std::visit(
        [&]<typename T>(const T& value) {
          if constexpr (!std::is_same_v<T, std::monostate>) {
            out["_zeroplan"][std::string(row->name)] = value;
          }
        },
        row->get(setup));
  }
  if (setup.zero.optimizer_in_backward) out["_zeroplan"]["optimizer_in_backward"] = true;
  return out.dump(2) + "\n";
}

std::string DeepSpeedCannot(const TrainSetup& setup) {
  const ZeroConfig& zero = setup.zero;
  const PrecisionConfig& precision = setup.precision;
  const ScheduleConfig& schedule = setup.optimizer.schedule;
  std::string out;
  auto add = [&](const std::string& text) { out += (out.empty() ? "" : "; ") + text; };
  const auto& optimizer = zero.offload_optimizer;
  if (zero.shard_group > 0 && !DeepSpeedHasGroups(zero)) {
    add(zero.stage < 3 ? fmt::format("shard groups of {} below stage 3", zero.shard_group)
                       : fmt::format("shard groups of {} that share the optimizer states alone",
                                     zero.shard_group));
  }
  if (zero.shard_group > 0 && zero.across_stage == 0 && zero.stage == 3 &&
      optimizer.device != OffloadDevice::kNone) {
    add(fmt::format("shard groups of replicas (MiCS) with the optimizer on {}",
                    OffloadDeviceName(optimizer.device)));
  }
  const bool quantized = zero.quantized_weights || zero.quantized_gradients;
  if (quantized && zero.shard_group > 0 && zero.across_stage == 0) {
    add("quantized collectives in shard groups of replicas (MiCS), which it leaves out");
  }
  if (zero.quantized_gradients && precision.dtype != Dtype::kF16) {
    add("quantized gradients that are not fp16");
  }
  if (zero.stage < 3 && optimizer.device == OffloadDevice::kNvme) {
    add("the optimizer on NVMe below stage 3");
  }
  if (zero.stage < 3 && optimizer.device != OffloadDevice::kNone && optimizer.ratio < 1) {
    add(fmt::format("ratio {} below stage 3", optimizer.ratio));
  }
  // Without ZeRO, DeepSpeed's engine has no optimizer for this mix of dtypes.
  if (zero.stage == 0 && precision.grad_accum_dtype != precision.dtype) {
    add(fmt::format("data_types.grad_accum_dtype {} with {} parameters at stage 0",
                    DtypeName(precision.grad_accum_dtype), DtypeName(precision.dtype)));
  }
  // DeepSpeed would keep states in fp32, which need more memory.
  if (const std::string states = DeepSpeedStatesCannot(setup); !states.empty()) add(states);
  if (precision.fp8.enabled) add("products in FP8");
  if (const std::string homes = RecomputeCannot(setup.recompute); !homes.empty()) add(homes);
  for (const SettingRow* row : kSettingRows) {
    if (SetsOwnKey(*row, setup)) {
      add(*row->deepspeed_lacks != '\0' ? row->deepspeed_lacks : std::string(row->name));
    }
  }
  if (zero.optimizer_in_backward) add("updates in the backward pass");
  if (schedule.kind == ScheduleKind::kOfRun) add("a schedule of zeroplan's own");
  const double floor = precision.min_loss_scale;
  if (precision.dtype == Dtype::kF16 &&
      (floor != std::floor(floor) || floor > 9e15 || (floor < 1 && precision.loss_scale == 0))) {
    add(fmt::format("min_loss_scale {} (whole numbers from 1 on only)", floor));
  }
  const bool decays =
      schedule.kind == ScheduleKind::kWarmupDecay || schedule.kind == ScheduleKind::kWarmupCosine;
  if (decays && schedule.total_steps == 0) {
    add("a schedule without total_num_steps");
  }
  if ((decays || schedule.kind == ScheduleKind::kWarmup) && schedule.warmup_steps == 0) {
    add("warmup_num_steps 0");
  }
  return out;
}

DeepSpeedStateKeys StateKeysOf(const TrainSetup& setup) {
  const PrecisionConfig& precision = setup.precision;
  const bool moments = precision.dtype == Dtype::kBF16 && precision.moment_dtype == Dtype::kBF16;
  DeepSpeedStateKeys keys;
  keys.masters = precision.master_weights == MasterWeights::kParam && setup.zero.stage > 0 &&
                 (moments || setup.zero.offload_optimizer.device != OffloadDevice::kNone);
  keys.moments = keys.masters && moments;
  return keys;
}

std::string DeepSpeedStatesCannot(const TrainSetup& setup) {
  const PrecisionConfig& precision = setup.precision;
  const bool of_param = precision.master_weights == MasterWeights::kParam;
  const bool bf16 = precision.moment_dtype == Dtype::kBF16;
  std::vector<std::string> out;
  if (precision.master_weights == MasterWeights::kSplit) {
    out.push_back("master weights in two halves");
  }
  if (of_param && setup.zero.stage == 0) out.push_back("master weights in 16 bit at stage 0");
  if (precision.moment_dtype == Dtype::kDynamic8) {
    out.push_back("optimizer states in 8 bit");
  } else if (bf16 && precision.dtype != Dtype::kBF16) {
    out.push_back(
        fmt::format("optimizer states in bf16 in a run of {}", DtypeName(precision.dtype)));
  } else if (bf16 && !of_param) {
    out.push_back("optimizer states in bf16 with master weights in fp32");
  } else if (of_param && setup.zero.stage > 0 && !StateKeysOf(setup).masters) {
    out.push_back("master weights in 16 bit with optimizer states in fp32 on the GPU");
  }
  return fmt::format("{}", fmt::join(out, " and "));
}

std::string KeepOtherKeys(std::string_view written, const JsonNode& incoming) {
  ZEROPLAN_CHECK(incoming.is_object(), "a config is an object");
  Json out = Json::parse(written);
  Merge(incoming, "", false, &out);
  MergeOldSection(incoming, "bfloat16", "bf16", &out);
  KeepGatherOnSave(incoming, &out);
  return out.dump(2) + "\n";
}

std::string NameRuntime(std::string_view config, std::string_view runtime,
                        const std::vector<std::pair<std::string, std::string>>& recipe) {
  Json out = Json::parse(config);
  Json& own = out["_zeroplan"];
  if (!own.is_object()) own = Json::object();
  own["runtime"] = runtime;
  for (const SettingRow* row : kSettingRows) {
    if (IsRecipe(*row)) own.erase(std::string(row->name));
  }
  for (const auto& [name, value] : recipe) own[name] = value;
  // DeepSpeed has a key for offloaded activations.
  const auto section = out.find("activation_checkpointing");
  if (own.contains("offload_activations") && section != out.end() && section->is_object()) {
    (*section)["cpu_checkpointing"] = true;
  }
  // The program creates the optimizer and hands it to DeepSpeed, which would create another one if
  // the section were there.
  if (own.contains("optim") && out.contains("zero_optimization")) {
    // ZERO_SUPPORTED_OPTIMIZERS (runtime/zero/utils.py) contains torch.optim's.
    const bool tested = own["optim"] == "adamw_torch" || own["optim"] == "adamw_torch_fused";
    out.erase("optimizer");
    if (!tested) out["zero_allow_untested_optimizer"] = true;
  }
  return out.dump(2) + "\n";
}

}  // namespace zeroplan
