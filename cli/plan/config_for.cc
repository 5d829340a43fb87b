#include "cli/plan/config_for.h"

#include "core/base/error.h"
#include "planner/report/report_text.h"
#include "planner/request/parse.h"
#include "planner/runtimes/runtimes.h"

namespace zeroplan {
namespace {

std::string Indented(const std::string& text) {
  std::string out = "    ";
  for (char c : text) {
    out += c;
    if (c == '\n') out += "    ";
  }
  return out;
}

}  // namespace

void AddConfigForOption(Command& command, PlanOptions& options) {
  command.Value(
      {"Output", "--for", "deepspeed|hf-trainer|accelerate|torchtitan",
       "Program that --out is for: DeepSpeed (JSON), transformers' Trainer (JSON; its arguments "
       "are printed), 'accelerate launch' (YAML) or torchtitan (TOML, FSDP2). Default: the config "
       "of --runtime (docs/formats.md)"},
      options.config_for,
      WordIn<ConfigFormat>({"deepspeed", "hf-trainer", "accelerate", "torchtitan"}));
}

void ApplyConfigFor(PlanOptions& options) {
  Given<const Runtime*>& runtime = options.common.runtime.runtime;
  if (!options.config_for) {
    // A config is DeepSpeed's unless something else is said.
    if (!runtime && !options.deepspeed_file.empty()) runtime.emplace(&DeepSpeedRuntime());
    return;
  }
  const ConfigFormat format = *options.config_for;
  if (options.deepspeed_file.empty()) {
    ThrowUsage("--for: {} writes a file; add --out FILE", options.config_for.text);
  }
  const bool titan = format == ConfigFormat::kTorchtitan;
  if (!runtime) {
    runtime.emplace(titan ? &Fsdp2Runtime() : &DeepSpeedRuntime());
    if (titan) runtime.text = Fsdp2Runtime().key();
  }
  if (titan) {
    Given<Dtype>& sent = options.common.batch.communication_dtype;
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

std::vector<WantedFile> FilesOfOut(const PlanOptions& options, const Runtime& runtime) {
  if (options.deepspeed_file.empty()) return {};
  std::vector<WantedFile> wanted;
  for (const std::string& file : FormatFiles(options.format(), runtime, options.deepspeed_file)) {
    wanted.push_back({"--out", file});
  }
  return wanted;
}

std::string PasteText(ConfigFormat format, const WrittenConfig& written) {
  std::string names;
  for (const WrittenFile& file : written.files) names += (names.empty() ? "" : ", ") + file.path;
  std::string text = fmt::format("\nFor {}, written to {}:\n\n{}\n\n", ConfigFormatName(format),
                                 names, Indented(written.Command()));
  for (const std::string& note : written.notes) text += Wrap(note, 2);
  return text;
}

}  // namespace zeroplan
