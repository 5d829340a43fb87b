// zeroplan train: runs a plan or a config.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>

#include "cli/common/commands.h"
#include "cli/common/executor_commands.h"
#include "cli/common/output.h"
#include "cli/run/train/host_fit.h"
#include "cli/run/train/progress.h"
#include "cli/run/train/train_command.h"
#include "cli/run/train/train_data.h"
#include "cli/run/train/train_ranks.h"
#include "cli/run/train/train_work.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/full_screen.h"
#include "core/base/log.h"
#include "core/base/long_work.h"
#include "core/base/stop_signals.h"
#include "core/base/strings.h"
#include "core/base/units.h"
#include "core/families/load_model.h"
#include "core/model/lora.h"
#include "core/program/step_order.h"
#include "core/program/verify.h"
#include "cost_models/memory_walk.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/process/host_launcher.h"
#include "executor/process/launch_environment.h"
#include "executor/process/process_group.h"
#include "executor/train/run_open.h"
#include "executor/train/trainer.h"
#include "planner/estimate/choices.h"
#include "planner/plan/plan_file.h"
#include "planner/report/report_text.h"
#include "planner/request/data_fields.h"
#include "planner/request/parse.h"
#include "planner/request/resolve.h"
#include "planner/runs/prediction_table.h"
#include "planner/runtimes/fitted.h"
#include "reader/data_reader.h"
#include "text/documents/token_cache.h"
#include "text/documents/tokenize_files.h"
#include "text/files/data_files.h"

namespace zeroplan {
namespace {

constexpr const char* kFooter = R"(Examples:
  zeroplan train --model gpt2 --data corpus.txt --stage 2 --gpus 2 --steps 100 --save out
  zeroplan train --plan plan.json --data corpus.bin --save out
  zeroplan train --model out --config ds_config.json --data corpus.bin --save out --resume
  torchrun --nnodes 2 --nproc-per-node 8 --no-python zeroplan train --plan plan.json --data c.bin
What options leave open is chosen as 'plan' chooses it; what else plan can be asked (--objective,
--effort) goes by a plan: plan ... --plan-out plan.json, then --plan plan.json.
On GPUs --gpus starts a process for each; torchrun, mpirun and srun may start them instead. On the
CPU ranks are threads, or processes where one of these starts them. Ctrl-C saves and exits 130,
--resume continues.)";

void CheckRanks(const TrainWork& work, const ProcessPlace& place) {
  const int ranks = work.setup.batch.world_size;
  if (ranks == place.world_size) return;
  ThrowUsage(
      "--plan: {} is for {} GPUs, and the launcher started {} ranks; start {}, or plan again",
      work.plan ? work.plan->source : "the choice", ranks, place.world_size, ranks);
}

ChoiceOrigin OriginOf(const TrainCommand& command, const TrainWork& work) {
  if (work.plan) return {ChoiceOrigin::Kind::kPlan, work.plan->source};
  const ConfigDocument& config = command.common.config;
  if (config.given()) return {ChoiceOrigin::Kind::kConfig, config.name()};
  return {};
}

// Ranks of this host: those of a launcher, or all, as threads or processes that are started here.
int RanksHere(const ProcessGroup* group, const Program& program) {
  return group != nullptr ? group->place().local_world_size : program.setup.batch.world_size;
}

// Where it was left open, saves are written beside the steps if every host has room for the copy.
void SettleAsyncSave(TrainWork& work, Backend backend, ProcessGroup* group, const HostRoom& host,
                     Program& program) {
  const bool beside = SavesFromCopy(program);
  bool fits =
      !work.async_save_if_fits || FitsHost(program, backend, RanksHere(group, program), host);
  if (group != nullptr) {
    const std::vector<std::string> all = group->AllGather(!beside ? "waits"
                                                          : fits  ? "fits"
                                                                  : "does not fit");
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if ((all[rank] == "waits") != !beside) {
        ThrowUsage(
            "--save-every, --async-save: here steps wait for saves, and on rank {} they do not, or "
            "the other way round; give all ranks the same options",
            rank);
      }
      fits = fits && all[rank] != "does not fit";
    }
  }
  if (!beside) return;
  const std::string copy = FormatBytes(SaveCopyBytes(program));
  if (fits) {
    LogInfo(
        "Saves: written beside the steps, from a copy of the states of {} of host memory a rank; "
        "with --async-save off the steps wait instead.",
        copy);
    return;
  }
  work.lower.async_save = false;
  program = LowerWork(work);
  LogInfo(
      "Saves: steps wait for them, as a copy of the states, {} of host memory a rank, does not fit "
      "here (--async-save auto).",
      copy);
}

