// zero_optimization and its offload sections.
#include "core/config/reader_state.h"

namespace zeroplan {
namespace {

// Keys of stage 3 go with and without their prefix. Returns the name that is used; both at once is
// an error.
std::string Stage3Key(JsonSection* zero, const std::string& name) {
  const std::string prefixed = "stage3_" + name;
  const bool long_form = zero->Raw(prefixed) != nullptr;
  const bool short_form = zero->Raw(name) != nullptr;
  if (long_form && short_form) {
    zero->Fail(name, "is also given as {}; keep one of them", prefixed);
  }
  return short_form ? name : prefixed;
}

OffloadDevice ReadDevice(JsonSection* section) {
  constexpr const char* kAllowed = "\"none\", \"cpu\" or \"nvme\"";
  const std::string device = section->String("device", kAllowed).value_or("none");
  if (device == "none") return OffloadDevice::kNone;
  if (device == "cpu") return OffloadDevice::kCpu;
  if (device == "nvme") return OffloadDevice::kNvme;
  section->FailValue("device", kAllowed);
}

// The folder, which nvme cannot do without.
std::string ReadNvmePath(JsonSection* section, OffloadDevice device) {
  const std::string path = section->String("nvme_path", "a folder").value_or("");
  if (device == OffloadDevice::kNvme && path.empty()) {
    section->Fail("nvme_path", "is missing for device \"nvme\"; name a folder on the NVMe disk");
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
  state->Reject(&section, "super_offload", "not yet", "remove it");
}

void ReadOffloadParam(ReaderState* state, JsonSection* zero) {
  JsonSection& section = state->Open(zero, "offload_param");
  auto& out = state->result.setup.zero.offload_param;
  out.device = ReadDevice(&section);
  out.nvme_path = ReadNvmePath(&section, out.device);
  out.pin_memory = section.Bool("pin_memory").value_or(true);
  out.buffer_count = static_cast<int>(section.Int("buffer_count", 1, 1024).value_or(5));
  out.max_in_cpu_elements =
      static_cast<uint64_t>(section.Int("max_in_cpu").value_or(1'000'000'000));
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
      zero->Fail(key, "true contradicts {}.device {}; remove the deprecated {}", section,
                 OffloadDeviceName(*device), key);
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
  out.prefetch_bucket_elements = elements("prefetch_bucket_size", choose ? kAuto : 50'000'000);
  out.param_persistence_threshold = elements("param_persistence_threshold", 100'000);
  out.model_persistence_threshold = elements("model_persistence_threshold", kUnlimited);
  out.max_live_parameters = elements("max_live_parameters", 1'000'000'000);
  out.max_reuse_distance = elements("max_reuse_distance", 1'000'000'000);

  const std::string gather = Stage3Key(zero, "gather_16bit_weights_on_model_save");
  for (const std::string& key : {gather, std::string("stage3_gather_fp16_weights_on_model_save")}) {
    zero->Bool(key);
    state->NoEffect(zero, key, "zeroplan always saves whole weights as model.safetensors");
  }
  for (const char* key : {"stage3_allgather_sequential", "stage3_use_all_reduce_for_fetch_params",
                          "use_all_reduce_for_fetch_params", "stage3_module_granularity_threshold",
                          "module_granularity_threshold", "log_trace_cache_warnings",
                          "stage3_log_trace_cache_warnings", "enable_sanity_checks", "leaf_module",
                          "override_module_apply", "memory_efficient_linear",
                          "save_muon_momentum_buffer_in_memory"}) {
    state->NoEffect(zero, key, "it steers parts of DeepSpeed that zeroplan does not have");
  }
}

void ReadUnsupported(ReaderState* state, JsonSection* zero) {
  state->OnlyDefault(zero, "round_robin_gradients", false);
  state->OnlyDefault(zero, "load_from_fp32_weights", true);
  constexpr const char* kZeroPlusPlus = "ZeRO++ is not supported yet";
  for (const char* key : {"zero_quantized_weights", "zero_quantized_nontrainable_weights",
                          "zero_quantized_gradients", "zeropp_loco_param"}) {
    state->Reject(zero, key, kZeroPlusPlus, "remove it");
  }
  if (zero->Int("zero_hpz_partition_size", 0).value_or(1) > 1) {
    zero->Fail("zero_hpz_partition_size", "{}; use 1", kZeroPlusPlus);
  }
  if (zero->Int("mics_shard_size", -1).value_or(-1) > 0) {
    zero->Fail("mics_shard_size", "MiCS is not supported yet; use -1 (off)");
  }
  state->Reject(zero, "mics_hierarchical_params_gather", "MiCS is not supported yet", "remove it");
  state->Reject(zero, "zenflow", "zeroplan does not update asynchronously", "remove it");
  state->Reject(zero, "legacy_stage1", "this is DeepSpeed's retired stage 1", "remove it");
  state->Reject(zero, "elastic_checkpoint",
                "zeroplan's checkpoints load at any number of ranks anyway", "remove it");
  for (const char* key : {"ignore_unused_parameters", "use_multi_rank_bucket_allreduce"}) {
    zero->Bool(key);
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
  *stage = node->scalar.get<bool>() ? 1 : 0;
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
  const int64_t stage = zero.Int("stage", 0, 3, "0, 1, 2 or 3").value_or(deprecated_stage);
  out.stage = static_cast<int>(stage);
  const bool choose_bucket = zero.IsAuto("reduce_bucket_size");
  const std::optional<int64_t> reduce_bucket = zero.Int("reduce_bucket_size", 1);
  out.reduce_bucket_elements = reduce_bucket   ? static_cast<uint64_t>(*reduce_bucket)
                               : choose_bucket ? kAuto
                                               : 500'000'000;
  out.allgather_bucket_elements =
      static_cast<uint64_t>(zero.Int("allgather_bucket_size", 1).value_or(500'000'000));
  out.sub_group_elements =
      static_cast<uint64_t>(zero.Int("sub_group_size", 1).value_or(1'000'000'000));
  out.contiguous_gradients = zero.Bool("contiguous_gradients").value_or(true);
  out.reduce_scatter = zero.Bool("reduce_scatter").value_or(true);
  out.allgather_partitions = zero.Bool("allgather_partitions").value_or(true);
  out.overlap_comm = zero.Bool("overlap_comm").value_or(stage == 3);
  ReadOffloadOptimizer(state, &zero);
  ReadOffloadParam(state, &zero);
  ReadDeprecatedOffload(state, &zero);
  ReadStage3(state, &zero);
  ReadUnsupported(state, &zero);
}

}  // namespace zeroplan
