#include "cli/plan/runtime_estimate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/common/output.h"
#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/log.h"
#include "core/config/reader_state.h"
#include "planner/report/report_text.h"
#include "planner/request/parse.h"
#include "planner/request/resolve.h"
#include "planner/runtimes/runtime_estimate.h"

namespace zeroplan {
namespace {

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
    {"zero_optimization", "override_module_apply", "true"},
    {"bf16", "bf16_master_weights_and_grads", "false"},
    {"bf16", "bf16_optimizer_states", "false"},
    {"bf16", "check_grad_overflow", "true"},
    {"fp16", "fp16_master_weights_and_grads", "false"},
    {"fp16", "auto_cast", "false"},
    {"activation_checkpointing", "partition_activations", "false"},
    {"activation_checkpointing", "contiguous_memory_optimization", "false"},
    {"", "compile", "null"},
};

std::string Asked(const RuntimeFields& options) { return "--runtime " + options.runtime.text; }

// Stages 2 and 3, parameters and optimizer in one place, unless the options say otherwise.
std::vector<TrainSetup> ResolveFsdp2Setups(const Request& common, const ModelSpec& model,
                                           const HardwareProfile& hardware, int gpus,
                                           Assumptions& assumptions) {
  ChoiceSpace otherwise;
  otherwise.stages = {2, 3};
  otherwise.offload_optimizer =
      otherwise.offload_param = {OffloadDevice::kNone, OffloadDevice::kCpu};
  std::vector<TrainSetup> setups =
      ResolveSetups(common, model, hardware, gpus, DefaultDtype(hardware), otherwise, assumptions);
  std::vector<TrainSetup> together;
  for (const TrainSetup& setup : setups) {
    const ZeroConfig& zero = setup.zero;
    if (zero.offload_optimizer.device == zero.offload_param.device) together.push_back(setup);
  }
  return together.empty() ? setups : together;
}

std::vector<TrainSetup> ResolveDeepSpeedSetups(const Request& common, const ModelSpec& model,
                                               const HardwareProfile& hardware, int gpus,
                                               const std::string& asked, Assumptions& assumptions) {
  if (!common.config.empty()) {
    RefuseUnknownKeys(common.config, asked);
    Assumptions of_config;
    std::vector<TrainSetup> setups = {ResolveConfig(common, model, hardware, gpus, of_config)};
    assumptions.assumed.insert(assumptions.assumed.end(), of_config.assumed.begin(),
                               of_config.assumed.end());
    // What has no effect on zeroplan's executor says nothing of DeepSpeed.
    for (std::string& note : of_config.notes) {
      if (note.find("zeroplan") == std::string::npos) assumptions.notes.push_back(std::move(note));
    }
    return setups;
  }
  ChoiceSpace otherwise;
  otherwise.offload_optimizer =
      otherwise.offload_param = {OffloadDevice::kNone, OffloadDevice::kCpu};
  std::vector<TrainSetup> setups =
      ResolveSetups(common, model, hardware, gpus, DefaultDtype(hardware), otherwise, assumptions);
  for (TrainSetup& setup : setups) {
    ZeroConfig zero = ReaderZeroDefaults(setup.zero.stage);
    zero.offload_optimizer = setup.zero.offload_optimizer;
    zero.offload_param = setup.zero.offload_param;
    setup.zero = zero;
  }
  assumptions.notes.push_back(
      "Buckets, overlap_comm and all else that has a key are DeepSpeed's defaults; --config takes "
      "yours.");
  return setups;
}

// Nothing where the profile does not say enough to time a step.
std::optional<TorchMachine> MachineOf(const HardwareProfile& hardware, const Cluster& cluster,
                                      Assumptions& assumptions) {
  const std::string lacks = TorchMachineLacks(hardware, cluster.shape());
  if (lacks.empty()) return std::optional<TorchMachine>(std::in_place, hardware, cluster.shape());
  assumptions.notes.push_back(
      fmt::format("Profile {} lacks {}: step times are left out.", hardware.name, lacks));
  return std::nullopt;
}

}  // namespace

TorchCompile CompileOf(const RuntimeFields& options) {
  return {options.compile.has_value(), options.compile == CompileKind::kAll};
}

