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
#include "cli/run/train/train_ranks.h"
#include "cli/run/train/train_work.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/full_screen.h"
#include "core/base/log.h"
#include "core/base/long_work.h"
#include "core/base/strings.h"
#include "core/base/units.h"
#include "core/program/step_order.h"
#include "core/program/verify.h"
#include "cost_models/memory_walk.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/process/host_launcher.h"
#include "executor/process/launch_environment.h"
#include "executor/process/process_group.h"
#include "executor/process/stop_signals.h"
#include "executor/train/run_open.h"
#include "executor/train/trainer.h"
#include "planner/estimate/choices.h"
#include "planner/plan/plan_file.h"
#include "planner/report/report_text.h"
#include "planner/request/parse.h"
#include "planner/request/resolve.h"
#include "planner/runs/prediction_table.h"
#include "planner/runtimes/fitted.h"
#include "reader/data_reader.h"
#include "text/documents/chat_template.h"
#include "text/documents/token_cache.h"
#include "text/documents/tokenize_files.h"
#include "text/files/data_files.h"
#include "text/files/token_dataset.h"
#include "text/tokenizer/tokenizer.h"

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

// Text of `data`, which the run reads: nobody turned it into tokens, and it is trained on as it
// stands.
void SayBytes(const std::vector<std::string>& data, int64_t vocab) {
  const std::string_view why =
      vocab == kByteTokens ? "the model has 256 tokens" : "no tokenizer.json lies beside the model";
  for (const std::filesystem::path& file : DataFiles(data)) {
    const FileKind kind = FileKindOf(file);
    if (kind == FileKind::kRecords) {
      return LogWarning(
          "--data: {}: bytes are tokens, as {}: its records are trained on as they stand, names "
          "and braces too",
          file.string(), why);
    }
    if (kind == FileKind::kText && vocab != kByteTokens) {
      return LogInfo("Tokens: bytes, as {}: {} of its {} tokens.", why, kByteTokens, vocab);
    }
  }
}

// What the run reads: each path of --data as often as --data-repeats says.
template <typename TokensOf>
std::vector<std::string> RepeatedData(const TrainCommand& command, TokensOf tokens_of) {
  const std::vector<std::string>& paths = command.run.data;
  if (command.repeats.empty()) return tokens_of(paths);
  std::vector<int64_t> repeats;
  for (const std::string_view count : SplitList(command.repeats)) {
    repeats.push_back(WholeIn<int64_t>(1, 1000)(std::string(count), "--data-repeats"));
  }
  if (repeats.size() != paths.size()) {
    ThrowUsage("--data-repeats: {} has {} numbers, and --data {} paths; give a number for each",
               command.repeats, repeats.size(), paths.size());
  }
  std::vector<std::string> all;
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::vector<std::string> files = tokens_of({paths[i]});
    for (int64_t k = 0; k < repeats[i]; ++k) all.insert(all.end(), files.begin(), files.end());
  }
  return all;
}

// What is announced is what was planned, whatever this machine would give.
void TakePlanned(const PlanFile& plan, RunPrediction& prediction) {
  prediction.hardware = plan.cluster.hardware;
  prediction.footprint = plan.footprint;
  prediction.step_seconds = plan.step_seconds;
  prediction.step = plan.step;
}

