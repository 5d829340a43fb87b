// Reads zero_optimization and its offload sections.
#include <concepts>
#include <limits>

#include "core/config/reader_state.h"

namespace zeroplan {
namespace {

constexpr const char* kMicsKey = "mics_shard_size";
constexpr const char* kHpzKey = "zero_hpz_partition_size";

// A config may write a stage 3 key with or without its prefix. Returns the name that it uses; both
// at once are a problem.
std::string Stage3Key(JsonSection* zero, const std::string& name) {
  const std::string prefixed = "stage3_" + name;
  const bool long_form = zero->Raw(prefixed) != nullptr;
  const bool short_form = zero->Raw(name) != nullptr;
  if (long_form && short_form) {
    zero->Report(name, "is also given as {}; keep one of them", prefixed);
  }
  return short_form ? name : prefixed;
}

OffloadDevice ReadDevice(JsonSection* section) {
  return section->Word("device", kWords<OffloadDevice>).value_or(OffloadDevice::kNone);
}

// Reads the folder of the swap file. nvme needs one; other devices ignore it.
std::string ReadNvmePath(JsonSection* section, OffloadDevice device) {
  std::string path = section->String("nvme_path", "a folder").value_or("");
  if (device != OffloadDevice::kNvme) return "";
  if (path.empty()) {
    section->Report("nvme_path", "is missing for device \"nvme\"; name a folder on the NVMe disk");
  }
  return path;
}

ZeroConfig OffloadDefaults() { return ReaderZeroDefaults(3); }

// DeepSpeed's buffers are for files alone. It makes as many as the key has, and fails without one
// (swap_tensor/utils.py, SwapBufferManager; partitioned_param_swapper.py, get_buffer). zeroplan
// stages what is on the host, too.
void ReadBufferCount(ReaderState* state, JsonSection* section, OffloadDevice device, int otherwise,
                     int& count) {
  constexpr const char* kKey = "buffer_count";
  if (count != 0) return;
  count = otherwise;
  if (device == OffloadDevice::kNvme) {
    section->Report(kKey,
                    "0 is not allowed with device nvme, whose files pass through buffers; "
                    "use {} or more",
                    otherwise);
  } else if (device == OffloadDevice::kCpu) {
    state->Note(*section, kKey,
                fmt::format("0 is read as {}: DeepSpeed has such buffers for device nvme alone",
                            otherwise));
  }
}

void ReadOffloadOptimizer(ReaderState* state, JsonSection* zero) {
  JsonSection& section = state->Open(zero, "offload_optimizer");
  auto& out = state->result.setup.zero.offload_optimizer;
  out.device = ReadDevice(&section);
  out.nvme_path = ReadNvmePath(&section, out.device);
  ReadKeyRows(state, &section, "zero_optimization.offload_optimizer");
  ReadBufferCount(state, &section, out.device, OffloadDefaults().offload_optimizer.buffer_count,
                  out.buffer_count);
  const double ratio = section.Number("ratio", 0, 1).value_or(1.0);
  if (out.device == OffloadDevice::kNone) {
    if (ratio < 1) state->Note(section, "ratio", "has no effect: device is none");
  } else if (ratio == 0 && !state->context.of_deepspeed) {
    out.device = OffloadDevice::kNone;
    state->Note(section, "ratio", "0 offloads nothing: the optimizer stays on the GPU");
  } else {
    out.ratio = ratio;
  }
  const auto pipeline = [&](const char* key) {
    const bool on = section.Bool(key).value_or(false);
    if (!state->context.of_deepspeed) {
      state->NoEffect(&section, key,
                      "zeroplan overlaps reads and writes with the update by itself");
    }
    return on && state->context.of_deepspeed && out.device == OffloadDevice::kNvme;
  };
  out.pipeline_read = pipeline("pipeline_read");
  out.pipeline_write = pipeline("pipeline_write");
  section.Bool("fast_init");
  state->NoEffect(&section, "fast_init", "zeroplan writes the states once, in place");
  section.Number("cpuadam_cores_perc", 0, 1);
  state->NoEffect(&section, "cpuadam_cores_perc", "zeroplan's host optimizer uses all its cores");
  state->Reject(
      &section, "super_offload",
      "it updates on the CPU while gradients still arrive and takes back what overflowed, "
      "which zeroplan neither does nor models",
      "remove it, which keeps the optimizer on the CPU");
}

void ReadOffloadParam(ReaderState* state, JsonSection* zero) {
  JsonSection& section = state->Open(zero, "offload_param");
  auto& out = state->result.setup.zero.offload_param;
  out.device = ReadDevice(&section);
  out.nvme_path = ReadNvmePath(&section, out.device);
  ReadKeyRows(state, &section, "zero_optimization.offload_param");
  ReadBufferCount(state, &section, out.device, OffloadDefaults().offload_param.buffer_count,
                  out.buffer_count);
  const std::optional<int64_t> slot = section.Int("buffer_size", 0);
  if (!state->context.of_deepspeed) {
    state->NoEffect(&section, "buffer_size", "zeroplan's staging slots hold one unit (layer) each");
  }
  if (slot && out.device == OffloadDevice::kNvme) {
    out.buffer_elements = static_cast<uint64_t>(*slot);
  }
}

// Reads the deprecated keys that the offload sections replaced.
void ReadDeprecatedOffload(ReaderState* state, JsonSection* zero) {
  ZeroConfig& out = state->result.setup.zero;
  const bool optimizer = zero->Bool("cpu_offload").value_or(false);
  const bool param = zero->Bool("cpu_offload_param").value_or(false);
  const std::optional<bool> pin = zero->Bool("cpu_offload_use_pin_memory");
  auto apply = [&](bool on, const char* key, const char* section, OffloadDevice* device) {
    const JsonNode* given = zero->Value(section);
    if (given != nullptr && zero->Value(key) != nullptr) {
      state->DeepSpeedRefuses(
          *zero, key, fmt::format("it takes no {} beside {}; remove {}", key, section, key));
    }
    if (!on) return;
    if (given != nullptr && *device != OffloadDevice::kCpu) {
      zero->Report(key, "true contradicts {}.device {}; remove the deprecated {}", section,
                   OffloadDeviceName(*device), key);
      return;
    }
    *device = OffloadDevice::kCpu;
    state->Note(*zero, key,
                fmt::format("is deprecated; write \"{}\": {{\"device\": \"cpu\"}}", section));
  };
  apply(optimizer, "cpu_offload", "offload_optimizer", &out.offload_optimizer.device);
  apply(param, "cpu_offload_param", "offload_param", &out.offload_param.device);
  if (pin) {
    if (optimizer) out.offload_optimizer.pin_memory = *pin;
    if (param) out.offload_param.pin_memory = *pin;
    state->Note(*zero, "cpu_offload_use_pin_memory",
                "is deprecated; write \"pin_memory\" in the offload sections");
  }
}

void ReadStage3(ReaderState* state, JsonSection* zero) {
  ReadKeyRows(state, zero, kStage3Keys);
  const std::string gather = Stage3Key(zero, "gather_16bit_weights_on_model_save");
  const std::string old_gather = "stage3_gather_fp16_weights_on_model_save";
  if (zero->Value(gather) != nullptr && zero->Value(old_gather) != nullptr) {
    state->DeepSpeedRefuses(
        *zero, old_gather,
        fmt::format("it takes no {} beside {}; remove {}", old_gather, gather, old_gather));
  }
  for (const std::string& key : {gather, old_gather}) {
    zero->Bool(key);
    state->NoEffect(zero, key, "zeroplan always saves whole weights as model.safetensors");
  }
  for (const char* key :
       {"stage3_allgather_sequential", "allgather_sequential",
        "stage3_use_all_reduce_for_fetch_params", "use_all_reduce_for_fetch_params",
        "stage3_module_granularity_threshold", "module_granularity_threshold",
        "log_trace_cache_warnings", "enable_sanity_checks", "leaf_module", "override_module_apply",
        "memory_efficient_linear", "save_muon_momentum_buffer_in_memory"}) {
    state->NoEffect(zero, key, "it steers parts of DeepSpeed that zeroplan does not have");
  }
}

// Reads DeepSpeed's two keys for shard groups, which only its stage 3 has. A group of all ranks
// counts as no groups.
void ReadGroups(ReaderState* state, JsonSection* zero) {
  ZeroConfig& out = state->result.setup.zero;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int world_size = state->context.world_size;
  const int64_t mics = zero->Int(kMicsKey, -1, kMost).value_or(-1);
  const int64_t hpz = zero->Int(kHpzKey, 0, kMost).value_or(1);
  zero->Key(kMicsKey).about = "Stage 3: ranks of a shard group; the groups hold replicas. -1: off.";
  zero->Key(kHpzKey).about =
      "Stage 3: ranks that share the parameters; gradients and states are sharded over all.";
  state->NoEffect(zero, "mics_hierarchical_params_gather",
                  "zeroplan gathers over a shard group by one collective, whose way between nodes "
                  "NCCL chooses");
  if (mics > 0 && hpz > 1) {
    zero->Report(kHpzKey, "{} contradicts {} {}, whose groups hold replicas; keep one of them", hpz,
                 kMicsKey, mics);
    return;
  }
  const char* key = mics > 0 ? kMicsKey : kHpzKey;
  const int64_t group = mics > 0 ? mics : hpz;
  if (mics <= 0 && hpz <= 1) return;
  if (out.stage < 3) {
    state->Note(
        *zero, key,
        "has no effect below stage 3; \"_zeroplan\": {\"shard_group\": ...} has shard groups "
        "of stages 1 and 2");
    return;
  }
  // DeepSpeed shrinks an hpZ group of more ranks than there are to all ranks; MiCS refuses such a
  // group.
  if (group == world_size || (hpz > 1 && group > world_size)) {
    state->Note(*zero, key, fmt::format("{} ranks are all there are: one group", world_size));
    return;
  }
  if (group > world_size || world_size % group != 0) {
    zero->Report(key, "{} is not allowed with {} GPU{}; use a divisor of ⟦gpus⟧ from 2 on", group,
                 world_size, world_size == 1 ? "" : "s");
    return;
  }
  if (hpz > 1 && out.offload_param.device != OffloadDevice::kNone) {
    state->Unsupported(*zero, key,
                       fmt::format("{} is not supported with offload_param.device {}; use 1, or "
                                   "device none",
                                   hpz, OffloadDeviceName(out.offload_param.device)));
    return;
  }
  out.shard_group = static_cast<int>(group);
  out.across_stage = mics > 0 ? 0 : 2;
}

// Reads ZeRO++'s qwZ and qgZ, which have an effect only at DeepSpeed's stage 3.
void ReadQuantized(ReaderState* state, JsonSection* zero) {
  ZeroConfig& out = state->result.setup.zero;
  const auto read = [&](const char* key, const char* about) {
    const bool on = zero->Bool(key).value_or(false);
    zero->Key(key).about = about;
    if (on && out.stage < 3) state->Note(*zero, key, "has no effect below stage 3");
    return on && out.stage == 3;
  };
  out.quantized_weights = read("zero_quantized_weights",
                               "Stage 3: gathers send int8 in place of 16 bit; changes numbers.");
  out.quantized_gradients =
      read("zero_quantized_gradients",
           "Stage 3: reductions send int4 in place of 16 bit; changes numbers.");
}

void ReadUnsupported(ReaderState* state, JsonSection* zero) {
  zero->Bool("round_robin_gradients");
  state->NoEffect(
      zero, "round_robin_gradients",
      "it only spreads DeepSpeed's own copies to the host over the ranks; zeroplan's are "
      "even already");
  // It steers the loading of checkpoints.
  if (state->context.of_deepspeed) {
    zero->Bool("load_from_fp32_weights");
  } else {
    state->OnlyDefault(zero, "load_from_fp32_weights", true);
  }
  state->Reject(zero, "zero_quantized_nontrainable_weights",
                "zeroplan keeps frozen weights as they are, or in NF4 (⟦method⟧ qlora)",
                "remove it");
  state->Reject(zero, "zeropp_loco_param", "zeroplan feeds no errors of quantization back yet",
                "remove it");
  state->Reject(
      zero, "zenflow",
      "it updates most parameters some steps late, which zeroplan neither does nor models",
      "remove it, which leaves an update of all parameters in each step");
  state->Reject(zero, "legacy_stage1", "DeepSpeed removed that stage 1 in 0.5.9 and ends here",
                "remove it", RejectedBy::kBoth);
  zero->Bool("elastic_checkpoint");
  state->NoEffect(zero, "elastic_checkpoint",
                  "zeroplan's checkpoints load at any number of ranks anyway");
  zero->Bool("parameter_alignment");
  state->NoEffect(zero, "parameter_alignment", "zeroplan aligns its buffers by itself");
  if (!zero->Bool("compute_grad_norm").value_or(true)) {
    state->Note(*zero, "compute_grad_norm", "has no effect: zeroplan always computes the norm");
  }
  zero->Bool("ignore_unused_parameters");
  if (zero->Bool("use_multi_rank_bucket_allreduce").value_or(false)) {
    state->Note(*zero, "use_multi_rank_bucket_allreduce",
                "has no effect: zeroplan reduces each rank's part only, where DeepSpeed's stage 2 "
                "all-reduces whole buckets and sends about twice as much");
  }
  if (const JsonNode* node = zero->Value("ignore_unused_parameters");
      node && !IsSwitchedOn(*node)) {
    state->Note(*zero, "ignore_unused_parameters", "has no effect: zeroplan's models use them all");
  }
  for (const char* key : {"pipeline_loading_checkpoint"}) {
    state->NoEffect(zero, key, "it steers parts of DeepSpeed that zeroplan does not have");
  }
}

// Reads the deprecated bool: true and false stand for stages 1 and 0.
const JsonNode* DeprecatedBool(ReaderState* state, int* stage) {
  const JsonNode* node = state->root().Value("zero_optimization");
  if (node == nullptr || node->kind != JsonNode::Kind::kScalar || !node->scalar.is_boolean()) {
    return nullptr;
  }
  *stage = node->scalar.boolean() ? 1 : 0;
  state->Note(state->root(), "zero_optimization",
              fmt::format("{} is deprecated; write {{\"stage\": {}}}", *stage == 1, *stage));
  return node;
}

// Reports values that zeroplan reads and DeepSpeed's classes of pydantic fields refuse: null where
// it is no value of the field, and an exponent within quotes.
void CheckWithDeepSpeed(ReaderState* state, JsonSection* section, const std::string& key,
                        bool whole) {
  const JsonNode* node = section->Raw(key);
  if (node == nullptr || section->path() == "optimizer.params") return;
  if (node->is_null() && key != "overlap_comm") {
    state->DeepSpeedRefuses(*section, key, "null is no value of this key; remove it");
  }
  if (!whole || !node->is_string() || node->scalar == "auto") return;
  if (node->scalar.text().find_first_not_of("+-0123456789_ ") == std::string::npos) return;
  state->DeepSpeedRefuses(
      *section, key, fmt::format("{} is text; write the number without quotes", node->Quote()));
}

template <typename T>
void ReadKey(ReaderState* state, JsonSection* section, const std::string& key, const ConfigKey& of,
             T& member) {
  CheckWithDeepSpeed(state, section, key, std::integral<T> && !std::same_as<T, bool>);
  if constexpr (std::same_as<T, bool>) {
    member = section->Bool(key).value_or(member);
  } else if constexpr (std::floating_point<T>) {
    const double most = of.most > 0 ? of.most : kMaxNumber;
    member = section->Number(key, of.least, most, of.allowed).value_or(member);
  } else {
    const int64_t most = of.most > 0 ? static_cast<int64_t>(of.most) : kMaxInt;
    const auto value = section->Int(key, static_cast<int64_t>(of.least), most, of.allowed);
    if (value) member = static_cast<T>(*value);
    if (of.chosen && section->IsAuto(key)) member = static_cast<T>(kAuto);
  }
}

}  // namespace

void ReadKeyRows(ReaderState* state, JsonSection* section, std::string_view rows) {
  const auto name = [&](const char* key) {
    return rows == kStage3Keys ? Stage3Key(section, key) : std::string(key);
  };
#define KEY(of, key, member, ...)                                                           \
  if (rows == (of)) {                                                                       \
    ReadKey(state, section, name(key), ConfigKey{__VA_ARGS__}, state->result.setup.member); \
  }
#include "core/config/key_rows.inc"
#undef KEY
}

void ReadZero(ReaderState* state) {
  ZeroConfig& out = state->result.setup.zero;
  int deprecated_stage = 0;
  const bool deprecated = DeprecatedBool(state, &deprecated_stage) != nullptr;
  JsonSection& zero = deprecated ? state->OpenNode(nullptr, state->root(), "zero_optimization")
                                 : state->Open(&state->root(), "zero_optimization");
  state->root().Key("zero_optimization").or_bool = true;
  const int64_t stage = zero.Int("stage", 0, 3, "0, 1, 2 or 3").value_or(deprecated_stage);
  out = ReaderZeroDefaults(static_cast<int>(stage));
  ReadKeyRows(state, &zero, "zero_optimization");
  // The deprecated form with a bool has its bucket size at the top level.
  const std::optional<int64_t> old_bucket = state->root().Int("allgather_size", 1);
  if (old_bucket && deprecated) {
    out.allgather_bucket_elements = static_cast<uint64_t>(*old_bucket);
    state->Note(state->root(), "allgather_size",
                "is deprecated; write \"allgather_bucket_size\" in zero_optimization");
  } else if (old_bucket) {
    state->Warn(
        state->root(), "allgather_size",
        "has no effect beside a section zero_optimization; write \"allgather_bucket_size\" there");
  }
  ReadOffloadOptimizer(state, &zero);
  ReadOffloadParam(state, &zero);
  ReadDeprecatedOffload(state, &zero);
  if (out.sub_group_elements == 0 && out.offload_optimizer.device != OffloadDevice::kNone &&
      !state->context.of_deepspeed) {
    state->Unsupported(
        zero, "sub_group_size",
        "0 is not supported with the optimizer offloaded: zeroplan's executor updates "
        "sub_group_size elements at a time, DeepSpeed's stage 3 then each parameter "
        "by itself; use a positive number such as 1e8, or remove the key");
  }
  ReadStage3(state, &zero);
  ReadGroups(state, &zero);
  ReadQuantized(state, &zero);
  ReadUnsupported(state, &zero);
}

void ReadOwnGroups(ReaderState* state, JsonSection* own) {
  ZeroConfig& out = state->result.setup.zero;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const bool of_deepspeed = out.shard_group > 0;
  const std::string said = fmt::format("zero_optimization.{} {}",
                                       out.across_stage == 0 ? kMicsKey : kHpzKey, out.shard_group);
  const JsonNode* node = own->Value("shard_group");
  const bool all = node != nullptr && node->is_string() && node->scalar == "all";
  int64_t group = out.shard_group;
  if (node != nullptr) {
    constexpr const char* kAllowed = "the ranks of a shard group, from 2 on, or \"all\"";
    const std::optional<int64_t> given =
        all ? std::optional<int64_t>(0) : own->Int("shard_group", 2, kMost, kAllowed);
    group = given.value_or(group);
    if (group == state->context.world_size) group = 0;
  }
  own->Key("shard_group").form =
      R"({"anyOf": [{"type": "integer", "minimum": 2}, {"const": "all"}]})";
  const int across = own->Word("across_groups", kAcrossWords).value_or(out.across_stage);
  if (of_deepspeed && group != out.shard_group) {
    return own->Report("shard_group", "{} contradicts {}; keep one of them",
                       own->Quote("shard_group"), said);
  }
  if (of_deepspeed && across != out.across_stage) {
    return own->Report("across_groups", "{} contradicts {}, which is {}; keep one of them",
                       AcrossName(across), said, AcrossName(out.across_stage));
  }
  if (node != nullptr && group == 0 && across > 0) {
    return own->Report("across_groups",
                       "{} is not allowed: one group of all {} ranks has none to share with; use "
                       "replicate",
                       AcrossName(across), state->context.world_size);
  }
  out.shard_group = static_cast<int>(group);
  out.across_stage = across;
}

}  // namespace zeroplan
