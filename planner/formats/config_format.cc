#include "planner/formats/config_format.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "core/config/deepspeed_writer.h"
#include "planner/formats/format_parts.h"
#include "planner/formats/launch_files.h"

namespace zeroplan {
namespace {

std::string WithoutExtension(const std::string& file) {
  return std::filesystem::path(file).replace_extension().string();
}

WrittenConfig WritePlainDeepSpeed(const FormatRequest& request) {
  WrittenConfig out;
  out.files.push_back({request.file, DeepSpeedJson(request)});
  if (request.recipe.optimizer) out.script = OptimizerScript(request);
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
    case ConfigFormat::kSkyPilot:
      return "skypilot";
    case ConfigFormat::kKubernetes:
      return "kubernetes";
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

std::vector<std::string> FormatFiles(ConfigFormat format, const Runtime& runtime,
                                     const std::string& file) {
  if (format == ConfigFormat::kAccelerate && runtime.reads_deepspeed_config()) {
    return {file, DeepSpeedFileBeside(file)};
  }
  return {file};
}

void CheckFormat(ConfigFormat format, const Runtime& runtime, const std::string& file,
                 std::string_view field) {
  const bool launches = IsLaunchFormat(format);
  if (launches && !runtime.facts().trains_here) {
    ThrowUsage("⟦for⟧: {} starts zeroplan's own executor, not {}; leave ⟦runtime⟧ out",
               ConfigFormatName(format), runtime.name());
  }
  if (const std::string none = runtime.NoFormat(format, file); !none.empty()) {
    ThrowUsage("{}", none);
  }
  // Line breaks of YAML's among them, such as U+2028: comments and blocks, where names stand as
  // they are, end there.
  const bool controls = IsValidUtf8(file) && PrintableText(file, file.size()) != file;
  if (launches && controls) {
    ThrowUsage("{}: {} has a control character, which {}'s YAML cannot name; use another name",
               field, PrintableText(file, 80), ConfigFormatName(format));
  }
  if ((format == ConfigFormat::kAccelerate || launches) && !IsValidUtf8(file)) {
    ThrowUsage("{}: {} is not UTF-8, which {}'s YAML has to name it in; use another name", field,
               PrintableText(file, 80), ConfigFormatName(format));
  }
  const std::string extension = std::filesystem::path(file).extension().string();
  if (format == ConfigFormat::kAccelerate && extension == ".json") {
    ThrowUsage("⟦out⟧: {}: accelerate reads its YAML from another name; use {}.yaml", file,
               WithoutExtension(file));
  }
}

WrittenConfig WriteFormat(const FormatRequest& request) {
  ZEROPLAN_CHECK(request.incoming == nullptr || request.runtime->reads_deepspeed_config(),
                 "a DeepSpeed config came in for another program");
  CheckFormat(request.format, *request.runtime, request.file);
  // A config that is shown, not written, may have a schedule as long as the run.
  std::string cannot = request.runtime->FormatCannot(
      request.format, request.file.empty() ? WithScheduleLength(request.setup) : request.setup);
  if (cannot.empty()) {
    cannot = RecipeCannot(request.format, *request.runtime, request.model, request.recipe);
  }
  if (!cannot.empty()) {
    ThrowUsage("⟦for⟧: {} with {} cannot do what is asked for: {}; allow another choice",
               ConfigFormatName(request.format), request.runtime->name(), cannot);
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
    case ConfigFormat::kSkyPilot:
    case ConfigFormat::kKubernetes:
      ZEROPLAN_CHECK(false, "{} is no config", ConfigFormatName(request.format));
  }
  return {};
}

JsonText DeepSpeedJson(const FormatRequest& request,
                       const std::function<JsonText(const JsonText&)>& change) {
  TrainSetup setup = request.setup;
  // Left open: whoever owns it fills it in.
  int64_t& total = setup.optimizer.schedule.total_steps;
  if (change && total == 0) total = 1;
  JsonText text = request.runtime->ConfigJson(setup, request.model.layers);
  if (change) text = change(text);
  if (request.incoming != nullptr) text = KeepOtherKeys(text, *request.incoming);
  return NameRuntime(text, request.runtime_name, RecipeWords(request.recipe));
}

std::string Quoted(const std::string& text) {
  if (!IsValidUtf8(text)) {
    ThrowUsage("{}: is not UTF-8, which files have to name it in; use another name",
               PrintableText(text, 80));
  }
  const std::string json = nlohmann::json(text).dump();
  std::string out;
  for (size_t at = 0; at < json.size();) {
    size_t whole = 1;
    if (UnprintableBytes(json, at, &whole) == 0) {
      out.append(json, at, whole);
      at += whole;
    } else {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(NextCodePoint(json, &at)));
    }
  }
  return out;
}

std::string DeepSpeedFileBeside(const std::string& file) {
  return WithoutExtension(file) + ".deepspeed.json";
}

int ProcessesPerNode(const ClusterShape& cluster) {
  const int nodes = cluster.nodes();
  if (cluster.gpus != nodes * cluster.ranks_per_node()) {
    ThrowUsage(
        "⟦for⟧: launchers start as many processes on every host, and {} GPUs are not that on {} "
        "hosts; use a multiple of {} for ⟦gpus⟧",
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
  return fmt::format("# {}, {}: {}, {}; planned by zeroplan\n", program, request.runtime->name(),
                     ModelName(request), StepText(request.setup.batch));
}

std::string StepText(const BatchSpec& batch) {
  return fmt::format("{} sequences of {} tokens a step on {} GPU{}", batch.global_batch(),
                     batch.seq_len, batch.world_size, batch.world_size == 1 ? "" : "s");
}

bool Said(const FormatRequest& request, std::string_view key) {
  return request.incoming != nullptr && ConfigSays(*request.incoming, key);
}

}  // namespace zeroplan
