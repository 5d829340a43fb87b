#include "executor/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/timing.h"
#include "core/model/model_flops.h"
#include "core/program/fingerprint.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/checkpoint_source.h"
#include "executor/checkpoint/hf_weights.h"
#include "executor/checkpoint/save_room.h"
#include "executor/data/batch_sampler.h"
#include "executor/engine/watch.h"
#include "executor/optimizer/step_scalars.h"
#include "executor/process/single_process.h"
#include "executor/process/spread_failure.h"
#include "executor/train/bad_steps.h"
#include "executor/train/best_validation.h"
#include "executor/train/divergence.h"
#include "executor/train/interrupt.h"
#include "executor/train/resume_choice.h"
#include "executor/train/run_agreement.h"
#include "executor/train/run_batches.h"
#include "executor/train/run_identity.h"
#include "executor/train/run_length.h"
#include "executor/train/run_limits.h"
#include "executor/train/run_saves.h"
#include "executor/train/run_start.h"
#include "executor/train/run_surroundings.h"
#include "executor/train/step_limit.h"
#include "executor/train/validation_data.h"
#include "text/files/token_dataset.h"

namespace zeroplan {
namespace {

// Token ids are looked at before the first step up to so many bytes of token files over all ranks:
// a few seconds. What is past it is looked at in blocks, and all of it as it is read.
constexpr uint64_t kVocabCheckBytes = uint64_t{16} << 30;

// Asking a GPU's driver for its memory takes a while: not at every step.
constexpr int64_t kDeviceUseEvery = 16;

using SteadyClock = std::chrono::steady_clock;
class Run {
 public:
  Run(const Program& program, const TrainOptions& options, ProcessGroup& group,
      TrainObserver& observer)
      : program_(program),
        options_(options),
        group_(group),
        observer_(observer),
        lock_(LockSaveFolder(options, group)),
        checkpoint_(OpenCheckpoint(program, options, group, damaged_)),
        seed_(ChooseSeed(options, checkpoint_.get())),
        weights_(checkpoint_ ? nullptr : OpenWeights(program, options)),
        data_(OpenData()),
        digest_(data_.Digest()),
        sampler_(data_, SamplerOptionsOf(program, options, data_, seed_, TrainTokensSoFar())),
        steps_(DecideSteps()),
        facts_(FactsOf(steps_)),
        validation_(program.setup, program.model.vocab, options, group.rank(), sampler_),
        best_(validation_.Identity()),
        agreed_(Agree()),
        step_limit_(options.step_timeout),
        watch_({.group = &group}),
        limits_(watch_, group, step_limit_),
        engine_(program_, MakeEngineOptions()),
        saves_({program_, options_, group_, engine_, watch_, limits_}, damaged_,
               [this](const SaveReport& save) { Tell([&] { observer_.OnSaved(save); }); }),
        bad_steps_(program.setup.precision, options.max_bad_steps) {}

  RunReport Execute() {
    try {
      return Go();
    } catch (...) {
      saves_.FinishAlone();
      throw;
    }
  }

 private:
  RunReport Go() {
    Start();
    if (first()) SayPacking();
    if (first()) SayValidation();
    observer_.OnStart({done_, steps_, sampler_.train_samples()});
    if (watches_best() && ValidationIsDue() && !best_.NotedAt(done_)) ValidateAndKeep();
    EndWithoutPatience();
    while (done_ < steps_ && !leaving() && !report_.out_of_patience) OneStep();
    if (!leaving() && !best_.NotedAt(done_)) Validate();
    if (some_rank_failed_) EndFailed();
    if (!options_.save_dir.empty()) SaveFinal();
    limits_.ExpectMoves("the last update");
    engine_.Drain();  // which may still fail
    watch_.Rest();
    if (first() && !options_.trace_file.empty()) {
      WriteTrace(program_, engine_, options_);
    }
    report_.steps = done_;
    report_.saves = saves_.count();
    report_.saves_waited_for = saves_.waited_for();
    report_.skipped_steps = engine_.state().skipped_steps;
    report_.high_water = engine_.high_water();
    LookAtDevice();
    report_.step_seconds_median = Median(step_seconds_);
    observer_.OnEnd(report_);
    group_.Barrier();  // nobody leaves while another may still fail
    return report_;
  }

