#include "cli/run/train/train_work.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>

#include "cli/common/output.h"
#include "cli/common/planned_hardware.h"
#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/log.h"
#include "core/families/load_model.h"
#include "core/model/model_fields.h"
#include "cost_models/cost_model.h"
#include "executor/checkpoint/hf_weights.h"
#include "executor/train/run_agreement.h"
#include "executor/train/run_open.h"
#include "hwprofiles/guesses.h"
#include "hwprofiles/loader.h"
#include "machine/detect.h"
#include "planner/estimate/choices.h"
#include "planner/request/resolve.h"
#include "text/files/token_dataset.h"

namespace zeroplan {
namespace {

constexpr int kMaxRanks = 1024;

// What no config decides.
void SetRates(const TrainCommand& command, OptimizerConfig& optimizer) {
  optimizer.lr = command.lr.value_or(optimizer.lr);
  optimizer.weight_decay = command.weight_decay.value_or(optimizer.weight_decay);
  optimizer.gradient_clipping = command.max_grad_norm.value_or(optimizer.gradient_clipping);
  if (command.warmup_ratio && command.warmup_steps) {
    ThrowUsage("--warmup-ratio {} and --warmup-steps {} are both given; leave one out",
               command.warmup_ratio.text, command.warmup_steps.text);
  }
  RunScheduleConfig run;
  run.shape = command.lr_schedule.value_or(DecayShape::kConstant);
  run.warmup_share = command.warmup_ratio.value_or(0);
  run.warmup_steps = command.warmup_steps.value_or(0);
  if (command.min_lr) {
    if (run.shape == DecayShape::kConstant) {
      ThrowUsage(
          "--min-lr: {} has no effect on a constant rate; add --lr-schedule linear or cosine",
          command.min_lr.text);
    }
    if (*command.min_lr > optimizer.lr) {
      ThrowUsage(
          "--min-lr: {} is above the rate {} that it is to fall from; use less, or a larger "
          "--lr",
          command.min_lr.text, optimizer.lr);
    }
    run.min_ratio = *command.min_lr / optimizer.lr;
  }
  if (run == RunScheduleConfig{}) return;
  optimizer.schedule.kind = ScheduleKind::kOfRun;
  optimizer.schedule.of_run = run;
}

// The one choice of the command line.
TrainSetup ResolveChoice(const TrainCommand& command, const ModelSpec& model,
                         const HardwareProfile& hardware, Backend backend, int ranks,
                         Assumptions& assumptions) {
  // fp32 is what a CPU computes fastest.
  const Dtype dtype = backend == Backend::kCpu ? Dtype::kF32 : DefaultDtype(hardware);
  const ChoiceSpace plain{
      .stages = {0},
      .offload_optimizer = {OffloadDevice::kNone},
      .offload_param = {OffloadDevice::kNone},
  };
  const std::vector<TrainSetup> setups =
      ResolveSetups(command.common, model, hardware, ranks, dtype, plain, assumptions);
  if (setups.size() != 1) {
    ThrowUsage(
        "train runs one choice, not {}: give --stage, --offload-optimizer, --offload-param and "
        "--checkpointing one value each",
        setups.size());
  }
  TrainSetup setup = setups.front();
  SetRates(command, setup.optimizer);
  return setup;
}

// The setup from --config, or from the command line.
TrainSetup ResolveSetup(const TrainCommand& command, const ModelSpec& model,
                        const HardwareProfile& hardware, Backend backend, int ranks,
                        Assumptions& assumptions) {
  if (ranks > kMaxRanks) {
    ThrowUsage("--gpus: {} is not allowed; use a whole number from 1 to {}", ranks, kMaxRanks);
  }
  const std::string& config = command.common.config;
  TrainSetup setup = config.empty()
                         ? ResolveChoice(command, model, hardware, backend, ranks, assumptions)
                         : ResolveConfig(command.common, model, hardware, ranks, assumptions);
  if (!command.nvme_path.empty()) {
    setup.zero.offload_optimizer.nvme_path = setup.zero.offload_param.nvme_path = command.nvme_path;
  }
  ValidateSetup(setup, config.empty() ? "command line" : config);
  NoteIdleSums(std::span(&setup, 1), assumptions);
  return setup;
}

// Whose weights the run starts from. A folder that holds some was most likely meant with them.
std::string WeightsFolder(const TrainCommand& command, const std::string& model_folder) {
  if (command.fresh_weights && !command.init_from.empty()) {
    ThrowUsage("--fresh-weights and --init-from {} are both given; leave one out",
               command.init_from);
  }
  if (!command.init_from.empty()) return command.init_from;
  if (command.fresh_weights || model_folder.empty()) return "";
  return HoldsWeights(model_folder) ? model_folder : "";
}

// What the run starts from.
TrainWork WorkOfWeights(const TrainCommand& command) {
  TrainWork work;
  const std::string& name = command.common.model.model;
  NamedModel model;
  if (!name.empty()) model = FindModel(name);
  work.model_folder = model.folder.string();
  work.weights_folder = WeightsFolder(command, work.model_folder);
  if (!model.hub_name.empty() && work.weights_folder.empty() && !command.fresh_weights) {
    ThrowUsage(
        "--model: the weights of {} are not here, and nothing is downloaded; fetch them with 'hf "
        "download {}', or add --fresh-weights to start from random ones",
        name, model.hub_name);
  }
  return work;
}

// Saves that steps could go on beside: one at the end has none.
bool SavesBetweenSteps(const TrainCommand& command) {
  return !command.save.empty() && (command.save_every.has_value() || command.run.keep_best);
}

void ResolveAsyncSave(const TrainCommand& command, TrainWork& work) {
  const AsyncSave asked = command.common.async_save.value_or(AsyncSave::kIfItFits);
  if (asked == AsyncSave::kOn && !SavesBetweenSteps(command)) {
    ThrowUsage(
        "--async-save: on has no effect without saves between steps; add --save DIR and "
        "--save-every STEPS or --keep-best, or leave it out");
  }
  work.lower.async_save = SavesBetweenSteps(command) && asked != AsyncSave::kOff;
  work.async_save_if_fits = work.lower.async_save && asked == AsyncSave::kIfItFits;
}

// The program is the planned one: what its memory was counted with stays.
void CheckAsyncSaveOfPlan(const TrainCommand& command, const PlanFile& plan,
                          Assumptions& assumptions) {
  const AsyncSave asked = command.common.async_save.value_or(AsyncSave::kIfItFits);
  const bool planned = plan.lower.async_save;
  if (asked == (planned ? AsyncSave::kOff : AsyncSave::kOn)) {
    ThrowUsage(
        "--async-save: {} is not allowed: {} was planned {} the memory of a copy to save "
        "from; leave the option out, or plan again with --async-save {}",
        planned ? "off" : "on", command.plan, planned ? "with" : "without", planned ? "off" : "on");
  }
  if (!planned && SavesBetweenSteps(command)) {
    assumptions.notes.push_back(
        fmt::format("Saves: steps wait for them; {} was planned without the memory of a copy to "
                    "save from ('plan --async-save auto' counts it).",
                    command.plan));
  }
}

TrainWork WorkOfPlan(const TrainCommand& command, Backend backend, Assumptions& assumptions) {
  TrainWork work = WorkOfWeights(command);
  work.plan = ResolvePlan(command.plan, command.common, assumptions);
  const PlanFile& plan = *work.plan;
  work.model = plan.model;
  work.setup = plan.setup;
  if (command.common.deterministic && !plan.setup.deterministic) {
    work.setup.deterministic = true;
    if (backend == Backend::kCuda) {
      assumptions.notes.push_back(fmt::format(
          "--deterministic: {} was planned without it, so steps may take longer than planned; "
          "'plan --deterministic' knows by how much.",
          command.plan));
    }
  }
  work.lower = plan.lower;
  CheckAsyncSaveOfPlan(command, plan, assumptions);
  if (!plan.lower.checkpoints && !command.save.empty()) {
    ThrowUsage("--save: {} was planned without checkpoints; leave the option out, or plan again",
               command.plan);
  }
  if (!plan.lower.checkpoints && !work.weights_folder.empty()) {
    ThrowUsage(
        "{}: {} was planned without checkpoints, and cannot start from the weights in {}; plan "
        "again, or use --fresh-weights",
        command.init_from.empty() ? "--model" : "--init-from", command.plan, work.weights_folder);
  }
  if (!command.nvme_path.empty()) {
    work.setup.zero.offload_optimizer.nvme_path = work.setup.zero.offload_param.nvme_path =
        command.nvme_path;
  }
  if (backend == Backend::kCuda && plan.lower.backend == Backend::kCpu) {
    ThrowUsage("--backend: cuda is not allowed: {} was planned for the CPU; use cpu, or plan again",
               command.plan);
  }
  if (backend == Backend::kCpu && plan.lower.backend == Backend::kCuda) {
    assumptions.notes.push_back(
        fmt::format("Rehearsal: the program planned for {} x {} runs on the CPU.",
                    plan.cluster.gpus, plan.cluster.gpu_name));
  }
  return work;
}

TrainWork WorkOfConfig(const TrainCommand& command, const HardwareProfile& hardware,
                       Backend backend, int ranks, Assumptions& assumptions) {
  TrainWork work = WorkOfWeights(command);
  work.model = ResolveModel(command.common.model, command.common.batch.seq_len, assumptions);
  work.setup = ResolveSetup(command, work.model, hardware, backend, ranks, assumptions);
  if (backend == Backend::kCuda) {
    work.lower = GpuLowerOptions(work.model, work.setup.precision.dtype, hardware.gpu);
  }
  work.lower.checkpoints = !command.save.empty() || !work.weights_folder.empty();
  work.lower.document_borders = command.common.packing == Packing::kDocuments;
  ResolveAsyncSave(command, work);
  return work;
}

// What some options need of others.
void CheckTogether(const TrainCommand& command, const TrainWork& work) {
  const TrainOptions& run = command.run;
  if (command.steps && command.epochs) {
    ThrowUsage("--steps {} and --epochs {} are both given; leave one out", command.steps.text,
               command.epochs.text);
  }
  if (run.strict_resume && !run.resume) {
    ThrowUsage("--strict-resume: says what --resume may not do; add --resume, or leave it out");
  }
  const auto needs_save = [&](const char* option, const std::string& text) {
    if (!text.empty() && command.save.empty()) ThrowUsage("{}: {} needs --save DIR", option, text);
  };
  needs_save("--save-every", command.save_every.text);
  needs_save("--keep", command.keep.text);
  needs_save("--final-weights", command.best_weights.text);
  if (run.keep_best && command.save.empty()) ThrowUsage("--keep-best: needs --save DIR");
  const auto needs_validation = [&](bool given, const char* option) {
    if (given && !command.validate_every) {
      ThrowUsage("{}: needs --validate-every STEPS, which makes the losses that it goes by",
                 option);
    }
  };
  needs_validation(run.keep_best, "--keep-best");
  needs_validation(command.patience.has_value(), "--patience");
  if (command.best_weights.value_or(false) && !run.keep_best) {
    ThrowUsage("--final-weights: best needs --keep-best, which keeps that checkpoint");
  }
  needs_save("--save-dtype", command.save_dtype.text);
  needs_save("--max-shard-size", command.max_shard_size.text);
  SwapFolder(work.setup.zero);  // the run asks for it: two folders are refused here
  for (const std::string& fact : run.allow_change) {
    if (std::find(std::begin(kHeldFacts), std::end(kHeldFacts), fact) == std::end(kHeldFacts)) {
      ThrowUsage("--allow-change {}: what a resume keeps to is data, order and seq-len", fact);
    }
  }
  if (!run.allow_change.empty() && !run.resume) {
    ThrowUsage("--allow-change {}: says what a resume may change; add --resume, or leave it out",
               run.allow_change.front());
  }
}

}  // namespace

TrainWork ResolveWork(const TrainCommand& command, Backend backend, std::optional<int> ranks,
                      MeasureHost measure, Assumptions& assumptions) {
  const HardwareFields& hardware = command.common.hardware;
  const Given<uint64_t>& gpu_memory = command.common.cluster.gpu_memory;
  RefuseOnCpu(backend, "--hw", hardware.profile);
  RefuseOnCpu(backend, "--gpu-memory", gpu_memory.text);
  RefuseOnCpu(backend, "--gpu-reserve", command.common.cluster.gpu_reserve.text);
  HardwareProfile profile =
      backend == Backend::kCuda
          ? ResolveHardware(hardware, command.common.cluster, assumptions, measure)
          : LoadProfile(std::string(kDefaultProfile));
  TrainWork work =
      command.plan.empty()
          ? WorkOfConfig(command, profile, backend,
                         ranks.value_or(command.common.cluster.gpus.value_or(1)), assumptions)
          : WorkOfPlan(command, backend, assumptions);
  CheckPackingAsked(command, work);
  work.hardware = std::move(profile);
  work.gpu_memory_limit = gpu_memory;
  work.hardware_is_known = !hardware.profile.empty() || assumptions.detected_gpus.has_value();
  if (backend == Backend::kCuda && work.hardware_is_known) {
    const bool ordered = work.plan ? work.plan->setup.deterministic : work.setup.deterministic;
    NoteAttention(work.model, work.setup, work.lower, work.hardware, ordered, assumptions);
    const std::string note = NcclNote(work.hardware, NcclEnvironment());
    if (work.setup.batch.world_size > 1 && !note.empty()) assumptions.notes.push_back(note);
  }
  return work;
}

Program LowerWork(const TrainWork& work) {
  if (!work.plan) return Lower(work.model, work.setup, work.lower);
  Program program = CheckedProgram(*work.plan);
  // What the program does not depend on, such as the swap folder and the schedule's length.
  program.setup = work.setup;
  return program;
}

TrainOptions ResolveTrainOptions(const TrainCommand& command, const TrainWork& work) {
  CheckTogether(command, work);
  TrainOptions options = command.run;
  options.steps = command.steps.value_or(options.steps);
  options.epochs = command.epochs;
  options.seed = command.seed;
  options.shuffle = !command.no_shuffle;
  options.save_dir = command.save;
  options.save_every = command.save_every.value_or(0);
  options.keep = command.keep.value_or(options.keep);
  options.init_from = work.weights_folder;
  options.best_weights = command.best_weights.value_or(false);
  options.patience = command.patience.value_or(0);
  HfExportOptions& final_weights = options.final_weights;
  final_weights.dtype = command.save_dtype.value_or(final_weights.dtype);
  final_weights.max_shard_bytes = command.max_shard_size.value_or(final_weights.max_shard_bytes);
  final_weights.source = work.companions_folder();
  options.validate_every = command.validate_every.value_or(0);
  options.validation_batches = command.validation_batches;
  options.max_bad_steps = command.max_bad_steps.value_or(options.max_bad_steps);
  options.step_timeout = command.step_timeout;
  options.skip_loss_spike = command.skip_loss_spike.value_or(0);
  options.engine.threads_per_rank = command.threads.value_or(0);
  options.trace_file = command.trace;
  return options;
}

namespace {

void CheckModel(const PlanFile& plan, const ModelSpec& given, const std::string& option) {
  ForEachField(plan.model, given,
               [&]<typename T>(const ModelField& field, const T& of_plan, const T& of_model) {
                 if (std::is_same_v<T, std::string> || of_plan == of_model) return;  // any name
                 ThrowUsage(
                     "{}: {}: the plan {} has {}, this model {}; leave the option out to train the "
                     "plan's model, or plan again",
                     option, field.key, plan.source, FieldText(of_plan), FieldText(of_model));
               });
}

}  // namespace

PlanFile ResolvePlan(const std::string& file, const Request& options, Assumptions& assumptions) {
  PlanFile plan = ReadPlan(ReadTextFile(file), file);
  const Given<int>& gpus = options.cluster.gpus;
  if (gpus && *gpus != plan.cluster.gpus) {
    ThrowUsage("--gpus: {} is not allowed: {} is for {}; leave the option out, or plan again",
               *gpus, file, plan.cluster.gpus);
  }
  const ModelFields& model = options.model;
  if (model.given()) {
    CheckModel(plan, ResolveModel(model, options.batch.seq_len, assumptions),
               model.params ? "--params " + model.params.text : "--model " + model.model);
  }
  return plan;
}

namespace {

bool PlannedWithBorders(const TrainWork& work) {
  return work.plan && work.plan->lower.document_borders;
}

}  // namespace

void CheckPackingAsked(const TrainCommand& command, const TrainWork& work) {
  const Given<Packing>& asked = command.common.packing;
  const bool planned = PlannedWithBorders(work);
  if (!work.plan || !asked || (*asked == Packing::kDocuments) == planned) return;
  ThrowUsage(
      "--packing: {} is not allowed: {} was planned {} --packing documents; leave the option out, "
      "or plan again {} it",
      PackingName(*asked), command.plan, planned ? "with" : "without",
      planned ? "without" : "with");
}

Packing SettlePacking(const TrainCommand& command, Backend backend,
                      std::span<const std::string> data, TrainWork& work) {
  const auto settle = [&] {
    if (command.common.packing) return *command.common.packing;
    if (PlannedWithBorders(work)) return Packing::kDocuments;
    if (!TokenDataset::Open(data).has_mask()) return Packing::kStream;
    if (work.plan) {
      LogInfo(
          "Packing: off, one conversation a sequence, padded; {} was planned without --packing "
          "documents.",
          command.plan);
      return Packing::kOff;
    }
    if (backend == Backend::kCuda) {
      const std::string plain = PlainWithinDocuments(work.model, work.setup, work.hardware.gpu);
      if (!plain.empty()) {
        LogInfo("Packing: off, one conversation a sequence, padded, as {}.", plain);
        return Packing::kOff;
      }
    }
    LogInfo("Packing: documents, as the data is conversations; --packing off pads each instead.");
    return Packing::kDocuments;
  };
  const Packing packing = settle();
  work.lower.document_borders = packing == Packing::kDocuments;
  return packing;
}

namespace {

std::function<void(ChromeTrace&)> PredictionOn(const HardwareProfile& hardware, ClusterShape shape,
                                               const Program& program) {
  return [hardware, shape, &program](ChromeTrace& trace) {
    AddPredictedStep(program, CostModel(hardware, shape), trace);
  };
}

}  // namespace

std::function<void(ChromeTrace&)> PredictionForTrace(const TrainWork& work, const Program& program,
                                                     Backend backend, int ranks_per_host) {
  constexpr const char* kMeasuredAlone = "--trace: what was measured alone, no predicted step: {}";
  if (backend == Backend::kCuda) {
    const ClusterShape shape{program.setup.batch.world_size, ranks_per_host};
    if (shape.nodes() == 1 || work.hardware.network) {
      return PredictionOn(work.hardware, shape, program);
    }
    LogInfo(kMeasuredAlone, "hardware profile " + work.hardware.name + " has no network");
    return {};
  }
  if (!work.plan || program.backend == Backend::kCpu) {
    LogInfo(kMeasuredAlone, "there is no prediction for the CPU backend");
    return {};
  }
  if (!KnowsPlannedHardware(*work.plan)) {
    LogInfo(kMeasuredAlone,
            "the plan's profile " + work.plan->cluster.hardware + " is not built in");
    return {};
  }
  const Cluster& cluster = work.plan->cluster;
  return PredictionOn(PlannedHardware(*work.plan), {cluster.gpus, cluster.gpus_per_node}, program);
}

}  // namespace zeroplan
