#include "cli/plan/plan_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "cli/plan/plan_methods.h"
#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/log.h"
#include "core/base/strings.h"
#include "core/base/units.h"
#include "core/config/deepspeed_writer.h"
#include "core/config/effective_values.h"
#include "core/settings/packing.h"
#include "core/settings/setup_facts.h"
#include "planner/formats/launch_files.h"
#include "planner/page/plan_page.h"
#include "planner/plan/plan_file.h"
#include "planner/report/report_text.h"
#include "planner/request/parse.h"
#include "planner/runtimes/runtimes.h"
#include "planner/runtimes/torch_phases.h"

namespace zeroplan {

void AddConfigForOption(Command& command, PlanOptions& options) {
  command.Value(
      {"Output", "--for", "deepspeed|hf-trainer|accelerate|torchtitan|skypilot|kubernetes",
       "Program that --out is for: DeepSpeed (JSON), transformers' Trainer (JSON; its arguments "
       "are printed), 'accelerate launch' (YAML) or torchtitan (TOML, FSDP2); or what starts "
       "'train --plan' with the file of --plan-out: SkyPilot or Kubernetes (YAML). Default: the "
       "config of --runtime (docs/formats.md)"},
      options.config_for,
      WordIn<ConfigFormat>(
          {"deepspeed", "hf-trainer", "accelerate", "torchtitan", "skypilot", "kubernetes"}));
}

void ApplyConfigFor(PlanOptions& options) {
  Given<const Runtime*>& runtime = options.common.runtime.runtime;
  if (!options.config_for) {
    // A config is DeepSpeed's by default.
    if (!runtime && !options.deepspeed_file.empty()) runtime.emplace(&DeepSpeedRuntime());
    return;
  }
  const ConfigFormat format = *options.config_for;
  if (options.deepspeed_file.empty()) {
    ThrowUsage("--for: {} writes a file; add --out FILE", options.config_for.text);
  }
  const bool titan = format == ConfigFormat::kTorchtitan;
  if (IsLaunchFormat(format)) {
    CheckFormat(format, options.common.runtime.of(), options.deepspeed_file);
    if (!options.plan_file.empty()) {
      CheckFormat(format, options.common.runtime.of(), options.plan_file, "⟦plan_out⟧");
      return;
    }
    ThrowUsage("--for: {} starts 'train --plan'; add --plan-out FILE", options.config_for.text);
  }
  if (!runtime) {
    runtime.emplace(titan ? &Fsdp2Runtime() : &DeepSpeedRuntime());
    if (titan) runtime.text = Fsdp2Runtime().key();
  }
  if (titan) {
    Given<Dtype>& sent = options.common.settings.communication_dtype;
    if (sent && *sent != Dtype::kF32) {
      ThrowUsage(
          "--communication-dtype: {} is not what torchtitan reduces in; use fp32 or leave "
          "it out",
          sent.text);
    }
    if (!sent) {
      sent.emplace(Dtype::kF32);
      sent.text = "fp32";
    }
  }
  CheckFormat(format, **runtime, options.deepspeed_file);
}

void CheckFilesBeside(const PlanOptions& options, const Runtime& runtime) {
  if (options.deepspeed_file.empty()) return;
  std::vector<CommandFile> written = {{"--report", options.report_file, PathRole::Writes(kPage)},
                                      {"--plan-out", options.plan_file, PathRole::Writes(kPlanOut)},
                                      {"--trace", options.trace_file, PathRole::Writes(kTrace)}};
  std::erase_if(written, [](const CommandFile& file) { return file.path.empty(); });
  for (std::string& file : FormatFiles(options.format(), runtime, options.deepspeed_file)) {
    written.push_back({"--out", std::move(file), PathRole::Writes(kConfig)});
  }
  CheckMoreFiles(written);
}

namespace {

std::string Indented(const std::string& text) {
  std::string out = "    ";
  for (char c : text) {
    out += c;
    if (c == '\n') out += "    ";
  }
  return out;
}

// Instructions for pasting, in lines of at most 100 columns; only command lines may be longer.
std::string PasteText(ConfigFormat format, const WrittenConfig& written) {
  std::string names;
  for (const WrittenFile& file : written.files) names += (names.empty() ? "" : ", ") + file.path;
  const std::string command = written.Command();
  std::string text = fmt::format("\nFor {}, written to {}{}\n", ConfigFormatName(format), names,
                                 command.empty() ? "" : ":\n\n" + Indented(command) + "\n");
  if (!written.script.empty()) {
    text += format == ConfigFormat::kDeepSpeed
                ? "  The script makes the optimizer that was planned:\n\n"
                : "  The script loads the model as it was planned:\n\n";
    for (const std::string& line : written.script) text += "    " + line + "\n";
    text += "\n";
  }
  if (!written.probe_command.empty()) {
    text += Paragraph(written.probe_text, 2) + '\n';
    for (const std::string& line : written.probe_script) text += "    " + line + "\n";
    text += fmt::format("\n{}\n\n", Indented(written.probe_command));
  }
  for (const std::string& note : written.notes) text += Paragraph(NameFields(note), 2);
  return text;
}

// The longest padded sample, truncated to the sequence length.
std::optional<int64_t> LongestSample(const RunGoal& goal) {
  if (!goal.data || goal.data->packing == Packing::kStream) return std::nullopt;
  return std::min(static_cast<int64_t>(goal.data->lengths.AtShare(1)), goal.data->seq_len);
}

WrittenConfig Formatted(const ConfigSource& source) {
  FormatRequest request = source.request;
  if (request.runtime->reads_deepspeed_config() && source.came_in.given()) {
    request.incoming = &source.came_in.root();
  }
  return WriteFormat(request);
}

void WriteAndSay(ConfigFormat format, const WrittenConfig& written, bool json) {
  for (const WrittenFile& file : written.files) WriteData(file.path, file.text);
  const std::string text = PasteText(format, written);
  if (json) {
    LogInfo("{}", text);
  } else {
    WriteData("", text);
  }
}

}  // namespace

ConfigSource SourceOf(const PlanOptions& options, const PlanAnswer& answer) {
  const Plan& plan = answer.plan;
  // zeroplan's own choices are written as DeepSpeed configs.
  const Runtime& runtime = plan.runtime->WritesFor();
  ConfigSource source;
  source.request = {options.format(),
                    &runtime,
                    std::string(plan.runtime->version()),
                    plan.model,
                    plan.setup,
                    plan.recipe,
                    plan.cluster.shape(),
                    options.deepspeed_file,
                    nullptr,
                    plan.choice.room != MemoryRoom::kAmple && plan.runtime->facts().has_recipe,
                    EvalBatchToSay(plan.choice.footprint),
                    QuantizesOnHost(plan.choice.footprint),
                    LongestSample(answer.report.goal)};
  source.came_in = options.common.config;
  source.has_for = options.config_for.has_value();
  return source;
}

std::string ConfigText(const ConfigSource& source) {
  const FormatRequest& request = source.request;
  // The last of several files is DeepSpeed's.
  if (request.runtime->reads_deepspeed_config()) return Formatted(source).files.back().text;
  return NameRuntime(request.runtime->ConfigJson(request.setup, request.model.layers),
                     request.runtime_name, RecipeWords(request.recipe));
}

void WriteConfigFile(const ConfigSource& source, bool json) {
  if (source.has_for) {
    WriteAndSay(source.request.format, Formatted(source), json);
    return;
  }
  const FormatRequest& request = source.request;
  WriteData(request.file, ConfigText(source));
  if (request.recipe.optimizer && request.runtime->reads_deepspeed_config()) {
    LogInfo("--out {}: has no optimizer: the script makes the one that was planned:\n    {}",
            request.file, fmt::join(Formatted(source).script, "\n    "));
  }
  std::string by_code;
  if (request.setup.recompute.kind == RecomputeKind::kFull) {
    by_code = "recompute of every layer (torch.utils.checkpoint)";
  }
  if (request.recipe.compile.layers) {
    by_code += fmt::format("{}torch.compile of every layer{}", by_code.empty() ? "" : ", ",
                           request.recipe.compile.loss ? " and of the loss" : "");
  }
  if (!by_code.empty()) {
    LogInfo("--out {}: the model's code for {} has to switch on itself: {}", request.file,
            request.runtime->name(), by_code);
  }
}

void WriteDeepSpeed(const PlanOptions& options, const PlanAnswer& answer) {
  const Plan& plan = answer.plan;
  const ConfigSource source = SourceOf(options, answer);
  if (options.config_for) {
    WriteConfigFile(source, options.as_json());
  } else {
    WriteData(options.deepspeed_file, ConfigText(source));
  }
  const uint64_t headroom =
      DeepSpeedExtraMemory(plan.model, plan.setup).Of(plan.setup.batch.micro_batch);
  LogInfo(
      "--out {}: a DeepSpeed config by zeroplan's own choice, not by DeepSpeed's speed (that is "
      "--runtime deepspeed). DeepSpeed needs more GPU memory than zeroplan's {} for the same "
      "choice; this plan leaves {} for that, as much as measured runs of DeepSpeed 0.19.6 took at "
      "most",
      options.deepspeed_file, FormatBytes(plan.choice.footprint.gpu_total()),
      FormatBytes(headroom));
  if (ReducesInFp32(plan.setup)) {
    LogInfo("--out {}: none of these runs of DeepSpeed reduced in fp32", options.deepspeed_file);
  }
  if (plan.setup.recompute.kind == RecomputeKind::kFull) {
    const bool on_gpu = plan.setup.recompute.offload.device == OffloadDevice::kNone;
    LogInfo("--out {}: recompute is switched on in the model's code for DeepSpeed{}",
            options.deepspeed_file, on_gpu ? "" : ", by deepspeed.checkpointing alone");
  }
}

namespace {

// train's option for the length of the planned run; "" if the request has none.
std::string LengthWords(const PlanOptions& options, const PlanAnswer& answer) {
  const RunGoal& goal = answer.report.goal;
  const DataFields& data = options.common.goal.data;
  if (goal.data) return fmt::format("--epochs {}", data.epochs ? data.epochs.text : "1");
  if (!goal.tokens) return "";
  return fmt::format("--steps {}", CostOf(goal, answer.plan.setup.batch, 0).steps);
}

// train's options for reading the data.
std::string DataWords(const PlanOptions& options, const PlanAnswer& answer) {
  const DataFields& data = options.common.goal.data;
  const RecordFields& records = data.records;
  std::vector<std::string> words;
  const std::optional<DataFacts>& facts = answer.report.goal.data;
  if (facts || options.common.settings.packing) {
    const Packing packing = facts ? facts->packing : *options.common.settings.packing;
    words.push_back(fmt::format("--packing {}", PackingName(packing)));
  }
  if (!records.map.empty()) words.push_back("--map " + BashWord(records.map));
  if (!records.text_field.empty()) {
    words.push_back("--text-field " + BashWord(records.text_field));
  }
  if (records.train_on) words.push_back("--train-on " + records.train_on.text);
  if (records.skip_bad) words.push_back("--skip-bad " + records.skip_bad.text);
  if (records.no_special_tokens) words.emplace_back("--no-special-tokens");
  if (data.truncate) words.emplace_back("--truncate");
  return fmt::format("{}", fmt::join(words, " "));
}

// Whether a folder contains symbolic links, as models in Hugging Face's cache do.
bool HoldsLinks(const std::string& folder) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.is_symlink(ignored)) return true;
  }
  return false;
}

}  // namespace

