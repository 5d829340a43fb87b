// zeroplan config check: what a DeepSpeed config comes to.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "cli/app.h"
#include "cli/common/common_options.h"
#include "cli/common/output.h"
#include "cli/common/parse.h"
#include "core/base/json_source.h"
#include "core/config/deepspeed_reader.h"
#include "core/config/effective_values.h"

namespace zeroplan {
namespace {

struct CheckOptions {
  CommonOptions common;
  std::string file;
  bool strict = false;
};

ReadContext Context(const CheckOptions& options) {
  const CommonOptions& common = options.common;
  Assumptions assumptions;  // shown by none of the values below
  ReadContext context;
  context.strict = options.strict;
  context.world_size =
      static_cast<int>(ParseOptionalWhole(common.gpus, "--gpus", 1, kMaxGpus).value_or(1));
  if (!common.model.empty() || !common.params.empty()) {
    const ModelSpec model = ResolveModel(common, assumptions);
    context.layers = model.layers;
    context.seq_len = ResolveSeqLen(common, model, assumptions);
  } else if (!common.seq_len.empty()) {
    context.seq_len = ParseWhole(common.seq_len, "--seq-len", 1, kMaxBatch);
  }
  context.micro_batch = ParseOptionalWhole(common.micro_batch, "--micro-batch", 1, kMaxBatch);
  context.grad_accum = ParseOptionalWhole(common.grad_accum, "--grad-accum", 1, kMaxBatch);
  context.global_batch = ParseOptionalWhole(common.global_batch, "--global-batch", 1, kMaxBatch);
  if (!common.dtype.empty()) context.dtype = ParseDtype(common.dtype, "--dtype");
  context.has_bf16 = ResolveHardware(common, assumptions).gpu.bf16;
  return context;
}

std::string Rows(const std::vector<EffectiveValue>& values) {
  size_t key = 3, value = 5;
  for (const EffectiveValue& row : values) {
    key = std::max(key, row.key.size());
    value = std::max(value, row.value.size());
  }
  std::string text = fmt::format("{:<{}}  {:<{}}  from\n", "key", key, "value", value);
  for (const EffectiveValue& row : values) {
    text += fmt::format("{:<{}}  {:<{}}  {}\n", row.key, key, row.value, value, row.origin);
  }
  return text;
}

void Check(const CheckOptions& options) {
  const std::string text = ReadTextFile(options.file);
  const ReadContext context = Context(options);
  const ReadResult result = ReadDeepSpeedConfig(text, options.file, context);
  std::string out;
  for (const std::string& line : result.warnings) out += "warning: " + line + "\n";
  for (const std::string& line : result.notes) out += "note: " + line + "\n";
  if (!out.empty()) out += "\n";
  out += Rows(EffectiveValues(result.setup, ParseJsonText(text, options.file)));
  out += fmt::format("\n{}: no errors, {} warning{}, {} GPU{}\n", options.file,
                     result.warnings.size(), result.warnings.size() == 1 ? "" : "s",
                     context.world_size, context.world_size == 1 ? "" : "s");
  WriteOutput("", out);
}

}  // namespace

void RegisterConfig(CLI::App& app) {
  CLI::App* command = app.add_subcommand("config", "DeepSpeed configs");
  command->require_subcommand(1);
  command->footer("Examples:\n  zeroplan config check ds_config.json --gpus 8 --model gpt2-xl");
  CLI::App* check = command->add_subcommand(
      "check", "Errors, warnings and effective values of a DeepSpeed config");
  auto options = std::make_shared<CheckOptions>();
  check->add_option("file", options->file, "The config")->type_name("FILE")->required();
  check->add_flag("--strict", options->strict, "Unknown keys of the top level are errors");
  AddModelOptions(*check, options->common);
  AddOption(*check, "Hardware", "--gpus", options->common.gpus, "COUNT",
            "GPUs in all, for the batch arithmetic (default 1)");
  AddOption(*check, "Hardware", "--hw", options->common.hardware, "NAME|FILE",
            "Hardware profile, for precision \"auto\" (see 'zeroplan hw list')");
  AddBatchOptions(*check, options->common);
  check->callback([options] { Check(*options); });
}

}  // namespace zeroplan