void RefuseForRuntime(OtherRuntime runtime, const std::string& asked, const Request& common) {
  if (common.deterministic) {
    ThrowUsage("--deterministic: not modelled with {}; leave it out", asked);
  }
  if (common.async_save) {
    ThrowUsage("--async-save: is of zeroplan's own saves, not modelled with {}; leave it out",
               asked);
  }
  if (common.packing == Packing::kDocuments) {
    ThrowUsage(
        "--packing: documents is of zeroplan's own training, not modelled with {}; leave it out",
        asked);
  }
  if (runtime != OtherRuntime::kFsdp2) return;
  if (!common.config.empty()) {
    ThrowUsage(
        "--config: {} is a DeepSpeed config, which {} does not read; give --stage, "
        "--checkpointing and --offload-param",
        common.config, asked);
  }
  if (common.batch.grad_accum_dtype) {
    ThrowUsage(
        "--grad-accum-dtype: {} has no effect with {}, which sums gradients in the parameters' "
        "fp32; leave it out",
        common.batch.grad_accum_dtype.text, asked);
  }
}

void RefuseUnknownKeys(const std::string& file, const std::string& asked) {
  const JsonNode root = ParseJsonText(ReadTextFile(file), file);
  for (const UnknownKey& unknown : kUnknownKeys) {
    const JsonNode* section = unknown.section.empty() ? &root : root.Find(unknown.section);
    const JsonNode* value = section == nullptr ? nullptr : section->Find(unknown.key);
    if (value == nullptr || value->is_null()) continue;
    if (value->Quote() == unknown.plain || value->Quote() == "\"auto\"") continue;
    ThrowUsage(
        "{}:{}: {}{}{}: {} changes DeepSpeed's memory in a way that {} does not model; use {} or "
        "leave it out",
        file, value->line, unknown.section, unknown.section.empty() ? "" : ".", unknown.key,
        value->Quote(), asked, unknown.plain);
  }
}

void RefuseUnfusedAttention(const ModelSpec& model, Dtype dtype, const HardwareProfile& hardware,
                            const std::string& asked) {
  if (GpuLowerOptions(model, dtype, hardware.gpu).flash_attention) return;
  ThrowUsage(
      "{}: {} has no fused attention for {}'s heads of {} in {}, and the memory of PyTorch without "
      "it is not modelled",
      asked, hardware.gpu.name, model.name, model.HeadSize(), DtypeName(dtype));
}

void RunRuntimeEstimate(const Request& common, bool json, const std::string& output) {
  const RuntimeFields& options = common.runtime;
  const bool fsdp2 = *options.runtime == RuntimeKind::kFsdp2;
  const std::string asked = Asked(options);
  RefuseForRuntime(fsdp2 ? OtherRuntime::kFsdp2 : OtherRuntime::kDeepSpeed, asked, common);
  if (common.goal.tokens || common.goal.gpu_hour_price) {
    ThrowUsage(
        "--tokens, --gpu-hour-price: not printed with --runtime {}; leave them out, or use "
        "'zeroplan plan --runtime {}'",
        options.runtime.text, options.runtime.text);
  }
  CheckWritable({{"--output", output}});
  Assumptions assumptions;
  const HardwareProfile hardware = ResolveHardware(common.hardware, assumptions);
  const ModelSpec model = ResolveModel(common.model, common.batch.seq_len, assumptions);
  const Cluster cluster = ResolveCluster(common, hardware, assumptions);
  const std::vector<TrainSetup> setups =
      fsdp2 ? ResolveFsdp2Setups(common, model, hardware, cluster.gpus, assumptions)
            : ResolveDeepSpeedSetups(common, model, hardware, cluster.gpus, asked, assumptions);
  RefuseUnfusedAttention(model, setups.front().precision.dtype, hardware, asked);
  const std::optional<TorchMachine> machine = MachineOf(hardware, cluster, assumptions);
  const RuntimeEstimate estimate =
      EstimateRuntime(fsdp2 ? OtherRuntime::kFsdp2 : OtherRuntime::kDeepSpeed, model, cluster,
                      setups, CompileOf(options), machine ? &*machine : nullptr);
  if (json) {
    for (const std::string& note : assumptions.notes) LogInfo("{}", note);
    WriteOutput(output, RuntimeJson(estimate));
    return;
  }
  LayOutFor(output);
  std::string text = RuntimeText(estimate);
  if (!assumptions.assumed.empty()) {
    text += Wrap(fmt::format("Assumed: {}", fmt::join(assumptions.assumed, ", ")), 2);
  }
  for (const std::string& note : assumptions.notes) text += Wrap(note, 2);
  WriteReport(output, text);
}

}  // namespace zeroplan
