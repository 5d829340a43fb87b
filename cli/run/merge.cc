// zeroplan merge: one model of a base and a LoRA adapter.
#include <filesystem>
#include <memory>
#include <string>

#include "cli/common/commands.h"
#include "cli/common/executor_commands.h"
#include "cli/common/output.h"
#include "cli/run/train/train_command.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/long_work.h"
#include "core/base/stop_signals.h"
#include "core/base/units.h"
#include "core/families/adapter_config.h"
#include "core/families/load_model.h"
#include "core/model/lora.h"
#include "executor/checkpoint/adapter_weights.h"
#include "executor/checkpoint/hf_export.h"
#include "executor/checkpoint/hf_weights.h"
#include "planner/request/parse.h"

namespace zeroplan {
namespace {

struct MergeCommand {
  std::string adapter, model, out;
  Given<Dtype> save_dtype;
  Given<uint64_t> max_shard_size;
};

void RunMerge(const MergeCommand& command) {
  const InterruptScope interrupts;
  namespace fs = std::filesystem;
  const fs::path adapter = command.adapter;
  std::error_code ignored;
  if (!fs::exists(adapter / kAdapterConfigFile, ignored)) {
    ThrowUsage(
        "{}: holds no {}; name a folder with an adapter, such as 'train --method lora --save' "
        "writes",
        command.adapter, kAdapterConfigFile);
  }
  if (command.out.empty()) ThrowUsage("--out: name the folder for the merged model");
  if (command.model.empty() && HoldsWeights(adapter)) {
    ThrowUsage(
        "{0}: holds a model beside the adapter; say with --model which the adapter is of: {0} for "
        "that one",
        command.adapter);
  }
  const std::string base = BaseFolder(adapter, command.model);
  for (const fs::path& input : {fs::path(base), adapter}) {
    if (fs::equivalent(input, command.out, ignored)) {
      ThrowUsage("--out: {} is one of the two that are merged; name another folder", command.out);
    }
  }
  CheckExportFolder(command.out, base, "--out");
  const ModelSpec of_base = LoadModel(base);
  const ModelSpec spec = WithAdapter(of_base, adapter, AdapterUse::kMerge);
  if (spec.vocab != of_base.vocab) {
    LogInfo("vocabulary: {} tokens, as the adapter has them; its base has {}", spec.vocab,
            of_base.vocab);
  }
  if (spec.tied_head != of_base.tied_head) {
    LogInfo("head: a matrix of its own, as the adapter has it; its base ties it to the embedding");
  }
  const LongWork work("Merging", /*at_once=*/true);
  const MergedWeights merged(base, adapter, spec);
  HfExportOptions options;
  options.dtype = command.save_dtype.value_or(Dtype::kBF16);
  options.max_shard_bytes = command.max_shard_size.value_or(options.max_shard_bytes);
  options.source = base;
  options.second_source = adapter;
  WriteHfWeights(command.out, BaseModel(spec), merged.table(), merged, options);
  WriteReport(
      "", fmt::format("{}: {} and {} as one model, {} in {}\n", command.out, base, command.adapter,
                      FormatBytes(HfWeightsBytes(merged.table(), options.dtype)),
                      DtypeName(options.dtype)));
}

}  // namespace

void RegisterMerge(Command& app) {
  Command command = app.Add(kMergeCommand.name, kMergeCommand.help);
  auto options = std::make_shared<MergeCommand>();
  command.Required("adapter", "DIR", "Folder of the adapter, as PEFT or 'train --save' wrote it",
                   options->adapter);
  command.Text({.group = kNoGroup,
                .name = "-o,--out",
                .type = "DIR",
                .help = "Folder for the merged model",
                .path = {PathRole::Use::kFill}},
               options->out);
  command.Text({kNoGroup, "--model", "NAME|DIR",
                "The model that it is of (default: the one that the adapter names)"},
               options->model);
  command.Value({kNoGroup, "--save-dtype", "fp32|bf16|fp16",
                 "Precision of the merged weights, which are added in fp32 (default bf16)"},
                options->save_dtype, ParseDtype);
  command.Value({kNoGroup, "--max-shard-size", "BYTES",
                 "Largest size of one file; more becomes several files (default 5GB)"},
                options->max_shard_size, ParseShardSize);
  command.Progress(kNoGroup);
  command.Footer("Example:\n  zeroplan merge out --model meta-llama/Llama-3.1-8B -o merged");
  command.Run([options] { RunMerge(*options); });
}

}  // namespace zeroplan