// Page-locks what the program pins. Where the driver refuses that on a host, or --pinned-limit or
// the profile says that it would, what is offloaded stays pageable on all ranks, and rank 0 says
// what that costs. Throws Error(kRuntime) where even the rest, which kernels write to, is refused.
void SettlePinned(const TrainCommand& command, TrainWork& work, EngineOptions& engine,
                  Program& program) {
  const ProcessPlace place = engine.group != nullptr ? engine.group->place() : ProcessPlace{};
  const std::optional<Figure>& known = work.hardware.node.pinned_limit;
  std::optional<uint64_t> limit;
  if (known && work.hardware_is_known) limit = static_cast<uint64_t>(known->value);
  if (command.common.cluster.pinned_limit) limit = *command.common.cluster.pinned_limit;
  const auto pinned = [&] {
    return program.arena_bytes[static_cast<size_t>(Space::kPinned)] *
           static_cast<uint64_t>(place.local_world_size);
  };
  // Why a host refuses; "": none does.
  const auto refusal = [&]() -> std::string {
    if (engine.group != nullptr) engine.group->Barrier();  // all have looked at what is free
    std::string why;
    if (limit && pinned() > *limit) {
      why =
          fmt::format("the limit is {} ({})", FormatBytes(*limit),
                      command.common.cluster.pinned_limit ? "--pinned-limit" : work.hardware.name);
    } else if (why = LockPinnedArena(program, engine); !why.empty()) {
      why = "the driver says: " + why;
    }
    if (engine.group == nullptr) return why;
    for (const std::string& of_rank : engine.group->AllGather(why)) {
      if (!of_rank.empty()) return of_rank;
    }
    return "";
  };
  const std::string why = refusal();
  if (why.empty()) return;
  engine.pinned.reset();
  const auto seconds = [&] {
    return work.hardware_is_known
               ? PredictRun(program, work.hardware, place.local_world_size).step_seconds
               : std::nullopt;
  };
  const std::string planned = FormatBytes(pinned());
  const auto before = seconds();
  UsePageableMemory(work.setup.zero);
  work.pageable = true;
  program = LowerWork(work);
  if (const std::string left = refusal(); !left.empty()) {
    ThrowRuntime(
        "pinned memory: a host cannot page-lock {}, which every run needs: {}; free host memory, "
        "or raise the limit",
        FormatBytes(pinned()), left);
  }
  if (place.rank != 0) return;
  const auto after = seconds();
  LogWarning(
      "Pinned memory: a host cannot page-lock {}: {}. What is offloaded stays pageable, and {} are "
      "pinned; {}.",
      planned, why, FormatBytes(pinned()),
      before && after
          ? fmt::format("a step is predicted to take {} instead of {}; it took up to "
                        "{:.0f} % more where it was measured",
                        FormatSeconds(*after), FormatSeconds(*before), 100 * kPageableSummed)
          : "steps take longer");
}

// What is announced is what was planned, whatever this machine would give.
void TakePlanned(const PlanFile& plan, RunPrediction& prediction) {
  prediction.hardware = plan.cluster.hardware;
  prediction.footprint = plan.footprint;
  prediction.step_seconds = plan.step_seconds;
  prediction.step = plan.step;
}