// A folder that was most likely meant with its weights.
void WarnOfFreshWeights(const TrainCommand& command, const TrainWork& work) {
  if (command.fresh_weights || work.model_folder.empty() || !work.weights_folder.empty()) return;
  if (command.run.resume && !command.save.empty() && HasCheckpoint(command.save)) return;
  LogWarning(
      "{}: holds no model.safetensors, so training starts from random weights; --fresh-weights "
      "says "
      "that this is meant",
      work.model_folder);
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

// Whether `token` is among those that count in the loss. Of more than a billion tokens blocks are
// looked at that lie evenly in them.
bool IsLearned(const TokenDataset& data, int32_t token) {
  constexpr uint64_t kBlock = uint64_t{1} << 16, kMostBlocks = uint64_t{1} << 14;
  const uint64_t blocks = std::min((data.size() + kBlock - 1) / kBlock, kMostBlocks);
  std::vector<int32_t> ids;
  for (uint64_t i = 0; i < blocks; ++i) {
    const uint64_t begin = data.size() * i / blocks;
    ids.resize(std::min(kBlock, data.size() - begin));
    data.Read(begin, ids);
    data.MaskTargets(begin, ids);
    if (std::find(ids.begin(), ids.end(), token) != ids.end()) return true;
  }
  return false;
}

// Tokens at which texts of the saved model end: where it learns to end turns of conversations, the
// token that does, beside those that its folder names. Empty: those alone. Plain text that happens
// to hold the token teaches no turns: conversations have a loss mask, or were taken whole.
std::vector<int32_t> LearnedStops(const TrainWork& work, const std::vector<std::string>& data,
                                  bool train_on_all) {
  namespace fs = std::filesystem;
  const fs::path folder = work.tokenizer_folder();
  std::error_code ignored;
  if (folder.empty() || !fs::exists(folder / "tokenizer.json", ignored)) return {};
  std::optional<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat;
  try {
    tokenizer = Tokenizer::FromFile(folder);
    chat = ChatTemplate::FromFolder(folder, *tokenizer);
  } catch (const Error&) {
    return {};  // what cannot be read made none of the data
  }
  const std::optional<int32_t> end = chat ? chat->end_of_turn_id() : std::nullopt;
  if (!end || *end >= work.model.vocab) return {};
  std::vector<int32_t> stops = StopTokensOf(folder, work.model.vocab);
  if (stops.empty()) stops = StopTokensOf(work.companions_folder(), work.model.vocab);
  const bool named = std::find(stops.begin(), stops.end(), *end) != stops.end();
  const TokenDataset tokens = TokenDataset::Open(data);
  if (named || tokens.is_text() || !(tokens.has_mask() || train_on_all)) return {};
  if (!IsLearned(tokens, *end)) return {};
  if (stops.empty()) {
    if (const auto text_end = EndOfText(folder, *tokenizer)) stops.push_back(*text_end);
  }
  LogInfo("Stops: generation_config.json of what is saved ends texts at {} (token {}), too.",
          tokenizer->TokenText(*end).value_or(""), *end);
  if (std::find(stops.begin(), stops.end(), *end) == stops.end()) stops.push_back(*end);
  return stops;
}

// The rank of `group` that is this process, or all ranks of a run on the CPU.
RunReport RunRanks(const TrainCommand& command, TrainWork& work, Backend backend,
                   const Assumptions& assumptions, ProcessGroup* group) {
  const ProcessPlace place = group != nullptr ? group->place() : ProcessPlace{};
  const bool on_gpu = backend == Backend::kCuda;
  TrainOptions options = ResolveTrainOptions(command, work);
  options.engine.backend = backend;
  options.engine.group = group;
  if (place.rank == 0) WarnOfFreshWeights(command, work);
  LookBeforeTokens(command, work, options, group);
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
  if (place.rank == 0) SayBytes(options.data, work.model.vocab);
  if (place.rank == 0 && !options.save_dir.empty()) {
    options.final_weights.stop_tokens =
        LearnedStops(work, options.data, command.records.train_on == TrainOn::kAll);
  }
  options.packing = SettlePacking(command, backend, options.data, work);
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
  Progress progress(facts, metrics.get(), {command.monitor, command.watch});
  if (command.report.empty() || place.rank != 0) return Train(program, options, progress);
  std::optional<CostModel> costs;
  if (prediction && prediction->step) {
    costs.emplace(PredictingHardware(work), ClusterShape{place.world_size, place.local_world_size});
  }
  return RunWithReport(command.report, ReportOrigin(assumptions), facts, costs ? &*costs : nullptr,
                       backend, progress,
                       [&](TrainObserver& observer) { return Train(program, options, observer); });
}

// One of several processes. What it throws, it has told the others.
RunReport RunAsRank(const TrainCommand& command, Backend backend, const ProcessPlace& place) {
  if (place.rank != 0) SetLogLevel(std::min(GetLogLevel(), LogLevel::kWarning));
  const std::unique_ptr<ProcessGroup> group =
      JoinGroup(place, std::chrono::seconds(command.rendezvous_timeout.value_or(120)));
  try {
    return SpreadFailure(*group, [&] {
      Assumptions assumptions;
      TrainWork work = ResolveWork(command, backend, {.group = group.get()}, assumptions);
      CheckRanks(work, place);
      for (const std::string& note : assumptions.notes) LogInfo("{}", note);
      return RunRanks(command, work, backend, assumptions, group.get());
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
  std::optional<InterruptScope> interrupts;
  RunReport report;
  if (place) {
    interrupts.emplace();
    report = RunAsRank(command, backend, *place);
  } else {
    Assumptions assumptions;
    const bool follow = restarts || (backend == Backend::kCuda && command.plan.empty() &&
                                     RanksAskedFor(command, backend) > 1);
    TrainWork work = ResolveWork(command, backend, {.ranks_follow = follow}, assumptions);
    const int ranks = work.setup.batch.world_size;
    const bool rank_a_process = backend == Backend::kCuda && ranks > 1;
    if (rank_a_process || restarts) {
      // Their own resolving comes to the same; here mistakes are found before they start.
      ResolveTrainOptions(command, work);
      LaunchRanks(rank_a_process ? ranks : 1, restarts.value_or(RestartOptions{}));
      return;
    }
    for (const std::string& note : assumptions.notes) LogInfo("{}", note);
    interrupts.emplace();
    report = RunRanks(command, work, backend, assumptions, nullptr);
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