  bool first() const { return group_.rank() == 0; }

  void SayPacking() const {
    const std::string text = DescribePacking(sampler_, options_.packing);
    if (!text.empty()) LogInfo("{}", text);
  }

  // Ids outside the vocabulary are found here, each rank looking at its part, and not after hours.
  TokenDataset OpenData() const {
    TokenDataset data = TokenDataset::Open(options_.data);
    data.SetVocab(program_.model.vocab);
    const int rank = group_.rank(), ranks = group_.world_size();
    const uint64_t budget = kVocabCheckBytes / static_cast<uint64_t>(ranks);
    const uint64_t looked = data.CheckVocab(rank, ranks, budget);
    if (const uint64_t all = data.PartSize(rank, ranks); first() && looked < all) {
      LogInfo(
          "--data: {:.0f} % of the tokens were held against the vocabulary, in blocks; the others "
          "are as they are read",
          100 * static_cast<double>(looked) / static_cast<double>(all));
    }
    return data;
  }

  // Before the engine, whose own meeting of the ranks would not say what is wrong.
  bool Agree() {
    if (first() && !options_.save_dir.empty()) {
      CheckRunRoom(program_, options_, steps_, checkpoint_ ? checkpoint_->meta().step : 0,
                   group_.place().local_world_size);
    }
    if (first() && checkpoint_) {
      for (const RunChange& change : ChangesBy(facts_)) LogWarning("{}", change.sentence);
    }
    if (watches_best() && validation_.batches() == 0) {
      ThrowUsage(
          "{}: there is nothing to validate with: the data is too little to hold back a global "
          "batch, or --no-shuffle holds back none; give --validation-data",
          options_.keep_best ? "--keep-best" : "--patience");
    }
    NamedFacts facts = {{"program", FormatFingerprint(Fingerprint(program_))},
                        {"--seed", std::to_string(seed_)},
                        {"--steps", std::to_string(steps_)},
                        {"--init-from", options_.init_from.string()},
                        {"--save", options_.save_dir.string()},
                        {"--save-every", std::to_string(options_.save_every)},
                        {"--validate-every", std::to_string(options_.validate_every)},
                        {"--validation-data", validation_.Identity()},
                        {"--validation-batches", std::to_string(validation_.batches())},
                        {"--keep-best", options_.keep_best ? "given" : "not given"},
                        {"--patience", std::to_string(options_.patience)},
                        {"--max-bad-steps", std::to_string(options_.max_bad_steps)},
                        {"--skip-loss-spike", fmt::format("{}", options_.skip_loss_spike)}};
    facts.insert(facts.end(), facts_.begin(), facts_.end());
    AgreeOnFacts(group_, facts);
    return true;
  }

  // What decides the numbers of a run of so many steps.
  NamedFacts FactsOf(int64_t steps) const {
    return DecidingFacts(program_.setup, steps, options_.shuffle, digest_, options_.packing);
  }

  // What a resume changes. Throws for what it may not.
  std::vector<RunChange> ChangesBy(const NamedFacts& facts) const {
    return CompareWithCheckpoint(facts, checkpoint_->meta().run, options_.allow_change,
                                 checkpoint_->folder().string());
  }