// The published name of a preset's weights; "": it is no preset, or has several.
std::string HubNameOf(const std::string& preset) {
  for (const ModelPreset& known : ModelPresets()) {
    if (known.spec.name == preset && !known.published.empty()) {
      return std::string(known.published.front().name);
    }
  }
  return "";
}

// Refuses fresh weights that were most likely not meant: those of a folder without any, and of a
// named model that is given conversations or adapters, which only weights that were trained make
// sense of. Plain text trains them; a line reports it.
void CheckFreshWeights(const TrainCommand& command, const TrainWork& work) {
  if (command.fresh_weights || !work.weights_folder.empty()) return;
  if (command.run.resume && !command.save.empty() && HasCheckpoint(command.save)) return;
  if (!work.model_folder.empty()) {
    ThrowUsage(
        "--model: {} holds no model.safetensors; fetch the weights into it, or add --fresh-weights "
        "to start from random ones",
        work.model_folder);
  }
  const ModelFields& model = command.common.model;
  if (model.params || model.model.empty() || model.model.ends_with(".json")) return;
  const std::vector<std::filesystem::path> files = DataFiles(command.run.data);
  const auto records = std::find_if(files.begin(), files.end(), HoldsRecords);
  const std::string hub = HubNameOf(model.model);
  const std::string fetch =
      hub.empty()
          ? "name a folder that has them"
          : fmt::format("fetch them with 'hf download {}', and name {} or their folder", hub, hub);
  if (HasAdapters(work.model) || records != files.end()) {
    ThrowUsage(
        "--model: {} is a shape without weights, and {}; {}, or add --fresh-weights to start from "
        "random ones",
        model.model,
        HasAdapters(work.model)
            ? "adapters are trained beside weights"
            : fmt::format("{} has records to tune weights on", records->string()),
        fetch);
  }
  LogInfo("Weights: fresh ones, as {} is a shape without weights; {} to tune those.", model.model,
          fetch);
}

// What is wrong with the files of a run, or with what is said of them, where that shows without
// reading all of them: before text becomes tokens, which may take long.
void LookBeforeTokens(const TrainCommand& command, const TrainWork& work,
                      const TrainOptions& options, ProcessGroup* group) {
  CheckDataFiles(command.run.data);
  CheckDataFiles(command.validation_data);
  std::vector<std::string> all = command.run.data;
  all.insert(all.end(), command.validation_data.begin(), command.validation_data.end());
  CheckRecordChoices(ChoicesOf(command.records), all);
  if (group == nullptr || group->rank() == 0) LookAtStart(work.model, options);
  if (group != nullptr) group->Barrier();
}

// Prints the folder of the run's result, and commands that use it.
void SaySaved(const TrainCommand& command, const TrainWork& work) {
  const bool adapter = HasAdapters(work.model);
  const bool chats = ReadChatFolder(work.tokenizer_folder()).chat.has_value();
  std::vector<std::string> generate = {"zeroplan", "generate", command.save};
  generate.emplace_back(chats ? "--chat" : "--prompt");
  generate.emplace_back(chats ? "--prompt" : "The ");
  if (chats) generate.emplace_back("Hello!");
  std::string text = fmt::format(
      "saved      {} in {}\nNext: {}\n",
      adapter ? "the adapter, as PEFT reads it," : "the model, as transformers reads it,",
      command.save, ShellCommand(generate));
  if (adapter && !work.base_name.empty()) {
    text += fmt::format("  or: {}\n",
                        ShellCommand({"zeroplan", "merge", command.save, "-o",
                                      (std::filesystem::path(command.save) / "merged").string()}));
  }
  WriteStderr(text);
}

