// zeroplan estimate: every ZeRO stage and offload choice, its memory, its traffic and its time.
#include "planner/estimate/estimate.h"

#include <memory>

#include "cli/app.h"
#include "cli/common/common_options.h"
#include "cli/common/output.h"
#include "cli/common/parse.h"
#include "cli/common/predicted_trace.h"
#include "cli/common/resolve.h"
#include "cli/runtime_estimate.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/units.h"
#include "planner/report/report.h"

namespace zeroplan {
namespace {

constexpr const char* kFooter = R"(Examples:
  zeroplan estimate --params 10B --gpus 16
  zeroplan estimate --model gpt2-10b --gpu-memory 32GB --micro-batch 10 --checkpointing full
  zeroplan estimate --model gpt3-6.7b --gpus 8 --stage 3 --format json -o estimate.json
  zeroplan estimate --model gpt2 --gpus 2 --config ds_config.json
  zeroplan estimate --params 10B --gpus 16 --tokens 200B --gpu-hour-price 2.5
  zeroplan estimate --model gpt2-xl --gpus 2 --micro-batch 8 --runtime deepspeed
  zeroplan estimate --model gpt2-xl --stage 2 --offload-optimizer cpu --trace step.json
Memory is what the built-in executor allocates, to the byte; 'runtime' (context, communicators,
libraries) is the hardware profile's. Times come from the step program played over its streams with
the profile's rates. Nothing here needs a GPU. Exit code 0 even if nothing fits.)";

enum class Format : uint8_t { kTable, kJson, kCsv };

struct EstimateOptions {
  CommonOptions common;
  RuntimeOptions runtime;
  Option<Format> format;
  std::string output, trace;
};

// Rows with a disk that nobody named: what it is taken for.
void NoteDisk(const EstimateInputs& inputs, const CommonOptions& common,
              const HardwareProfile& hardware, Assumptions& assumptions) {
  if (common.cluster.nvme_capacity) return;
  const std::optional<Figure>& capacity = hardware.node.nvme_capacity;
  if (capacity && capacity->source != FigureSource::kDerived) return;
  for (const TrainSetup& setup : inputs.setups) {
    if (setup.zero.offload_optimizer.device != OffloadDevice::kNvme &&
        setup.zero.offload_param.device != OffloadDevice::kNvme) {
      continue;
    }
    assumptions.notes.push_back(
        capacity
            ? fmt::format("NVMe: {} a node by the hardware profile, {}.",
                          FormatBytes(static_cast<uint64_t>(capacity->value)), capacity->reference)
            : "NVMe: the hardware profile does not say how much there is, so it is not "
              "checked; --nvme-capacity sets it.");
    return;
  }
}

// The predicted trace of the one choice that was asked for.
void WriteTrace(const EstimateInputs& inputs, const std::string& file) {
  if (inputs.setups.size() != 1) {
    ThrowUsage(
        "--trace: a trace shows one choice, not {}; give --stage, --offload-optimizer, "
        "--offload-param and --checkpointing one value each, or --config",
        inputs.setups.size());
  }
  WritePredictedTrace(Lower(inputs.model, inputs.setups.front(), inputs.lower), *inputs.costs,
                      file);
}

void RunEstimate(const EstimateOptions& options) {
  const Format format = options.format.value_or(Format::kTable);
  if (options.runtime.IsOther()) {
    if (format == Format::kCsv) ThrowUsage("--format: csv is of zeroplan's own runtime; use json");
    if (!options.trace.empty()) {
      ThrowUsage("--trace: a trace shows zeroplan's own step; leave it or --runtime out");
    }
    RunRuntimeEstimate(options.runtime, options.common, format == Format::kJson, options.output);
    return;
  }
  Assumptions assumptions;
  const CommonOptions& common = options.common;
  CheckWritable({{"--output", options.output}, {"--trace", options.trace}});
  const HardwareProfile hardware = ResolveHardware(common.hardware, assumptions, MeasureHost::kYes);
  EstimateInputs inputs;
  inputs.model = ResolveModel(common.model, common.batch.seq_len, assumptions);
  inputs.cluster = ResolveCluster(common, hardware, assumptions);
  const CostModel costs(hardware, ClusterShape{inputs.cluster.gpus, inputs.cluster.gpus_per_node});
  inputs.costs = &costs;
  const int gpus = inputs.cluster.gpus;
  if (common.config.empty()) {
    inputs.setups = ResolveSetups(common, inputs.model, hardware, gpus, DefaultDtype(hardware),
                                  ChoiceSpace{}, assumptions);
  } else {
    inputs.setups = {ResolveConfig(common, inputs.model, hardware, gpus, assumptions)};
  }
  const TrainSetup& setup = inputs.setups.front();
  inputs.lower = GpuLowerOptions(inputs.model, setup.precision.dtype, hardware.gpu);
  if (common.async_save == AsyncSave::kOn) {
    inputs.lower.async_save = true;
    assumptions.notes.push_back(
        "Host memory counts a copy of the states, from which saves are written beside the steps "
        "(--async-save on).");
  }
  ApplyPacking(common, inputs.lower, assumptions);
  NoteAttention(inputs.model, setup, inputs.lower, hardware, setup.deterministic, assumptions);
  NoteDisk(inputs, common, hardware, assumptions);
  NoteIdleSums(inputs.setups, assumptions);
  inputs.goal = ResolveGoal(common.goal, inputs.setups.front().batch.seq_len);
  if (!options.trace.empty()) WriteTrace(inputs, options.trace);
  const Estimate estimate = EstimateChoices(inputs);
  NoteGuesses(hardware, inputs.cluster, inputs.setups, assumptions);

  if (format != Format::kTable) {
    for (const std::string& note : assumptions.notes) LogInfo("{}", note);
    WriteOutput(options.output,
                format == Format::kJson ? ReportJson(estimate) : ReportCsv(estimate));
    return;
  }
  TableStyle style{options.output.empty() && StdoutTakesColour(), assumptions.assumed,
                   assumptions.notes};
  WriteOutput(options.output, ReportTable(estimate, style));
}

}  // namespace

void RegisterEstimate(Command& app) {
  auto options = std::make_shared<EstimateOptions>();
  Command command =
      app.Add("estimate", "Memory and step time of every ZeRO stage and offload choice");
  command.Footer(kFooter);
  AddModelOptions(command, options->common.model);
  AddClusterOptions(command, options->common);
  AddBatchOptions(command, options->common.batch);
  AddChoiceOptions(command, options->common, /*all_default=*/true);
  AddDeterministicOption(command, options->common);
  AddAsyncSaveOption(command, options->common);
  AddPackingOption(command, options->common);
  AddGoalOptions(command, options->common.goal);
  AddRuntimeOptions(command, options->runtime, "Whose memory and time are estimated");
  command.Value({"Output", "--format", "table|json|csv",
                 "table for people; json (schema zeroplan.estimate/1) and csv for programs, in "
                 "bytes (default table)"},
                options->format, WordIn<Format>({"table", "json", "csv"}));
  command.Text({"Output", "-o,--output", "FILE", "File for the result (default: stdout)"},
               options->output);
  command.Text({"Output", "--trace", "FILE.json",
                "Write the predicted step as a Chrome trace (chrome://tracing, ui.perfetto.dev); "
                "with one choice only"},
               options->trace);
  command.Run([options] { RunEstimate(*options); });
}

}  // namespace zeroplan