  // What an earlier part of the run trained on, so that what it held back stays so.
  std::optional<uint64_t> TrainTokensSoFar() const {
    if (!checkpoint_) return std::nullopt;
    const CheckpointMeta& meta = checkpoint_->meta();
    bool other_samples = false;
    // The run's length is not known yet: what hangs on it is looked at later.
    for (const RunChange& change : ChangesBy(FactsOf(0))) {
      other_samples = other_samples || change.name == "data" || change.name == "order";
    }
    if (other_samples) return std::nullopt;  // held back anew
    const auto length = static_cast<uint64_t>(program_.setup.batch.seq_len);
    if (meta.train_tokens > 0) return meta.train_tokens;
    return options_.packing == Packing::kStream ? (data_.size() - 1) / length * length
                                                : data_.size();
  }

  // Settles the schedule, too.
  int64_t DecideSteps() {
    int64_t steps = options_.steps;
    if (options_.epochs) {
      EpochCount count;
      count.epochs = *options_.epochs;
      count.train_samples = sampler_.train_samples();
      count.global_batch = program_.setup.batch.global_batch();
      if (checkpoint_) {
        count.done = checkpoint_->meta().step;
        count.consumed = checkpoint_->meta().samples_consumed;
      }
      steps = StepsOfEpochs(count);
      if (first()) {
        LogInfo("--epochs {}: of {} samples, in batches of {}: {} steps", count.epochs,
                count.train_samples, count.global_batch, steps);
      }
    }
    ScheduleConfig& schedule = program_.setup.optimizer.schedule;
    schedule = ScheduleOfRun(schedule, steps);
    return steps;
  }

  DocumentLimits DocumentLimit() const {
    return DocumentLimits::Either(sampler_.document_limits(), validation_.document_limits());
  }

  EngineOptions MakeEngineOptions() {
    limits_.ExpectMoves("setting up");
    EngineOptions engine;
    engine.watch = &watch_;
    if (step_limit_.still_seconds() <= 0) engine.communicator_seconds = 0;
    engine.backend = options_.backend;
    engine.group = options_.group;
    engine.deterministic = program_.setup.deterministic;
    engine.documents = DocumentLimit();
    engine.seed = seed_;
    engine.fresh_weights = !checkpoint_ && !weights_;
    engine.spike_factor = options_.skip_loss_spike;
    engine.threads_per_rank = options_.threads_per_rank;
    engine.swap_dir = options_.swap_dir;
    engine.record_trace = !options_.trace_file.empty();
    return engine;
  }

  // Every rank's text, by rank.
  std::vector<std::string> Gather(const std::string& mine) {
    const Watch::Meeting meeting(watch_);
    return group_.AllGather(mine);
  }

  void Start() {
    const std::string predicted =
        Gather(fmt::format("{}", options_.predicted_step_seconds.value_or(0))).front();
    step_limit_.Predict(std::strtod(predicted.c_str(), nullptr));
    engine_.Init();
    if (checkpoint_) {
      limits_.ExpectMoves("loading the checkpoint");
      const CheckpointMeta& meta = checkpoint_->meta();
      StepState state = meta.state;
      // The gradient's scale depends on the batch, which a resumed run may cut differently.
      state.grad_scale = GradScale(program_.setup, state.loss_scale);
      state.stop_requested = 0;
      engine_.Load(*checkpoint_, true, &state);
      done_ = resumed_at_ = meta.step;
      consumed_ = meta.samples_consumed;
      saves_.ResumedFrom(checkpoint_->folder());
      if (meta.validation) {
        ResumeBest(best_, *meta.validation, options_, first(),
                   [this](const std::string& mine) { return Gather(mine).front(); });
      }
      if (first()) LogInfo("resumed from {} at step {}", saves_.last_checkpoint().string(), done_);
      checkpoint_.reset();
    } else if (weights_) {
      limits_.ExpectMoves("loading weights");
      engine_.Load(*weights_, false, nullptr);
      if (first()) {
        LogInfo("weights: read from {} ({})", options_.init_from.string(), weights_->Describe());
      }
      weights_.reset();
    } else if (first()) {
      LogInfo("weights: fresh, drawn with seed {}; --init-from DIR starts from published ones",
              seed_);
    }
    bad_steps_.Start(engine_.state());
    limits_.SetMeeting(step_limit_.still_seconds(), "training");
    watch_.Rest();
  }