// Resolves the work again with the layout that `data` decides: rank 0's, as machines may differ.
TrainWork WorkOfData(TrainCommand& command, const TrainWork& work, Backend backend,
                     const std::vector<std::string>& data, ProcessGroup* group,
                     Assumptions& assumptions) {
  assumptions.notes.clear();
  AskedSettings& settings = command.common.settings;
  if (group == nullptr || group->rank() == 0) {
    SettleLayout(command, work, backend, data, assumptions);
  }
  if (group != nullptr) {
    const std::string mine = fmt::format("{} {}", settings.packing.text, settings.seq_len.text);
    const std::string chosen = group->AllGather(mine).front();
    const size_t space = chosen.find(' ');
    if (space > 0) {
      SetPacking(settings.packing, OneOf(kWords<Packing>)(chosen.substr(0, space), "rank 0"));
    }
    if (space + 1 < chosen.size()) {
      Set(settings.seq_len, WholeIn<int64_t>(1, INT64_MAX)(chosen.substr(space + 1), "rank 0"));
    }
  }
  return ResolveWork(command, backend, {.group = group}, assumptions);
}

// The rank of `group` that is this process, or all ranks of a run on the CPU. `work` is resolved
// with data_follows where the data decides.
RunReport RunRanks(TrainCommand command, TrainWork work, Backend backend, Assumptions assumptions,
                   ProcessGroup* group) {
  const ProcessPlace place = group != nullptr ? group->place() : ProcessPlace{};
  const bool on_gpu = backend == Backend::kCuda;
  const bool data_decides = DataDecides(command);
  const auto say_notes = [&] {
    for (const std::string& note : assumptions.notes) LogInfo("{}", note);
  };
  if (!data_decides) say_notes();
  TrainOptions options = ResolveTrainOptions(command, work);
  options.engine.backend = backend;
  options.engine.group = group;
  LookBeforeTokens(command, work, options, group);
  if (place.rank == 0) CheckFreshWeights(command, work);
  const auto has_text = [](const std::vector<std::string>& data) {
    const std::vector<std::filesystem::path> files = DataFiles(data);
    return !std::all_of(files.begin(), files.end(), IsTokenFile);
  };
  // What says how texts are taken is of those that are text, where there are others beside.
  const bool any_text = has_text(command.run.data) || has_text(command.validation_data);
  const auto tokens = [&](const std::vector<std::string>& data) {
    const bool of_others = any_text && !has_text(data);
    return DataForModel({.data = data,
                         .model_folder = work.tokenizer_folder(),
                         .vocab = work.model.vocab,
                         .cache_folder = CacheFolder(),
                         .threads = command.threads.value_or(0),
                         .choices = of_others ? TextChoices{} : ChoicesOf(command.records),
                         .says = place.rank == 0});
  };
  const LongWork work_before("Preparing the data", /*at_once=*/true);
  options.data = RepeatedData(command, tokens);
  options.holds_back = command.repeats.empty();
  if (place.rank == 0) CheckBytes(options.data, work.model.vocab);
  if (place.rank == 0 && !options.save_dir.empty()) {
    options.final_weights.stop_tokens =
        LearnedStops(work, options.data, command.records.train_on == TrainOn::kAll);
  }
  if (data_decides) {
    work = WorkOfData(command, work, backend, options.data, group, assumptions);
    say_notes();
  }
  options.packing = SettlePacking(command, options.data, work);
  if (!command.steps && !command.epochs && IsOfRecords(command.run.data, options.data)) {
    options.epochs = 1;
    LogInfo("Length: one epoch, as the data are records; --epochs or --steps sets it.");
  }
  ShowProgress("Building the program of a step");
  Program program = LowerWork(work);
  // The ranks of a host look before any of them takes memory: Train meets first.
  const HostRoom host = AvailableHostMemory(command.common.cluster.host_reserve);
  SettleAsyncSave(work, backend, group, host, program);
  ShowProgress("Verifying it");
  VerifyOrThrow(program);
  if (on_gpu) {
    CheckOffloadFitsHost(program, OriginOf(command, work), place.local_world_size, host);
    SettlePinned(command, work, options.engine, program);
  } else {
    CheckFitsHost(program, work.lower, OriginOf(command, work), RanksHere(group, program), host);
  }
  options.choice = WriteProgramRecord(program, work.lower);
  std::optional<RunPrediction> prediction;
  if (on_gpu && place.rank == 0) {
    prediction = PredictRun(program, work.hardware, place.local_world_size);
    const auto usable = static_cast<uint64_t>(work.hardware.gpu.usable_memory.value);
    const GpuLimit limit = {work.gpu_memory_limit.value_or(usable),
                            command.common.cluster.gpu_reserve.value_or(kGpuReserveBytes)};
    if (work.gpu_memory_limit) {
      CheckGpuMemory(*prediction, limit);
    } else if (const auto shortage = GpuShortage(*prediction, limit);
               work.hardware_is_known && shortage) {
      LogWarning("{} of GPU memory are predicted, of which {} has {}; this may not fit",
                 FormatBytes(shortage->needs), work.hardware.gpu.name, FormatBytes(shortage->has));
    }
    const bool as_planned = work.plan && !work.pageable;
    if (as_planned && work.hardware_is_known) {
      if (const std::string differs = StepDiffers(*work.plan, *prediction); !differs.empty()) {
        LogInfo("{}", differs);
      }
    }
    if (as_planned) TakePlanned(*work.plan, *prediction);
    if (work.hardware_is_known || as_planned) {
      options.predicted_step_seconds = prediction->step_seconds;
    }
    if (work.hardware_is_known) {
      options.dense_peak_flops = DensePeak(work.hardware, work.setup.precision.dtype);
    }
  }
  const int ranks_per_host = RanksHere(group, program);
  const RunFacts facts{program, work.lower, ranks_per_host, WalkMemory(program), prediction};
  std::unique_ptr<MetricsFile> metrics;
  if (place.rank == 0 && !(command.metrics.empty() && command.tensorboard.empty())) {
    metrics = std::make_unique<MetricsFile>(
        MetricsPlaces{command.metrics, command.tensorboard, command.run.resume});
  }
  if (!command.validation_data.empty()) options.validation_data = tokens(command.validation_data);
  if (!command.trace.empty() && place.rank == 0) {
    options.add_to_trace = PredictionForTrace(work, program, backend, ranks_per_host);
  }
  Progress progress(
      facts, metrics.get(),
      {.monitor = command.monitor, .saves = !command.save.empty(), .watch = command.watch});
  const auto run = [&] {
    if (command.report.empty() || place.rank != 0) return Train(program, options, progress);
    std::optional<CostModel> costs;
    if (prediction && prediction->step) {
      costs.emplace(PredictingHardware(work),
                    ClusterShape{place.world_size, place.local_world_size});
    }
    return RunWithReport(
        command.report, ReportOrigin(assumptions), facts, costs ? &*costs : nullptr, backend,
        progress, [&](TrainObserver& observer) { return Train(program, options, observer); });
  };
  RunReport report = run();
  if (place.rank == 0 && !report.interrupted && !command.save.empty()) SaySaved(command, work);
  return report;
}

