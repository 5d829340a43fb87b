#include "planner/formats/config_format.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "core/config/deepspeed_writer.h"
#include "core/config/kept_keys.h"
#include "planner/formats/format_parts.h"

namespace zeroplan {
namespace {

class Reasons {
 public:
  void Add(bool cannot, std::string_view what) {
    if (cannot) text_ += (text_.empty() ? "" : "; ") + std::string(what);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

// Of what is written for DeepSpeed, beyond DeepSpeed's own limits.
std::string DeepSpeedFormatCannot(ConfigFormat format, TrainSetup setup) {
  const bool trainer = format == ConfigFormat::kHfTrainer;
  // The Trainer and accelerate fill in the run's length.
  int64_t& total = setup.optimizer.schedule.total_steps;
  if (format != ConfigFormat::kDeepSpeed && total == 0) total = 1;
  Reasons reasons;
  const std::string cannot = DeepSpeedCannot(setup);
  reasons.Add(!cannot.empty(), cannot);
  // gradient_checkpointing of transformers' models is layer by layer.
  reasons.Add(trainer && setup.recompute.every > 1,
              fmt::format("recompute of {} layers at a time", setup.recompute.every));
  return reasons.Take();
}

void AddFsdp2Limits(const ZeroConfig& zero, Reasons& reasons) {
  const OffloadDevice optimizer = zero.offload_optimizer.device;
  const OffloadDevice param = zero.offload_param.device;
  reasons.Add(zero.stage < 2,
              fmt::format("stage {} (FSDP2 is stage 3, or 2 without resharding)", zero.stage));
  reasons.Add(optimizer == OffloadDevice::kNvme || param == OffloadDevice::kNvme,
              "offload to NVMe");
  reasons.Add(optimizer != param,
              "offload of parameters or optimizer alone (FSDP2 moves both or none)");
  reasons.Add(optimizer != OffloadDevice::kNone && zero.offload_optimizer.ratio < 1,
              fmt::format("offload of {} of the optimizer", zero.offload_optimizer.ratio));
}

std::string Fsdp2FormatCannot(ConfigFormat format, const TrainSetup& setup) {
  const PrecisionConfig& precision = setup.precision;
  const bool titan = format == ConfigFormat::kTorchtitan;
  const bool mixed = precision.dtype != Dtype::kF32;
  Reasons reasons;
  AddFsdp2Limits(setup.zero, reasons);
  reasons.Add(!titan && setup.recompute.kind == RecomputeKind::kSelective, "selective recompute");
  reasons.Add(setup.recompute.every > 1,
              fmt::format("recompute of {} layers at a time", setup.recompute.every));
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

bool IsUtf8(const std::string& text) {
  try {
    return !nlohmann::json(text).dump().empty();
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

std::string WithoutExtension(const std::string& file) {
  return std::filesystem::path(file).replace_extension().string();
}

WrittenConfig WritePlainDeepSpeed(const FormatRequest& request) {
  WrittenConfig out;
  out.files.push_back({request.file, DeepSpeedJson(request)});
  return out;
}

}  // namespace

std::string_view ConfigFormatName(ConfigFormat format) {
  switch (format) {
    case ConfigFormat::kDeepSpeed:
      return "deepspeed";
    case ConfigFormat::kHfTrainer:
      return "hf-trainer";
    case ConfigFormat::kAccelerate:
      return "accelerate";
    case ConfigFormat::kTorchtitan:
      return "torchtitan";
  }
  return "unknown";
}

std::string WrittenConfig::Command() const {
  std::string text = launch;
  for (const std::string& argument : arguments) {
    text += text.empty() ? argument : " \\\n  " + argument;
  }
  return text;
}

std::vector<std::string> FormatFiles(ConfigFormat format, OtherRuntime runtime,
                                     const std::string& file) {
  if (format == ConfigFormat::kAccelerate && runtime == OtherRuntime::kDeepSpeed) {
    return {file, DeepSpeedFileBeside(file)};
  }
  return {file};
}

void CheckFormat(ConfigFormat format, OtherRuntime runtime, const std::string& file) {
  if (format == ConfigFormat::kTorchtitan && runtime == OtherRuntime::kDeepSpeed) {
    ThrowUsage("--for: torchtitan trains with FSDP2, not with DeepSpeed; use --runtime fsdp2");
  }
  if (format == ConfigFormat::kDeepSpeed && runtime == OtherRuntime::kFsdp2) {
    ThrowUsage(
        "--out: {} would be a DeepSpeed config, which FSDP2 does not read; add --for hf-trainer, "
        "accelerate or torchtitan",
        file);
  }
  if (format == ConfigFormat::kAccelerate && !IsUtf8(file)) {
    ThrowUsage(
        "--out: {} is not UTF-8, which accelerate's YAML has to name it in; use another name",
        PrintableText(file, 80));
  }
  const std::string extension = std::filesystem::path(file).extension().string();
  if (format == ConfigFormat::kAccelerate && extension == ".json") {
    ThrowUsage("--out: {}: accelerate reads its YAML from another name; use {}.yaml", file,
               WithoutExtension(file));
  }
}

std::string FormatCannot(ConfigFormat format, OtherRuntime runtime, const TrainSetup& setup) {
  // Its own config is CheckFormat's to refuse.
  if (format == ConfigFormat::kDeepSpeed && runtime == OtherRuntime::kFsdp2) return "";
  return runtime == OtherRuntime::kDeepSpeed ? DeepSpeedFormatCannot(format, setup)
                                             : Fsdp2FormatCannot(format, setup);
}

WrittenConfig WriteFormat(const FormatRequest& request) {
  ZEROPLAN_CHECK(request.incoming == nullptr || request.runtime == OtherRuntime::kDeepSpeed,
                 "a DeepSpeed config came in for FSDP2");
  CheckFormat(request.format, request.runtime, request.file);
  const std::string cannot = FormatCannot(request.format, request.runtime, request.setup);
  if (!cannot.empty()) {
    ThrowUsage("--for: {} with {} cannot do what is asked for: {}; allow another choice",
               ConfigFormatName(request.format), OtherRuntimeName(request.runtime), cannot);
  }
  switch (request.format) {
    case ConfigFormat::kDeepSpeed:
      return WritePlainDeepSpeed(request);
    case ConfigFormat::kHfTrainer:
      return WriteHfTrainer(request);
    case ConfigFormat::kAccelerate:
      return WriteAccelerate(request);
    case ConfigFormat::kTorchtitan:
      return WriteTorchtitan(request);
  }
  return {};
}

JsonText DeepSpeedJson(const FormatRequest& request,
                       const std::function<JsonText(const JsonText&)>& change) {
  TrainSetup setup = request.setup;
  // Left open: whoever owns it fills it in.
  int64_t& total = setup.optimizer.schedule.total_steps;
  if (change && total == 0) total = 1;
  JsonText text = WriteDeepSpeedConfig(setup, request.model.layers);
  if (change) text = change(text);
  if (request.incoming != nullptr) text = KeepOtherKeys(text, *request.incoming);
  return NameRuntime(text, request.runtime_name, CompileName(request.compile));
}

std::string Quoted(const std::string& text) { return nlohmann::json(text).dump(); }

std::string DeepSpeedFileBeside(const std::string& file) {
  return WithoutExtension(file) + ".deepspeed.json";
}

int ProcessesPerNode(const ClusterShape& cluster) {
  const int nodes = cluster.nodes();
  if (cluster.gpus != nodes * cluster.ranks_per_node()) {
    ThrowUsage(
        "--for: launchers start as many processes on every host, and {} GPUs are not that on {} "
        "hosts; use a multiple of {} for --gpus",
        cluster.gpus, nodes, cluster.gpus_per_node);
  }
  return cluster.ranks_per_node();
}

std::string TorchrunLaunch(const ClusterShape& cluster) {
  const int per_node = ProcessesPerNode(cluster);
  if (cluster.nodes() == 1) return fmt::format("torchrun --nproc_per_node {}", per_node);
  return fmt::format(
      "torchrun --nnodes {} --nproc_per_node {} --rdzv_backend c10d --rdzv_endpoint HOST:29500",
      cluster.nodes(), per_node);
}

std::string ModelName(const FormatRequest& request) {
  return PrintableText(request.model.name, 80);
}

std::string HeadComment(const FormatRequest& request, std::string_view program) {
  return fmt::format("# {}, {}: {}, {}; planned by zeroplan\n", program,
                     OtherRuntimeName(request.runtime), ModelName(request),
                     StepText(request.setup.batch));
}

std::string StepText(const BatchSpec& batch) {
  return fmt::format("{} sequences of {} tokens a step on {} GPU{}", batch.global_batch(),
                     batch.seq_len, batch.world_size, batch.world_size == 1 ? "" : "s");
}

bool Said(const FormatRequest& request, std::string_view key) {
  return request.incoming != nullptr && ConfigSays(*request.incoming, key);
}

}  // namespace zeroplan
