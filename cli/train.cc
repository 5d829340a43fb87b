// zeroplan train: runs a plan or a config.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/app.h"
#include "cli/common_options.h"
#include "cli/host_fit.h"
#include "cli/parse.h"
#include "cli/progress.h"
#include "cli/train_plan.h"
#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/log.h"
#include "core/base/units.h"
#include "core/lowering/lower.h"
#include "core/program/verify.h"
#include "cost_models/memory_walk.h"
#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/train/interrupt.h"
#include "executor/train/trainer.h"
#include "hwprofiles/loader.h"
#include "planner/choices.h"

namespace zeroplan {
namespace {

constexpr const char* kFooter = R"(Examples:
  zeroplan train --model gpt2 --data corpus.txt --stage 2 --gpus 2 --steps 100 --save out
  zeroplan train --plan plan.json --data corpus.bin --save out
  zeroplan train --model out --config ds_config.json --data corpus.bin --save out --resume
The CPU backend runs ranks as threads; Ctrl-C saves and exits 130, --resume continues.)";

struct TrainCommand {
  CommonOptions common;
  std::string plan;
  std::vector<std::string> data;
  std::string backend = "cpu";
  std::string steps = "100", save_every, validate_every, seed, threads, lr;
  std::string save, init_from, metrics, trace, nvme_path;
  bool resume = false, no_shuffle = false;
};

void AddTrainOptions(CLI::App& command, TrainCommand& options) {
  command
      .add_option("--data", options.data,
                  "Text files or folders (bytes are tokens), or token files (.bin, .u16)")
      ->type_name("PATH...")
      ->required()
      ->group("Data");
  command
      .add_flag("--no-shuffle", options.no_shuffle,
                "Take samples in the stream's order; no validation part")
      ->group("Data");
  auto add = [&](const char* group, const char* name, std::string& value, const char* type,
                 const char* help) {
    AddOption(command, group, name, value, type, help);
  };
  add("Plan", "--plan", options.plan, "FILE",
      "What 'zeroplan plan --plan-out' wrote: model, ranks, batch and choice are the plan's, and "
      "the program is the planned one or nothing runs");
  const char* run = "Run";
  add(run, "--backend", options.backend, "cpu|cuda", "Where it runs (default cpu)");
  add(run, "--steps", options.steps, "COUNT",
      "Optimizer steps, those before a resume included (default 100)");
  add(run, "--lr", options.lr, "RATE",
      "Constant learning rate (default 1e-3; --config or --plan decides otherwise)");
  add(run, "--seed", options.seed, "NUMBER", "Of weights and data order (default 1)");
  add(run, "--threads", options.threads, "COUNT", "CPU threads a rank (default: cores / ranks)");
  add(run, "--nvme-path", options.nvme_path, "DIR",
      "Folder of the swap file where something is offloaded to nvme");
  add(run, "--init-from", options.init_from, "DIR",
      "Start from Hugging Face weights in this folder");
  add(run, "--save", options.save, "DIR",
      "Keep checkpoints here and, at the end, config.json and model.safetensors");
  add(run, "--save-every", options.save_every, "STEPS",
      "Also save every so many steps (default: at the end only)");
  command
      .add_flag("--resume", options.resume,
                "Continue from the latest checkpoint in --save, if there is one")
      ->group(run);
  const char* seen = "What you see";
  add(seen, "--validate-every", options.validate_every, "STEPS",
      "Validation loss every so many steps (default: at the end)");
  add(seen, "--metrics", options.metrics, "FILE.jsonl", "Write one JSON object a step");
  add(seen, "--trace", options.trace, "FILE.json",
      "Write a Chrome trace of the run (chrome://tracing); keep runs short");
}

// The setup from --config, or from the command line.
TrainSetup ResolveSetup(TrainCommand& options, const ModelSpec& model,
                        const HardwareProfile& hardware, Assumptions& assumptions) {
  if (options.common.dtype.empty() && options.common.config.empty()) {
    options.common.dtype = "fp32";  // what a CPU computes fastest
    assumptions.assumed.push_back("--dtype fp32");
  }
  const int ranks =
      static_cast<int>(ParseOptionalWhole(options.common.gpus, "--gpus", 1, 1024).value_or(1));
  TrainSetup setup;
  if (!options.common.config.empty()) {
    if (!options.lr.empty()) ThrowUsage("--lr: not allowed with --config, which decides it");
    setup = ResolveConfig(options.common, model, hardware, ranks, assumptions);
  } else {
    setup = ResolveBaseSetup(options.common, model, hardware, ranks, assumptions);
    CommonOptions& common = options.common;
    if (common.stage.empty()) common.stage = "0";
    if (common.offload_optimizer.empty()) common.offload_optimizer = "none";
    if (common.offload_param.empty()) common.offload_param = "none";
    const ChoiceSpace space = ResolveChoices(common, setup, assumptions);
    const std::vector<TrainSetup> setups = EnumerateSetups(setup, space);
    if (setups.size() != 1) {
      ThrowUsage(
          "train runs one choice, not {}: give --stage, --offload-optimizer, --offload-param and "
          "--checkpointing one value each",
          setups.size());
    }
    setup = setups.front();
    if (!options.lr.empty()) {
      char* end = nullptr;
      setup.optimizer.lr = std::strtod(options.lr.c_str(), &end);
      const bool positive = setup.optimizer.lr > 0 && setup.optimizer.lr < 1e3;
      if (*end != '\0' || !positive) {
        ThrowUsage("--lr: {} is not allowed; use a number above 0, such as 3e-4", options.lr);
      }
    }
  }
  if (!options.nvme_path.empty()) {
    setup.zero.offload_optimizer.nvme_path = setup.zero.offload_param.nvme_path = options.nvme_path;
  }
  ValidateSetup(setup, options.common.config.empty() ? "command line" : options.common.config);
  return setup;
}

// One swap file holds all that is offloaded to disk.
std::string SwapDir(const TrainSetup& setup) {
  const auto& optimizer = setup.zero.offload_optimizer;
  const auto& param = setup.zero.offload_param;
  const bool both =
      optimizer.device == OffloadDevice::kNvme && param.device == OffloadDevice::kNvme;
  if (both && optimizer.nvme_path != param.nvme_path) {
    ThrowUsage(
        "offload_param.nvme_path: {} differs from offload_optimizer's {}; one swap file holds "
        "both: name one folder, or override them with --nvme-path",
        param.nvme_path, optimizer.nvme_path);
  }
  return optimizer.device == OffloadDevice::kNvme ? optimizer.nvme_path : param.nvme_path;
}

// What is run, and what a checkpoint remembers it by.
struct Work {
  ModelSpec model;
  TrainSetup setup;
  LowerOptions lower;
  std::optional<PlanFile> plan;
  std::string config_digest;
};

Work WorkOfPlan(const TrainCommand& command, Assumptions& assumptions) {
  Work work;
  work.plan = ResolvePlan(command.plan, command.common, command.lr, assumptions);
  const PlanFile& plan = *work.plan;
  work.model = plan.model;
  work.setup = plan.setup;
  work.lower = plan.lower;
  work.config_digest = DigestText(plan.config_text);
  const bool wants_checkpoints = !command.save.empty() || !command.init_from.empty();
  if (wants_checkpoints && !plan.lower.checkpoints) {
    ThrowUsage("{}: {} was planned without checkpoints; leave the option out, or plan again",
               command.save.empty() ? "--init-from" : "--save", command.plan);
  }
  if (!command.nvme_path.empty()) {
    work.setup.zero.offload_optimizer.nvme_path = work.setup.zero.offload_param.nvme_path =
        command.nvme_path;
  }
  if (plan.lower.backend == Backend::kCuda) {
    assumptions.notes.push_back(
        fmt::format("Rehearsal: the program planned for {} x {} runs on the CPU.",
                    plan.cluster.gpus, plan.cluster.gpu_name));
  }
  return work;
}

Work WorkOfConfig(TrainCommand& command, Assumptions& assumptions) {
  Work work;
  work.model = ResolveModel(command.common, assumptions);
  const HardwareProfile hardware = LoadProfile(std::string(kDefaultProfile));
  work.setup = ResolveSetup(command, work.model, hardware, assumptions);
  work.lower.checkpoints = !command.save.empty() || !command.init_from.empty();
  const std::string& config = command.common.config;
  work.config_digest = DigestText(config.empty() ? SetupLabel(work.setup) : ReadTextFile(config));
  return work;
}

Program LowerWork(const Work& work) {
  if (!work.plan) return Lower(work.model, work.setup, work.lower);
  Program program = CheckedProgram(*work.plan);
  // What the program does not depend on, such as the swap folder and the schedule's length.
  program.setup = work.setup;
  return program;
}

TrainOptions MakeTrainOptions(const TrainCommand& command, const Work& work) {
  TrainOptions options;
  options.data = command.data;
  options.steps = ParseWhole(command.steps, "--steps", 1, kMaxBatch);
  if (const auto seed = ParseOptionalWhole(command.seed, "--seed", 1, INT64_MAX)) {
    options.seed = static_cast<uint64_t>(*seed);
  }
  options.shuffle = !command.no_shuffle;
  options.save_dir = command.save;
  options.save_every =
      ParseOptionalWhole(command.save_every, "--save-every", 1, kMaxBatch).value_or(0);
  if (options.save_every > 0 && command.save.empty()) {
    ThrowUsage("--save-every: {} needs --save DIR", command.save_every);
  }
  options.resume = command.resume;
  options.init_from = command.init_from;
  options.validate_every =
      ParseOptionalWhole(command.validate_every, "--validate-every", 1, kMaxBatch).value_or(0);
  options.threads_per_rank =
      static_cast<int>(ParseOptionalWhole(command.threads, "--threads", 1, 1024).value_or(0));
  options.swap_dir = SwapDir(work.setup);
  options.trace_file = command.trace;
  options.config_digest = work.config_digest;
  return options;
}

void RunTrain(TrainCommand& command) {
  if (command.backend != "cpu") {
    ThrowUsage(
        "--backend: {} is not in this build; use cpu, which runs the same program with ranks as "
        "threads",
        command.backend);
  }
  Assumptions assumptions;
  Work work =
      command.plan.empty() ? WorkOfConfig(command, assumptions) : WorkOfPlan(command, assumptions);
  for (const std::string& note : assumptions.notes) LogInfo("{}", note);
  const TrainOptions options = MakeTrainOptions(command, work);
  // A schedule without a length of its own ends with the run.
  ScheduleConfig& schedule = work.setup.optimizer.schedule;
  if (schedule.total_steps == 0) schedule.total_steps = options.steps;
  const Program program = LowerWork(work);
  VerifyOrThrow(program);
  CheckFitsHost(program, AvailableHostBytes());
  const MemoryReport memory = WalkMemory(program);
  std::unique_ptr<MetricsFile> metrics;
  if (!command.metrics.empty())
    metrics = std::make_unique<MetricsFile>(command.metrics, command.resume);
  const InterruptScope interrupts;
  Progress progress(program, memory, options.steps, metrics.get());
  const RunReport report = Train(program, options, progress);
  if (report.interrupted) {
    throw Error(
        ExitCode::kInterrupted,
        command.save.empty()
            ? fmt::format("interrupted after step {}; nothing saved (no --save)", report.steps)
            : fmt::format("interrupted after step {}; saved, continue with --resume",
                          report.steps));
  }
}

}  // namespace

void RegisterTrain(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Trains a model with exactly the planned memory");
  auto options = std::make_shared<TrainCommand>();
  AddModelOptions(*command, options->common);
  AddTrainOptions(*command, *options);
  command
      ->add_option("--gpus", options->common.gpus,
                   "Ranks; on the CPU backend threads (default 1, or the plan's)")
      ->type_name("COUNT")
      ->group("Run");
  AddBatchOptions(*command, options->common);
  AddZeroOptions(*command, options->common, false);
  command->footer(kFooter);
  command->callback([options] { RunTrain(*options); });
}

}  // namespace zeroplan