// One of several processes. What it throws, it has told the others.
RunReport RunAsRank(const TrainCommand& command, Backend backend, const ProcessPlace& place) {
  if (place.rank != 0) SetLogLevel(std::min(GetLogLevel(), LogLevel::kWarning));
  const std::unique_ptr<ProcessGroup> group =
      JoinGroup(place, std::chrono::seconds(command.rendezvous_timeout.value_or(120)));
  try {
    return SpreadFailure(*group, [&] {
      Assumptions assumptions;
      TrainWork work =
          ResolveWork(command, backend,
                      {.group = group.get(), .data_follows = DataDecides(command)}, assumptions);
      CheckRanks(work, place);
      return RunRanks(command, std::move(work), backend, std::move(assumptions), group.get());
    });
  } catch (const Error& error) {
    // Rank 0 says why the run failed, unless it is gone.
    if (place.rank == 0 || !group->rank_0_says_it()) throw;
    throw Error(error.code(), "");
  }
}

// Called by rank 0, whose terminal it is; the others show nothing.
void CheckWatch(const TrainCommand& command) {
  const std::optional<ProcessPlace> place =
      PlaceFromEnvironment([](const char* name) { return std::getenv(name); });
  if (!command.watch || (place && place->rank != 0)) return;
  if (!command.hosts.empty() || !command.hostfile.empty()) {
    ThrowUsage("--watch: rank 0 of a run on --hosts has no terminal; use --monitor");
  }
  if (const std::string why = FullScreen::WhyNot(); !why.empty()) {
    ThrowUsage("--watch: {}; leave it out, or use --monitor", why);
  }
  if (ProgressColumns() == 0) {
    ThrowUsage("--watch: redraws itself, and --no-progress forbids that; leave one of the two out");
  }
}

