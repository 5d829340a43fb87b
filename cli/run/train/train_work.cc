#include "cli/run/train/train_work.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <span>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

#include "cli/common/planned_hardware.h"
#include "cli/run/train/host_fit.h"
#include "cli/run/train/open_choice.h"
#include "cli/run/train/train_data.h"
#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/log.h"
#include "core/model/lora.h"
#include "core/model/model_fields.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/checkpoint/hf_weights.h"
#include "executor/train/run_agreement.h"
#include "executor/train/run_open.h"
#include "hwprofiles/guesses.h"
#include "hwprofiles/loader.h"
#include "machine/detect.h"
#include "planner/estimate/choices.h"
#include "planner/request/resolve.h"

namespace zeroplan {
namespace {

constexpr int kMaxRanks = 1024;

bool AsksSchedule(const TrainCommand& command) {
  return command.lr_schedule || command.warmup_ratio || command.warmup_steps;
}

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
  if (AsksSchedule(command)) {
    run.shape = command.lr_schedule.value_or(DecayShape::kConstant);
    run.warmup_share = command.warmup_ratio.value_or(0);
    run.warmup_steps = command.warmup_steps.value_or(0);
  } else if (optimizer.schedule.kind == ScheduleKind::kOfRun) {
    run = optimizer.schedule.of_run;
  }
  if (command.min_lr) {
    if (run.shape == DecayShape::kConstant) {
      ThrowUsage(
          "--min-lr: {} has no effect on a constant rate; add --lr-schedule linear or cosine",
          command.min_lr.text);
    }
    if (*command.min_lr > optimizer.lr) {
      ThrowUsage(
          "--min-lr: {} is above the rate {} that it is to fall from; use less, or raise --lr",
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
        "without GPUs to plan for, train runs one choice, not {}: give --stage, "
        "--offload-optimizer, --offload-param and "
        "--checkpointing one value each",
        setups.size());
  }
  return setups.front();
}

// Ranks that are asked for but cannot be.
void CheckRankCount(int ranks) {
  if (ranks <= kMaxRanks) return;
  ThrowUsage("--gpus: {} is not allowed; use a whole number from 1 to {}", ranks, kMaxRanks);
}

// What the run to resume was lowered from: of the newest checkpoint that says it.
std::optional<ProgramRecord> KeptChoice(const TrainCommand& command) {
  if (!command.run.resume || command.save.empty()) return std::nullopt;
  for (const CheckpointListing& listing : ListCheckpoints(command.save)) {
    if (!listing.is_whole) continue;
    try {
      const CheckpointMeta meta = ReadCheckpointMeta(listing.folder);
      const auto choice = meta.run.find(kChoiceFact);
      if (choice == meta.run.end()) return std::nullopt;
      return ReadProgramRecord(choice->second, kChoiceFact, 1, listing.folder.string());
    } catch (const Error&) {
      continue;  // the resume itself says what is wrong with it
    }
  }
  return std::nullopt;
}

// Whether the config says how large a step's update is, by a rate or a scheduler.
bool ConfigSaysRate(const ConfigDocument& config) {
  return config.Says("scheduler") || config.Says("optimizer.params.lr");
}

// The rate that nobody gave: the resumed run's, or one that suits weights that were trained.
void SetDefaultRate(const TrainCommand& command, TrainWork& work, Assumptions& assumptions) {
  OptimizerConfig& optimizer = work.setup.optimizer;
  const ConfigDocument& config = command.common.config;
  if (command.lr || ConfigSaysRate(config)) return;
  if (work.plan && (!work.plan->origin || !work.plan->origin->config.empty() ||
                    optimizer.lr != OptimizerConfig{}.lr)) {
    return;
  }
  const auto also = [&](std::string_view option) {
    return config.given() ? fmt::format("optimizer.params.lr in {} sets another.", config.name())
                          : fmt::format("{} sets another.", option);
  };
  const bool open_schedule = !AsksSchedule(command) && !config.given() &&
                             optimizer.schedule.kind == ScheduleKind::kConstant;
  if (work.kept) {
    optimizer.lr = work.kept->setup.optimizer.lr;
    const ScheduleConfig& kept = work.kept->setup.optimizer.schedule;
    if (open_schedule && kept.kind == ScheduleKind::kOfRun) optimizer.schedule = kept;
  } else if (HasAdapters(work.model)) {
    optimizer.lr = kAdapterRate;
    if (open_schedule) {
      optimizer.schedule.kind = ScheduleKind::kOfRun;
      optimizer.schedule.of_run = kAdapterSchedule;
    }
    assumptions.notes.push_back(
        fmt::format("Learning rate: {:g}{}, as adapters are trained; {}", kAdapterRate,
                    open_schedule ? fmt::format(" after {:.0f} % of warm-up, then down a cosine",
                                                100 * kAdapterSchedule.warmup_share)
                                  : "",
                    also("--lr (constant, or as --lr-schedule has it)")));
  } else if (!work.weights_folder.empty()) {
    optimizer.lr = kFineTuningRate;
    assumptions.notes.push_back(
        fmt::format("Learning rate: {:g}, as the run starts from the weights in {}; {}",
                    kFineTuningRate, work.weights_folder, also("--lr")));
  }
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

// What the run starts from. `planned`: the model's folder by the plan; "" for none.
TrainWork WorkOfWeights(const TrainCommand& command, const std::string& planned = "") {
  TrainWork work;
  const std::string& name = command.common.model.model;
  const NamedModel model = name.empty() ? NamedModel() : FindModel(name);
  work.model_folder = command.common.model.given() ? model.folder.string() : planned;
  work.weights_folder = WeightsFolder(command, work.model_folder);
  work.adapter = command.common.model.adapter;
  RefuseUnaskedAdapter(work.weights_folder, work.adapter);
  const bool published = !model.hub_name.empty() && work.weights_folder == work.model_folder;
  // An adapter names its base from wherever it is read.
  work.base_name = published ? model.hub_name
                   : work.weights_folder.empty()
                       ? ""
                       : std::filesystem::absolute(work.weights_folder).lexically_normal().string();
  if (!model.hub_name.empty() && work.weights_folder.empty() && !command.fresh_weights) {
    ThrowUsage(
        "--model: the weights of {} are not here, and nothing is downloaded; fetch them with 'hf "
        "download {}', or add --fresh-weights to start from random ones",
        name, model.hub_name);
  }
  return work;
}

// The folder of the plan's model. Throws Error(kUsage) where it is gone.
std::string PlannedFolder(const TrainCommand& command, const PlanFile& plan) {
  if (command.common.model.given() || !plan.origin) return "";
  const std::string& folder = plan.origin->model_folder;
  std::error_code ignored;
  if (folder.empty() || std::filesystem::is_directory(folder, ignored)) return folder;
  ThrowUsage(
      "{}: origin.model_folder: {} is no folder here, and weights and tokenizer of the planned "
      "model lay in it; give --model DIR, where it lies now",
      plan.source, folder);
}

void SetNvmePath(const TrainCommand& command, TrainSetup& setup) {
  if (command.nvme_path.empty()) return;
  setup.zero.offload_optimizer.nvme_path = setup.zero.offload_param.nvme_path = command.nvme_path;
}

// What is given beside a plan.
void SetRatesOfPlan(const TrainCommand& command, OptimizerConfig& optimizer) {
  if (optimizer.schedule.kind != ScheduleKind::kConstant && command.lr) {
    ThrowUsage(
        "--lr: {} has no effect: the schedule in {} decides the rate; leave it out, or plan again "
        "without that",
        command.lr.text, command.plan);
  }
  SetRates(command, optimizer);
}

// Saves that steps could go on beside: one at the end has none.
bool SavesBetweenSteps(const TrainCommand& command) {
  return !command.save.empty() && (command.save_every.has_value() || command.run.keep_best);
}

void ResolveAsyncSave(const TrainCommand& command, TrainWork& work) {
  const AsyncSave asked = command.common.settings.async_save.value_or(AsyncSave::kIfItFits);
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
  const AsyncSave asked = command.common.settings.async_save.value_or(AsyncSave::kIfItFits);
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
  PlanFile read = ResolvePlan(command.plan, command.common, assumptions);
  TrainWork work = WorkOfWeights(command, PlannedFolder(command, read));
  work.kept = KeptChoice(command);
  const PlanFile& plan = work.plan.emplace(std::move(read));
  work.model = plan.model;
  work.setup = plan.setup;
  if (command.common.settings.deterministic && !plan.setup.deterministic) {
    work.setup.deterministic = true;
    if (backend == Backend::kCuda) {
      assumptions.notes.push_back(fmt::format(
          "--deterministic: {} was planned without it, so steps may take longer than planned; "
          "'plan --deterministic' counts what attention adds.",
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
  SetNvmePath(command, work.setup);
  SetDefaultRate(command, work, assumptions);
  SetRatesOfPlan(command, work.setup.optimizer);
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

// The setup of the options or the config alone: of what they leave open, the defaults.
TrainSetup PlainSetup(const TrainCommand& command, const ModelSpec& model,
                      const HardwareProfile& hardware, Backend backend, int ranks,
                      Assumptions& assumptions) {
  return command.common.config.given()
             ? ResolveConfig(command.common, model, hardware, ranks, assumptions)
             : ResolveChoice(command, model, hardware, backend, ranks, assumptions);
}

// Where a run is chosen, and for what.
struct ChoosingAt {
  HardwareProfile hardware;
  Backend backend = Backend::kCpu;
  bool plans = false;  // GPUs that are known: what is open is searched
  int ranks = 1, ranks_per_host = 1;
};

// Model, setup and `lower` of a run without a plan. Of several ranks, rank 0 chooses for all.
void Choose(const TrainCommand& command, const ChoosingAt& at, const Resolving& by, TrainWork& work,
            Assumptions& assumptions) {
  ProcessGroup* const group = by.data_follows ? nullptr : by.group;  // nobody chooses yet
  const std::string of_rank_0 =
      group != nullptr && group->rank() > 0 ? group->AllGather("").front() : "";
  if (!of_rank_0.empty()) {
    work.model = ResolveModel(command.common.model, command.common.settings.seq_len, assumptions);
    work.setup = ReadProgramRecord(of_rank_0, "choice", 1, "rank 0").setup;
  } else if (at.plans) {
    OpenChoice choice(command.common, at.hardware, at.ranks, at.ranks_per_host, work.kept,
                      command.nvme_path, assumptions);
    work.model = choice.model();
    work.setup = by.ranks_follow || by.data_follows ? choice.Any() : choice.Choose(assumptions);
    SetDefaultRate(command, work, assumptions);
  } else {
    work.model = ResolveModel(command.common.model, command.common.settings.seq_len, assumptions);
    work.setup = PlainSetup(command, work.model, at.hardware, at.backend, at.ranks, assumptions);
    SetDefaultRate(command, work, assumptions);
  }
  if (command.run.resize_embeddings) ResizeVocab(work);
  if (at.backend == Backend::kCuda) {
    work.lower = GpuLowerOptions(work.model, work.setup.precision.dtype, at.hardware.gpu);
  }
  if (group != nullptr && group->rank() == 0) {
    std::string said;
    if (at.plans) {
      SetNvmePath(command, work.setup);
      const Program program = Lower(work.model, work.setup, work.lower);
      said = WriteProgramRecord(program, work.lower);
      work.setup = ReadProgramRecord(said, "choice", 1, "rank 0").setup;  // as the others read it
    }
    group->AllGather(said);
  }
}

TrainWork WorkOfConfig(const TrainCommand& command, const ChoosingAt& at, const Resolving& by,
                       Assumptions& assumptions) {
  CheckRankCount(at.ranks);
  const ConfigDocument& config = command.common.config;
  TrainWork work = WorkOfWeights(command);
  work.kept = KeptChoice(command);
  Choose(command, at, by, work, assumptions);
  if (!config.given()) SetRates(command, work.setup.optimizer);
  SetNvmePath(command, work.setup);
  ValidateSetup(work.setup, config.given() ? config.name() : "command line");
  NoteIdleSums(std::span(&work.setup, 1), assumptions);
  work.lower.checkpoints = !command.save.empty() || !work.weights_folder.empty();
  work.lower.document_borders = command.common.settings.packing == Packing::kDocuments;
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
      ThrowUsage("--allow-change {}: a resume keeps to data, order, seq-len and base", fact);
    }
  }
  if (!run.allow_change.empty() && !run.resume) {
    ThrowUsage("--allow-change {}: says what a resume may change; add --resume, or leave it out",
               run.allow_change.front());
  }
}

// Elsewhere it implies full recompute. Beside a run most people mean saves by it.
void CheckCheckpointWords(const AskedSettings& choice) {
  if (!choice.checkpoint_every || choice.checkpointing) return;
  ThrowUsage(
      "--checkpoint-every: {0} is a number of layers that are recomputed together, not of steps; "
      "to save every {0} steps use --save-every {0}, to recompute add --checkpointing full",
      choice.checkpoint_every.text);
}

}  // namespace

int RanksAskedFor(const TrainCommand& command, Backend backend) {
  if (command.common.cluster.gpus) return *command.common.cluster.gpus;
  if (backend == Backend::kCpu) return 1;
  return std::max(1, static_cast<int>(QueryGpus().size()));
}

TrainWork ResolveWork(const TrainCommand& command, Backend backend, const Resolving& by,
                      Assumptions& assumptions) {
  const HardwareFields& hardware = command.common.hardware;
  const Given<uint64_t>& gpu_memory = command.common.cluster.gpu_memory;
  const bool on_gpu = backend == Backend::kCuda;
  CheckCheckpointWords(command.common.settings);
  RefuseOnCpu(backend, "--hw", hardware.profile);
  RefuseOnCpu(backend, "--network", hardware.network);
  RefuseOnCpu(backend, "--gpu-memory", gpu_memory.text);
  RefuseOnCpu(backend, "--gpu-reserve", command.common.cluster.gpu_reserve.text);
  RefuseOnCpu(backend, "--pinned-limit", command.common.cluster.pinned_limit.text);
  // Rank 0 alone chooses and predicts.
  const bool first = by.group == nullptr || by.group->rank() == 0;
  const bool again = by.ranks_follow || by.data_follows;
  const MeasureHost measure = first && !again ? MeasureHost::kYes : MeasureHost::kNo;
  HardwareProfile profile =
      on_gpu ? ResolveHardware(hardware, command.common.cluster, assumptions, measure)
             : LoadProfile(std::string(kDefaultProfile));
  const bool known = !hardware.profile.empty() || assumptions.detected_gpus.has_value();
  TrainWork work;
  if (command.plan.empty()) {
    TrainCommand asked = command;
    const std::vector<DetectedGpu> gpus = on_gpu ? QueryGpus() : std::vector<DetectedGpu>{};
    if (!known && !gpus.empty() && !gpu_memory) {  // the default profile's is another GPU's
      const auto smallest = std::min_element(gpus.begin(), gpus.end(),
                                             [](const DetectedGpu& a, const DetectedGpu& b) {
                                               return a.memory_bytes < b.memory_bytes;
                                             });
      asked.common.cluster.gpu_memory.emplace(static_cast<uint64_t>(smallest->memory_bytes));
    }
    ChoosingAt at{profile, backend, on_gpu && (known || !gpus.empty()), 1, 1};
    at.ranks = by.group != nullptr ? by.group->world_size() : RanksAskedFor(command, backend);
    at.ranks_per_host = by.group != nullptr ? by.group->place().local_world_size : at.ranks;
    if (by.group != nullptr) SetNode(asked.common.cluster, at.ranks, at.ranks_per_host);
    if (on_gpu && !at.plans) {
      assumptions.notes.push_back(
          "Choice: the GPUs here are not known, so nothing is planned: what is not given is its "
          "plain default; --hw NAME|FILE says what they are.");
    }
    work = WorkOfConfig(asked, at, by, assumptions);
  } else {
    if (by.group != nullptr) by.group->AllGather("");  // where others choose
    work = WorkOfPlan(command, backend, assumptions);
    if (on_gpu && known) {
      const auto here = static_cast<int>(QueryGpus().size());
      const std::string differs = MachineDiffers(*work.plan, profile, here);
      if (!differs.empty()) assumptions.notes.push_back(differs);
    }
  }
  CheckPackingAsked(command, work);
  work.hardware = std::move(profile);
  work.gpu_memory_limit = gpu_memory;
  work.hardware_is_known = known;
  if (on_gpu && work.hardware_is_known) {
    const bool ordered = work.plan ? work.plan->setup.deterministic : work.setup.deterministic;
    NoteKernels(work.model, work.setup, work.lower, work.hardware, ordered, assumptions);
    const std::string note = NcclNote(work.hardware, NcclEnvironment());
    if (work.setup.batch.world_size > 1 && !note.empty()) assumptions.notes.push_back(note);
  }
  return work;
}

Program LowerWork(const TrainWork& work) {
  if (!work.plan || work.pageable) return Lower(work.model, work.setup, work.lower);
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
  options.interruption_rate = InterruptionRate(command, work.plan);
  options.keep = command.keep.value_or(options.keep);
  options.init_from = work.weights_folder;
  options.adapter = command.common.model.adapter;
  options.base_name = work.base_name;
  options.best_weights = command.best_weights.value_or(false);
  options.patience = command.patience.value_or(0);
  HfExportOptions& final_weights = options.final_weights;
  final_weights.dtype = command.save_dtype.value_or(final_weights.dtype);
  final_weights.max_shard_bytes = command.max_shard_size.value_or(final_weights.max_shard_bytes);
  final_weights.source = work.tokenizer_folder();
  if (!command.save.empty() && !HasCheckpoint(command.save)) {
    CheckExportFolder(command.save, final_weights.source, "--save");
  }
  options.validate_every = command.validate_every.value_or(0);
  options.validation_batches = command.validation_batches;
  options.max_bad_steps = command.max_bad_steps.value_or(options.max_bad_steps);
  options.step_timeout = command.step_timeout;
  options.skip_loss_spike = command.skip_loss_spike.value_or(0);
  options.engine.threads_per_rank = command.threads.value_or(0);
  if (command.backend != BackendChoice::kCuda) {
    CheckThreads(options.engine.threads_per_rank, work.setup.batch.world_size);
  }
  options.trace_file = command.trace;
  return options;
}

namespace {

// Adapters, frozen tensors and losses of routers are the plan's where the options name none.
void CheckModel(const PlanFile& plan, const ModelSpec& given, const ModelFields& asked) {
  const std::string model = !asked.given() ? "the options"
                            : asked.params ? "--params " + asked.params.text
                                           : "--model " + asked.model;
  ForEachField(
      plan.model, given,
      [&]<typename T>(const ModelField& field, const T& of_plan, const T& of_model) {
        const std::string_view key = field.key;
        if (key == "name" || of_plan == of_model) return;
        if (key.starts_with("lora_") && !asked.method && !asked.lora.given()) return;
        if (key == "frozen" && asked.freeze.empty()) return;
        if (key == "router_aux_loss" && !asked.router_aux_loss) return;
        if (key == "router_z_loss" && !asked.router_z_loss) return;
        ThrowUsage(
            "{}: {}: the plan {} has {}, this model {}; leave the option out to train the plan's "
            "model, or plan again",
            model, key, plan.source, FieldText(of_plan), FieldText(of_model));
      });
}

// The plan's model, changed by the options that name a part of it; --model is not among them.
ModelSpec WithOptions(const PlanFile& plan, const ModelFields& asked) {
  if (asked.method || asked.lora.given()) {
    ThrowUsage(
        "--method, --lora-*: are not allowed with --plan alone, which decides them; leave them "
        "out, or plan again");
  }
  ModelSpec model = plan.model;
  if (!asked.freeze.empty()) model.frozen = asked.freeze;
  if (asked.router_aux_loss) model.router_aux_loss = static_cast<float>(*asked.router_aux_loss);
  if (asked.router_z_loss) model.router_z_loss = static_cast<float>(*asked.router_z_loss);
  return model;
}

}  // namespace

PlanFile ResolvePlan(const std::string& file, const Request& options, Assumptions& assumptions) {
  PlanFile plan = ReadPlan(ReadTextFile(file), file);
  const Given<int>& gpus = options.cluster.gpus;
  if (gpus && *gpus != plan.cluster.gpus) {
    ThrowUsage("--gpus: {} is not allowed: {} is for {}; leave the option out, or plan again",
               *gpus, file, plan.cluster.gpus);
  }
  if (options.settings.offload_activations) {
    ThrowUsage("--offload-activations: is not allowed with --plan, which decides it; plan again");
  }
  const ModelFields& model = options.model;
  const ModelSpec given = model.given()
                              ? ResolveModel(model, {{plan.setup.batch.seq_len}, ""}, assumptions)
                              : WithOptions(plan, model);
  CheckModel(plan, given, model);
  return plan;
}

}  // namespace zeroplan