void WriteLaunch(const PlanOptions& options, const PlanAnswer& answer) {
  const Plan& plan = answer.plan;
  const SaveCost& save = *answer.report.checkpoint;
  LaunchRequest request = {.format = options.format(),
                           .model = plan.model.name,
                           .batch = plan.setup.batch,
                           .cluster = plan.cluster.shape(),
                           .gpu_name = plan.cluster.gpu_name,
                           .file = options.deepspeed_file,
                           .plan_file = options.plan_file,
                           .step_seconds = *plan.choice.time.total_seconds,
                           .length = LengthWords(options, answer),
                           .data_options = DataWords(options, answer),
                           .model_folder = plan.origin ? plan.origin->model_folder : ""};
  constexpr uint64_t kCheckpoints = 3;  // the two that are kept, and the one that is being written
  request.disk_bytes =
      kCheckpoints * save.bytes + save.weights_bytes + plan.choice.footprint.nvme_bytes;
  if (const std::optional<InterruptedCost>& interrupted = plan.choice.interrupted) {
    request.interrupted = true;
    if (interrupted->known) request.save_seconds = interrupted->notice_needs_seconds;
  }
  const std::string folder = request.model_folder;
  const bool fresh = !folder.empty() && !HasWeights(options.common.model);
  if (LacksWeights(options.common.model, answer)) {
    ThrowUsage("⟦for⟧: {} has no weights here, and the run needs some; name a folder that has them",
               plan.model.name);
  }
  if (fresh) {
    request.data_options += request.data_options.empty() ? "--fresh-weights" : " --fresh-weights";
  }
  const bool links = !folder.empty() && HoldsLinks(folder);
  if (links) request.model_folder = "./model";
  WrittenConfig written = WriteLaunchFile(request);
  if (fresh) {
    written.notes.push_back(fmt::format(
        "{} holds no weights, so the run trains fresh ones (--fresh-weights).", folder));
  }
  if (links) {
    written.notes.push_back(
        fmt::format("{} holds links, which an upload does not follow. Copy it to ./model without "
                    "them before ('cp -rL').",
                    folder));
  }
  WriteAndSay(request.format, written, options.as_json());
}

}  // namespace zeroplan