  // ---- what ends a run early ----

  bool leaving() const { return report_.interrupted || some_rank_failed_; }

  // Keeps this process's failure until all ranks have saved. Any thread.
  void KeepFailure(const std::exception_ptr& failure) {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = failure;
  }
  bool HasFailed() {
    const std::lock_guard lock(failure_mutex_);
    return failure_ != nullptr;
  }

  // The observer's failure is no reason to lose what was trained.
  template <typename Fn>
  void Tell(Fn&& tell) {
    try {
      tell();
    } catch (...) {
      KeepFailure(std::current_exception());
    }
  }

  // Between steps: whether any rank was asked to stop or has failed. All ranks call it at once.
  void LookForReasonToLeave() {
    const char mine = HasFailed() ? 'f' : StopRequested() ? 's' : '-';
    for (const std::string& of_rank : Gather(std::string(1, mine))) {
      some_rank_failed_ = some_rank_failed_ || of_rank == "f";
      report_.interrupted = report_.interrupted || of_rank == "s";
    }
  }

  // The state is whole on every rank.
  [[noreturn]] void EndFailed() {
    if (!options_.save_dir.empty()) {
      try {
        saves_.Finish();
        if (bad_steps_.any_taken() && saves_.saved_at() != done_) saves_.Save(Meta());
      } catch (const Error& error) {
        LogWarning("not saved before the run ends: {}", error.what());
        if (!failure_) throw;  // the others wait for this rank's part of the checkpoint
      }
    }
    if (failure_) std::rethrow_exception(failure_);
    group_.Barrier();  // the rank that failed tells why
    ZEROPLAN_CHECK(false, "a rank said that it had failed, and did not");
  }

  void OneStep() {
    group_.ThrowIfFailed();
    // Alone there is nobody to agree with.
    if (group_.world_size() == 1) LookForReasonToLeave();
    if (leaving()) return;
    if (StopRequested() || HasFailed()) engine_.RequestStop();
    watch_.Expect(fmt::format("step {}", done_ + 1), Watch::Seconds(step_limit_.seconds()));
    const SteadyClock::time_point begin = SteadyClock::now();
    const StepState state = engine_.Step([this](int rank, int64_t m, std::span<int32_t> inputs,
                                                std::span<int32_t> targets,
                                                std::span<int32_t> starts) {
      try {
        sampler_.FillTrain(consumed_, rank, m, inputs, targets, starts);
      } catch (...) {
        KeepFailure(std::current_exception());
        FillWithAnything(inputs, targets, starts, program_.setup.batch.seq_len, DocumentLimit());
        engine_.AbandonStep(rank);
      }
    });
    if (state.skip == kAbandoned) {
      some_rank_failed_ = true;
      return;
    }
    const double seconds = SecondsSince(begin);
    step_seconds_.push_back(seconds);
    step_limit_.Note(seconds);
    consumed_ += static_cast<uint64_t>(program_.setup.batch.global_batch());
    ++done_;
    StepReport step;
    step.step = done_;
    step.state = state;
    step.tokens = program_.setup.batch.global_batch() * program_.setup.batch.seq_len;
    step.step_seconds = seconds;
    step.tokens_per_second = static_cast<double>(step.tokens) / seconds;
    step.mfu = Mfu(step.tokens_per_second);
    step.times = engine_.LastStepTimes();
    {
      const Watch::Meeting meeting(watch_);
      step.slowest = stragglers_.Note(engine_.LastOwnSeconds(), group_);
    }
    if (first() && step.slowest) {
      if (const auto warning = stragglers_.Warning(*step.slowest, SteadyClock::now())) {
        LogWarning("{}", *warning);
      }
    }
    saves_.Look(seconds);
    if (step_seconds_.size() == 1 || done_ % kDeviceUseEvery == 0) LookAtDevice();
    step.device_used_bytes = report_.device_used_bytes;
    report_.last_loss = state.loss_sum;
    bad_steps_.Note(state);
    Tell([&] { observer_.OnStep(step); });
    if (bad_steps_.too_many()) EndDiverged(done_, state, bad_steps_, options_, saves_, Meta());
    if (state.stop_requested > 0) LookForReasonToLeave();
    if (done_ >= steps_ || leaving()) return;
    if (ValidationIsDue()) ValidateAndKeep();
    if (leaving() || report_.out_of_patience || saved_best_at_ == done_) return;
    if (options_.save_every == 0 || done_ % options_.save_every != 0) return;
    saves_.SaveBetweenSteps(Meta());
    LookForReasonToLeave();
  }

