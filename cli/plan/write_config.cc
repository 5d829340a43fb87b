#include "cli/plan/write_config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/common/output.h"
#include "cli/plan/config_for.h"
#include "core/base/json_source.h"
#include "core/base/log.h"
#include "core/config/kept_keys.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

std::string_view TorchDtype(Dtype dtype) {
  return dtype == Dtype::kF16 ? "float16" : dtype == Dtype::kBF16 ? "bfloat16" : "float32";
}

Json Fsdp2Config(const TrainSetup& setup) {
  const PrecisionConfig& precision = setup.precision;
  const bool offload = setup.zero.offload_param.device != OffloadDevice::kNone;
  return {
      {"fully_shard",
       {{"reshard_after_forward", setup.zero.stage == 3},
        {"mp_policy",
         {{"param_dtype", TorchDtype(precision.dtype)},
          {"reduce_dtype", TorchDtype(precision.fp32_reduction ? Dtype::kF32 : precision.dtype)}}},
        {"offload_policy", offload ? Json("CPUOffloadPolicy") : Json(nullptr)}}},
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
}

WrittenConfig Formatted(const ConfigSource& source) {
  FormatRequest request = source.request;
  JsonNode came_in;
  if (request.runtime == OtherRuntime::kDeepSpeed && !source.came_in.empty()) {
    came_in = ParseJsonText(ReadTextFile(source.came_in), source.came_in);
    request.incoming = &came_in;
  }
  return WriteFormat(request);
}

void WriteFor(const ConfigSource& source, bool json) {
  const WrittenConfig written = Formatted(source);
  for (const WrittenFile& file : written.files) WriteOutput(file.path, file.text);
  const std::string text = PasteText(source.request.format, written);
  if (json) {
    LogInfo("{}", text);
  } else {
    WriteOutput("", text);
  }
}

}  // namespace

ConfigSource SourceOf(const PlanOptions& options, OtherRuntime runtime,
                      const std::string& runtime_name, const ModelSpec& model,
                      const TrainSetup& setup, const ClusterShape& cluster) {
  ConfigSource source;
  source.request = {options.format(),
                    runtime,
                    runtime_name,
                    model,
                    setup,
                    CompileOf(options.common.runtime),
                    cluster,
                    options.deepspeed_file,
                    nullptr};
  source.came_in = options.common.config;
  source.has_for = options.config_for.has_value();
  return source;
}

std::string ConfigText(const ConfigSource& source) {
  const FormatRequest& request = source.request;
  // The last of several files is DeepSpeed's.
  if (request.runtime == OtherRuntime::kDeepSpeed) return Formatted(source).files.back().text;
  return NameRuntime(Fsdp2Config(request.setup).dump(), request.runtime_name,
                     CompileName(request.compile));
}

void WriteConfigFile(const ConfigSource& source, bool json) {
  if (source.has_for) {
    WriteFor(source, json);
    return;
  }
  const FormatRequest& request = source.request;
  WriteOutput(request.file, ConfigText(source));
  std::string by_code;
  if (request.setup.recompute.kind == RecomputeKind::kFull) {
    by_code = "recompute of every layer (torch.utils.checkpoint)";
  }
  if (request.compile.layers) {
    by_code += fmt::format("{}torch.compile of every layer{}", by_code.empty() ? "" : ", ",
                           request.compile.loss ? " and of the loss" : "");
  }
  if (!by_code.empty()) {
    LogInfo("--out {}: the model's code for {} has to switch on itself: {}", request.file,
            OtherRuntimeName(request.runtime), by_code);
  }
}

}  // namespace zeroplan
