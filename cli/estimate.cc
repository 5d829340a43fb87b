// zeroplan estimate: every ZeRO stage and offload choice, its memory, its traffic and its time.
#include "planner/estimate/estimate.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "cli/common/command_files.h"
#include "cli/common/commands.h"
#include "cli/common/output.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/long_work.h"
#include "machine/detect.h"
#include "planner/page/plan_page.h"
#include "planner/report/report.h"
#include "planner/request/data_fields.h"
#include "planner/request/parse.h"
#include "planner/request/plan_answer.h"
#include "planner/request/resolved.h"

namespace zeroplan {
namespace {

constexpr const char* kEstimateFooter = R"(Examples:
  zeroplan estimate --params 10B --gpus 16
  zeroplan estimate --model gpt2-10b --gpu-memory 32GB --micro-batch 10 --checkpointing full
  zeroplan estimate --model gpt3-6.7b --gpus 8 --stage 3 --format json -o estimate.json
  zeroplan estimate --model gpt2 --gpus 2 --config ds_config.json
  zeroplan estimate --params 10B --gpus 16 --tokens 200B --gpu-hour-price 2.5
  zeroplan estimate --model models/smollm2 --gpus 1 --data chats.jsonl --epochs 3
  zeroplan estimate --model gpt2-xl --gpus 2 --micro-batch 8 --runtime deepspeed
  zeroplan estimate --model gpt2-xl --stage 2 --offload-optimizer cpu --trace step.json
Memory is what the built-in executor allocates, to the byte; 'runtime' (context, communicators,
libraries) is the hardware profile's. Times come from the step program played over its streams with
the profile's rates. Nothing here needs a GPU. Exit code 0 even if nothing fits.)";

// Text, JSON, CSV.
const OutputKind kResult = {
    "an estimate that zeroplan wrote",
    {"on one GPU at its peak", "zeroplan.estimate/", "model,params,seq_len,hw"}};

enum class Format : uint8_t { kText, kJson, kCsv };

struct EstimateOptions {
  Request common;
  Given<Format> format;
  std::string output, trace, report;
  bool explain = false;
};

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

void NoteConfigLoss(const Request& request, const Estimate& estimate, Assumptions& assumptions) {
  if (!request.config.given() || estimate.choices.size() != 1) return;
  const auto& speed = estimate.choices.front().time.tokens_per_second;
  if (!speed || !estimate.choices.front().fits) return;
  Assumptions unused;
  PlanRequest asked;
  asked.common = request;
  const BatchSpec& batch = estimate.choices.front().setup.batch;
  if (std::string loss = ConfigLoss(ResolvedPlan(asked, unused), batch, *speed); !loss.empty()) {
    assumptions.notes.push_back(std::move(loss));
  }
}

void Append(const EstimateInputs& inputs, Estimate& estimate) {
  if (inputs.setups.empty()) return;
  for (ChoiceEstimate& choice : EstimateChoices(inputs).choices) {
    estimate.choices.push_back(std::move(choice));
  }
}

// Adds the choices without offload again, with full recompute, unless the request sets recompute.
void AddFullRecompute(const Request& request, const EstimateInputs& inputs, Estimate& estimate) {
  if (request.settings.checkpointing || request.config.given()) return;
  EstimateInputs full = inputs;
  std::erase_if(full.setups, [](const TrainSetup& setup) {
    return setup.zero.offload_optimizer.device != OffloadDevice::kNone ||
           setup.zero.offload_param.device != OffloadDevice::kNone ||
           setup.recompute.kind != RecomputeKind::kNone;
  });
  for (TrainSetup& setup : full.setups) setup.recompute = FullRecompute();
  Append(full, estimate);
}

bool OnDisk(const TrainSetup& setup) {
  return setup.zero.offload_optimizer.device == OffloadDevice::kNvme ||
         setup.zero.offload_param.device == OffloadDevice::kNvme;
}

// The choices with a disk, or those without.
EstimateInputs Only(bool on_disk, EstimateInputs inputs) {
  std::erase_if(inputs.setups, [&](const TrainSetup& setup) { return OnDisk(setup) != on_disk; });
  return inputs;
}

bool NamesDisk(const Request& request) {
  const auto on_disk = [](const Given<std::vector<OffloadDevice>>& asked) {
    return asked && std::count(asked->begin(), asked->end(), OffloadDevice::kNvme) > 0;
  };
  return request.cluster.nvme_capacity || request.hardware.nvme_drives || request.config.given() ||
         on_disk(request.settings.offload_optimizer) || on_disk(request.settings.offload_param);
}

std::string ScreenOf(const EstimateOptions& options, const ResolvedEstimate& request,
                     Estimate& estimate, const Assumptions& assumptions, const TableStyle& style) {
  const Request& common = options.common;
  AddFullRecompute(common, request.inputs(), estimate);
  const auto fit = [](const ChoiceEstimate& choice) { return choice.fits; };
  // Rows on a disk are for where one is named, or nothing else fits.
  const bool has_disks = std::any_of(estimate.choices.begin(), estimate.choices.end(),
                                     [](const auto& choice) { return OnDisk(choice.setup); });
  if (!has_disks && std::none_of(estimate.choices.begin(), estimate.choices.end(), fit)) {
    Append(Only(/*on_disk=*/true, request.inputs()), estimate);
  }
  ScreenNotes notes;
  notes.taken = Taken(assumptions);
  const auto fits = std::find_if(estimate.choices.begin(), estimate.choices.end(), fit);
  if (fits != estimate.choices.end()) {
    notes.doubts = Doubts(common, request.hardware(), estimate.model, estimate.recipe, *fits,
                          estimate.cluster);
  }
  const size_t name = std::string_view("zeroplan ").size();
  if (std::string command = OwnCommand({"--report"}, {}); command.substr(name, 8) == "estimate") {
    notes.next = command.replace(name, 8, "plan");
  }
  return EstimateScreen(estimate, style, NamesDisk(common), notes);
}

void RunEstimate(EstimateOptions options) {
  if (const std::string note = PlanForOthers(options.common); !note.empty()) LogInfo("{}", note);
  const Format format = options.format.value_or(Format::kText);
  if (!options.trace.empty() && !options.common.runtime.of().has_programs()) {
    ThrowUsage("--trace: a trace shows zeroplan's own step; leave it or --runtime out");
  }
  Assumptions assumptions;
  const Request& common = options.common;
  CheckData(common);
  const ResolvedEstimate request(common, assumptions);
  const EstimateInputs& inputs = request.inputs();
  if (!options.trace.empty()) WriteTrace(inputs, options.trace);
  const LongWork work(fmt::format("Lowering {} choices", inputs.setups.size()), /*at_once=*/true);
  const bool screen = format == Format::kText && options.output.empty() && !options.explain;
  EstimateInputs shown = Only(/*on_disk=*/false, inputs);
  if (!screen || !options.report.empty() || NamesDisk(common) || shown.setups.empty())
    shown = inputs;
  Estimate estimate = EstimateChoices(shown);
  if (!screen) NoteConfigLoss(common, estimate, assumptions);
  if (!options.report.empty()) {
    WriteOutput(options.report,
                RenderPage(EstimatePage(estimate, inputs, ReportOrigin(assumptions))));
  }

  if (format != Format::kText) {
    for (const std::string& note : assumptions.notes) LogInfo("{}", note);
    WriteOutput(options.output,
                format == Format::kJson ? ReportJson(estimate) : ReportCsv(estimate));
    return;
  }
  LayOutFor(options.output);
  TableStyle style{PageColumns(), options.output.empty() && StdoutTakesColour(), assumptions.first,
                   assumptions.assumed, assumptions.notes};
  WriteReport(options.output,
              screen ? ScreenOf(options, request, estimate, assumptions, style)
                     : ReportTable(estimate, style),
              /*coloured=*/true);
}

}  // namespace

void RegisterEstimate(Command& app, DataReader read) {
  auto options = std::make_shared<EstimateOptions>();
  Command command =
      app.Add("estimate", "Memory and step time of every ZeRO stage and offload choice");
  command.Footer(kEstimateFooter);
  options->common.goal.data.read = std::move(read);
  options->common.hardware.find = FindThisMachine;
  AddEstimateFields(command, options->common);
  command.Value({"Output", "--format", "text|json|csv",
                 "text for people; json (schema zeroplan.estimate/1) and csv for programs, in "
                 "bytes (default text)"},
                options->format, WordIn<Format>({"text", "json", "csv"}));
  command.Text({.group = "Output",
                .name = "-o,--out",
                .type = "FILE",
                .help = "File for the result (default: stdout)",
                .path = PathRole::Writes(kResult)},
               options->output);
  command.Text({.group = "Output",
                .name = "--trace",
                .type = "FILE.json",
                .help = "Write the predicted step as a Chrome trace (chrome://tracing, "
                        "ui.perfetto.dev); with one choice only",
                .path = PathRole::Writes(kTrace)},
               options->trace);
  command.Flag("Output", "--explain",
               "Also print traffic, the parts of a step's time, why choices do not fit, the margin "
               "of error and all that is assumed",
               options->explain);
  AddReportOption(command, "Output", "memory, time and throughput of every choice",
                  options->report);
  command.Progress("Output");
  command.Run([options] { RunEstimate(*options); });
}

}  // namespace zeroplan