  std::optional<double> Mfu(double tokens_per_second) const {
    if (!options_.dense_peak_flops) return std::nullopt;
    const BatchSpec& batch = program_.setup.batch;
    return StrictMfu(program_.model, batch.seq_len, tokens_per_second, batch.world_size,
                     *options_.dense_peak_flops);
  }

  void LookAtDevice() {
    const std::optional<uint64_t> used = engine_.DeviceUsedBytes();
    if (used) report_.device_used_bytes = std::max(report_.device_used_bytes.value_or(0), *used);
  }

  // ---- validation ----

  bool watches_best() const { return options_.keep_best || options_.patience > 0; }
  bool ValidationIsDue() const {
    return options_.validate_every > 0 && done_ > 0 && done_ % options_.validate_every == 0;
  }

  void SayValidation() const {
    if (const std::string text = validation_.Describe(); !text.empty()) {
      LogInfo("{}", text);
    } else if (options_.shuffle && validation_.batches() == 0) {
      LogInfo("too little data to hold back a global batch: no validation part");
    }
  }

  // Left where a rank is asked to stop.
  void Validate() {
    const int64_t batches = validation_.batches();
    if (batches == 0) return;
    limits_.SetMeeting(step_limit_.seconds(), fmt::format("the validation after step {}", done_));
    double sum = 0;
    int64_t counted = 0;  // of this process's ranks
    for (int64_t b = 0; b < batches; ++b) {
      watch_.Expect(fmt::format("batch {} of the validation after step {}", b, done_),
                    Watch::Seconds(step_limit_.seconds()));
      LookForReasonToLeave();
      if (leaving()) return;
      saves_.Look(0);
      int64_t of_batch = 0;
      sum += engine_.Evaluate(
          [this, b](int rank, int64_t, std::span<int32_t> inputs, std::span<int32_t> targets,
                    std::span<int32_t> starts) {
            try {
              validation_.Fill(b, rank, inputs, targets, starts);
            } catch (...) {
              KeepFailure(std::current_exception());
              FillWithAnything(inputs, targets, starts, program_.setup.batch.seq_len,
                               DocumentLimit());
            }
          },
          &of_batch);
      counted += of_batch;
    }
    LookForReasonToLeave();
    if (leaving()) return;
    // What follows hangs on it: rank 0's sum counts, to the bit.
    const std::optional<double> loss =
        MeanOfCounted(program_.setup.batch, batches, Gather(CountedSum(sum, counted)));
    if (!loss) {
      if (first()) LogWarning("no token of the validation part counts: no validation loss");
      return;
    }
    report_.validation_loss = *loss;
    best_.Note(done_, *report_.validation_loss);
    Tell([&] { observer_.OnValidation(done_, *report_.validation_loss); });
  }

  void EndWithoutPatience() {
    if (options_.patience == 0 || best_.worse() < options_.patience) return;
    report_.out_of_patience = true;
    if (first()) {
      LogInfo(
          "--patience {}: the run ends after step {}, as no loss of so many validations was "
          "the lowest",
          options_.patience, done_);
    }
  }