void RunTrain(const TrainCommand& command) {
  const StopSignalsBlocked blocked;  // before a driver starts threads
  if (IsHostAgent()) return LaunchHostPart(command);
  CheckMetricsFile(command.metrics, command.run.resume);
  CheckWatch(command);
  const Backend backend =
      ChooseBackend(command.backend, "runs the same program with ranks as threads");
  const std::optional<ProcessPlace> place = FindPlace(command, backend);
  if (!command.tensorboard.empty() && (!place || place->rank == 0)) {
    CheckTensorboardFolder(command.tensorboard, command.run.resume);
  }
  const std::optional<RestartOptions> restarts = FindRestarts(command, place);
  if (auto hosts = FindHosts(command, place)) {
    return LaunchOnHosts(std::move(*hosts), restarts.value_or(RestartOptions{}));
  }
  RequireBackend(backend, place ? place->world_size : 1);
  std::optional<InterruptScope> interrupts;
  RunReport report;
  if (place) {
    interrupts.emplace();
    report = RunAsRank(command, backend, *place);
  } else {
    Assumptions assumptions;
    const bool follow = restarts || (backend == Backend::kCuda && command.plan.empty() &&
                                     RanksAskedFor(command, backend) > 1);
    TrainWork work =
        ResolveWork(command, backend,
                    {.ranks_follow = follow, .data_follows = DataDecides(command)}, assumptions);
    const int ranks = work.setup.batch.world_size;
    const bool rank_a_process = backend == Backend::kCuda && ranks > 1;
    if (rank_a_process || restarts) {
      if (rank_a_process) RequireBackend(backend, ranks);
      // Their own resolving comes to the same; here mistakes are found before they start.
      ResolveTrainOptions(command, work);
      LaunchRanks(rank_a_process ? ranks : 1, restarts.value_or(RestartOptions{}));
      return;
    }
    interrupts.emplace();
    report = RunRanks(command, std::move(work), backend, std::move(assumptions), nullptr);
  }
  if (!report.interrupted) return;
  if (place && place->rank != 0) throw Error(ExitCode::kInterrupted, "");  // rank 0 says it
  throw Error(
      ExitCode::kInterrupted,
      command.save.empty()
          ? fmt::format("interrupted after step {}; nothing saved (no --save)", report.steps)
          : fmt::format("interrupted after step {}; saved, continue with --resume", report.steps));
}

}  // namespace

void RegisterTrain(Command& app) {
  Command command = app.Add(kTrainCommand.name, kTrainCommand.help);
  auto options = std::make_shared<TrainCommand>();
  AddTrainOptions(command, *options);
  command.Footer(kFooter);
  command.Run([options] { RunTrain(*options); });
}

}  // namespace zeroplan
