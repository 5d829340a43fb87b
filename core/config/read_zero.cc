// zero_optimization and its offload sections.
#include "core/config/reader_state.h"

namespace zeroplan {
namespace {

// Keys of stage 3 go with and without their prefix. Returns the name that is used; both at once is
// a problem.
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
  constexpr const char* kAllowed = "\"none\", \"cpu\" or \"nvme\"";
  const std::string device =
      section->Word("device", {"none", "cpu", "nvme"}, kAllowed).value_or("none");
  if (device == "cpu") return OffloadDevice::kCpu;
  return device == "nvme" ? OffloadDevice::kNvme : OffloadDevice::kNone;
}

// The folder, which nvme cannot do without. Another device has no use for one.
std::string ReadNvmePath(JsonSection* section, OffloadDevice device) {
  std::string path = section->String("nvme_path", "a folder").value_or("");
  if (device != OffloadDevice::kNvme) return "";
  if (path.empty()) {
    section->Report("nvme_path", "is missing for device \"nvme\"; name a folder on the NVMe disk");
  }
  return path;
}

void ReadOffloadOptimizer(ReaderState* state, JsonSection* zero) {
  JsonSection& section = state->Open(zero, "offload_optimizer");
  auto& out = state->result.setup.zero.offload_optimizer;
  out.device = ReadDevice(&section);
  out.nvme_path = ReadNvmePath(&section, out.device);
  out.pin_memory = section.Bool("pin_memory").value_or(true);
  out.buffer_count = static_cast<int>(section.Int("buffer_count", 1, 1024).value_or(4));
  constexpr const char* kRatio = "a number above 0 and up to 1 (device \"none\" offloads nothing)";
  const double ratio = section.Number("ratio", 1e-9, 1, kRatio).value_or(1.0);
  if (out.device == OffloadDevice::kNone) {
    if (ratio < 1) state->Note(section, "ratio", "has no effect: device is none");
  } else {
    out.ratio = ratio;
  }
  for (const char* key : {"pipeline_read", "pipeline_write"}) {
    section.Bool(key);
    state->NoEffect(&section, key, "zeroplan overlaps reads and writes with the update by itself");
  }
  section.Bool("fast_init");
  state->NoEffect(&section, "fast_init", "zeroplan writes the states once, in place");
  section.Number("cpuadam_cores_perc", 0, 1);
  state->NoEffect(&section, "cpuadam_cores_perc", "zeroplan's host optimizer uses all its cores");
  state->Reject(&section, "super_offload", "zeroplan cannot do this yet", "remove it");
}

void ReadOffloadParam(ReaderState* state, JsonSection* zero) {
  JsonSection& section = state->Open(zero, "offload_param");
  auto& out = state->result.setup.zero.offload_param;
  out.device = ReadDevice(&section);
  out.nvme_path = ReadNvmePath(&section, out.device);
  out.pin_memory = section.Bool("pin_memory").value_or(true);
  out.buffer_count = static_cast<int>(section.Int("buffer_count", 1, 1024).value_or(5));
  if (const std::optional<int64_t> in_cpu = section.Int("max_in_cpu")) {
    out.max_in_cpu_elements = static_cast<uint64_t>(*in_cpu);
  }
  section.Int("buffer_size", 1);
  state->NoEffect(&section, "buffer_size", "zeroplan's staging slots hold one unit (layer) each");
}

// The forms from before the offload sections.
void ReadDeprecatedOffload(ReaderState* state, JsonSection* zero) {
  ZeroConfig& out = state->result.setup.zero;
  const bool optimizer = zero->Bool("cpu_offload").value_or(false);
  const bool param = zero->Bool("cpu_offload_param").value_or(false);
  const std::optional<bool> pin = zero->Bool("cpu_offload_use_pin_memory");
  auto apply = [&](bool on, const char* key, const char* section, OffloadDevice* device) {
    if (!on) return;
    const JsonNode* given = zero->Value(section);
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
  ZeroConfig& out = state->result.setup.zero;
  auto elements = [&](const char* name, uint64_t fallback) {
    const std::optional<int64_t> value = zero->Int(Stage3Key(zero, name));
    return value ? static_cast<uint64_t>(*value) : fallback;
  };
  const bool choose = zero->IsAuto(Stage3Key(zero, "prefetch_bucket_size"));
  out.prefetch_bucket_elements =
      elements("prefetch_bucket_size", choose ? kAuto : out.prefetch_bucket_elements);
  out.param_persistence_threshold =
      elements("param_persistence_threshold", out.param_persistence_threshold);
  out.model_persistence_threshold =
      elements("model_persistence_threshold", out.model_persistence_threshold);
  const bool any_live = zero->IsAuto(Stage3Key(zero, "max_live_parameters"));
  out.max_live_parameters =
      elements("max_live_parameters", any_live ? kAuto : out.max_live_parameters);
  out.max_reuse_distance = elements("max_reuse_distance", out.max_reuse_distance);

  const std::string gather = Stage3Key(zero, "gather_16bit_weights_on_model_save");
  for (const std::string& key : {gather, std::string("stage3_gather_fp16_weights_on_model_save")}) {
    zero->Bool(key);
    state->NoEffect(zero, key, "zeroplan always saves whole weights as model.safetensors");
  }
  for (const char* key :
       {"stage3_allgather_sequential", "allgather_sequential",
        "stage3_use_all_reduce_for_fetch_params", "use_all_reduce_for_fetch_params",
        "stage3_module_granularity_threshold", "module_granularity_threshold",
        "log_trace_cache_warnings", "stage3_log_trace_cache_warnings", "enable_sanity_checks",
        "leaf_module", "override_module_apply", "memory_efficient_linear",
        "save_muon_momentum_buffer_in_memory"}) {
    state->NoEffect(zero, key, "it steers parts of DeepSpeed that zeroplan does not have");
  }
}

void ReadUnsupported(ReaderState* state, JsonSection* zero) {
  zero->Bool("round_robin_gradients");
  state->NoEffect(
      zero, "round_robin_gradients",
      "it only spreads DeepSpeed's own copies to the host over the ranks; zeroplan's are "
      "even already");
  state->OnlyDefault(zero, "load_from_fp32_weights", true);
  constexpr const char* kZeroPlusPlus = "zeroplan cannot do ZeRO++ yet";
  for (const char* key : {"zero_quantized_weights", "zero_quantized_nontrainable_weights",
                          "zero_quantized_gradients", "zeropp_loco_param"}) {
    state->Reject(zero, key, kZeroPlusPlus, "remove it");
  }
  if (zero->Int("zero_hpz_partition_size", 0).value_or(1) > 1) {
    state->Unsupported(*zero, "zero_hpz_partition_size",
                       fmt::format("values above 1 are not supported: {}; use 1", kZeroPlusPlus));
  }
  zero->Key("zero_hpz_partition_size").max = 1;
  if (zero->Int("mics_shard_size", -1).value_or(-1) > 0) {
    state->Unsupported(
        *zero, "mics_shard_size",
        "values above 0 are not supported: zeroplan cannot do MiCS yet; use -1 (off)");
  }
  zero->Key("mics_shard_size").max = 0;
  state->Reject(zero, "mics_hierarchical_params_gather", "zeroplan cannot do MiCS yet",
                "remove it");
  state->Reject(zero, "zenflow", "zeroplan does not update asynchronously", "remove it");
  state->Reject(zero, "legacy_stage1", "this is DeepSpeed's retired stage 1", "remove it",
                RejectedBy::kBoth);
  state->Reject(zero, "elastic_checkpoint",
                "zeroplan's checkpoints load at any number of ranks anyway", "remove it");
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

// true and false stand for stages 1 and 0.
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

}  // namespace

void ReadZero(ReaderState* state) {
  ZeroConfig& out = state->result.setup.zero;
  int deprecated_stage = 0;
  const bool deprecated = DeprecatedBool(state, &deprecated_stage) != nullptr;
  JsonSection& zero = deprecated ? state->OpenNode(nullptr, state->root(), "zero_optimization")
                                 : state->Open(&state->root(), "zero_optimization");
  state->root().Key("zero_optimization").or_bool = true;
  const int64_t stage = zero.Int("stage", 0, 3, "0, 1, 2 or 3").value_or(deprecated_stage);
  out = ReaderZeroDefaults(static_cast<int>(stage));
  auto elements = [&](const char* key, uint64_t fallback) {
    const std::optional<int64_t> value = zero.Int(key, 1);
    return value ? static_cast<uint64_t>(*value) : fallback;
  };
  const bool choose_bucket = zero.IsAuto("reduce_bucket_size");
  out.reduce_bucket_elements =
      elements("reduce_bucket_size", choose_bucket ? kAuto : out.reduce_bucket_elements);
  out.allgather_bucket_elements = elements("allgather_bucket_size", out.allgather_bucket_elements);
  out.sub_group_elements = elements("sub_group_size", out.sub_group_elements);
  out.contiguous_gradients = zero.Bool("contiguous_gradients").value_or(true);
  out.reduce_scatter = zero.Bool("reduce_scatter").value_or(true);
  out.allgather_partitions = zero.Bool("allgather_partitions").value_or(true);
  out.overlap_comm = zero.Bool("overlap_comm").value_or(out.overlap_comm);
  // The old form with a bool has its bucket at the top level.
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
  ReadStage3(state, &zero);
  ReadUnsupported(state, &zero);
}

}  // namespace zeroplan