  // Between two steps.
  void ValidateAndKeep() {
    Validate();
    if (leaving() || !best_.NotedAt(done_)) return;
    EndWithoutPatience();
    if (!options_.keep_best || !best_.IsAt(done_)) return;
    saves_.SaveBetweenSteps(Meta());
    saved_best_at_ = done_;
    LookForReasonToLeave();
  }

  CheckpointMeta Meta() const {
    CheckpointMeta meta;
    meta.step = done_;
    meta.samples_consumed = consumed_;
    meta.seed = seed_;
    meta.world_size = program_.setup.batch.world_size;
    meta.model = program_.model;
    meta.train_tokens = sampler_.train_tokens();
    meta.validation = best_.record();
    meta.is_best = options_.keep_best && best_.IsAt(done_);
    for (const auto& [name, value] : facts_) meta.run[name] = value;
    return meta;
  }

  // The resumable checkpoint, and beside it the weights alone as transformers reads them.
  void SaveFinal() {
    saves_.Finish();
    // A run that was over when it was resumed has nothing to add to its checkpoint.
    const bool as_resumed = done_ == resumed_at_ && !report_.validation_loss && !options_.keep_best;
    if (saves_.saved_at() != done_ && !as_resumed) saves_.Save(Meta());
    watch_.Rest();
    limits_.SetMeeting(0, "writing the weights");
    if (!first()) return;  // the others wait at the end
    const auto source = CheckpointSource::Open(FinalCheckpoint(options_, best_.record()),
                                               program_.model, *program_.layout.tensors);
    WriteHfWeights(options_.save_dir, program_.model, *program_.layout.tensors, source,
                   options_.final_weights);
  }

  Program program_;  // with the schedule of this run's length
  const TrainOptions& options_;
  ProcessGroup& group_;
  TrainObserver& observer_;
  const std::optional<SaveLock> lock_;
  std::vector<std::string> damaged_;  // checkpoints that a resume passed over
  std::unique_ptr<CheckpointSource> checkpoint_;
  const uint64_t seed_;
  std::unique_ptr<HfWeightsSource> weights_;
  TokenDataset data_;
  const std::string digest_;  // of data_
  BatchSampler sampler_;
  const int64_t steps_;  // of the whole run
  const NamedFacts facts_;
  const ValidationData validation_;
  BestValidation best_;
  const bool agreed_;
  StepLimit step_limit_;
  Watch watch_;
  const RunLimits limits_;
  Engine engine_;
  RunSaves saves_;
  int64_t done_ = 0;       // optimizer steps, skipped ones included
  uint64_t consumed_ = 0;  // training positions used
  int64_t saved_best_at_ = -1, resumed_at_ = -1;
  BadSteps bad_steps_;
  Stragglers stragglers_;
  bool some_rank_failed_ = false;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;  // of this process; under failure_mutex_
  std::vector<double> step_seconds_;
  RunReport report_;
};

}  // namespace

RunReport Train(const Program& program, const TrainOptions& options, TrainObserver& observer) {
  ZEROPLAN_CHECK(program.document_borders == (options.packing == Packing::kDocuments),
                 "--packing {}, of a program {} borders of documents", PackingName(options.packing),
                 program.document_borders ? "with" : "without");
  if (options.data.empty()) ThrowUsage("--data: name at least one text file, folder or token file");
  if (!options.epochs && options.steps < 1)
    ThrowUsage("--steps {}: must be at least 1", options.steps);
  SingleProcess alone;
  ProcessGroup& group = options.group != nullptr ? *options.group : alone;
  SilentObserver silent;  // of the ranks above 0
  TrainObserver& heard = group.rank() == 0 ? observer : silent;
  return SpreadFailure(group, [&] { return Run(program, options, group, heard).Execute(); });
}

}  // namespace zeroplan
