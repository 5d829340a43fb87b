#include "executor/train/run_loop.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/stop_signals.h"
#include "core/base/timing.h"
#include "core/model/lora.h"
#include "core/model/model_spec.h"
#include "core/program/chrome_trace.h"
#include "executor/checkpoint/adapter_weights.h"
#include "executor/checkpoint/checkpoint_source.h"
#include "executor/checkpoint/hf_export.h"
#include "executor/train/run_end.h"
#include "executor/train/run_parts.h"
#include "executor/train/run_saves.h"
#include "executor/train/stragglers.h"
#include "text/sequences/data_facts.h"

namespace zeroplan {
namespace {

// What a process has of a validation: the sum of Engine::Evaluate's losses, and the targets that
// count.
struct CountedSum {
  double sum = 0;
  int64_t counted = 0;
};

// Of every process's after `batches` calls: the mean loss over the targets that count, by the first
// process's sum, to the bit. Empty where none counts.
std::optional<double> MeanOverRanks(const RunParts& parts, int64_t batches, const CountedSum& own) {
  double sum = 0;
  int64_t counted = 0;
  const std::vector<std::string> sums = parts.Gather(fmt::format("{:a} {}", own.sum, own.counted));
  for (size_t i = 0; i < sums.size(); ++i) {
    char* rest = nullptr;
    const double of_rank = std::strtod(sums[i].c_str(), &rest);
    if (i == 0) sum = of_rank;
    counted += std::strtoll(rest, nullptr, 10);
  }
  if (counted == 0) return std::nullopt;
  const BatchSpec& batch = parts.batch();
  const int64_t positions = batches * batch.micro_batch * batch.seq_len * batch.data_ranks();
  const double mean = sum / static_cast<double>(batches);
  return counted == positions
             ? mean
             : mean * static_cast<double>(positions) / static_cast<double>(counted);
}

using SteadyClock = std::chrono::steady_clock;

// Asking a GPU's driver for its memory takes a while: not at every step.
constexpr int64_t kDeviceUseEvery = 16;

std::optional<double> MfuOf(const RunParts& parts, double tokens_per_second) {
  const std::optional<double> peak = parts.options.dense_peak_flops;
  if (!peak) return std::nullopt;
  return StrictMfu(parts.opened.program.model, parts.batch().seq_len, tokens_per_second,
                   parts.batch().world_size, *peak);
}

// The validations of a run: the best one's checkpoint is kept, and too many in a row that are no
// better end the run. All ranks call it at the same points of the run.
class RunValidation {
 public:
  // All outlive it.
  RunValidation(const RunParts& parts, Leaving& leaving, RunSaves& saves)
      : parts_(parts), leaving_(leaving), saves_(saves) {}

  // Whether one is due after the step that was just made.
  bool IsDue() const {
    const int64_t every = parts_.options.validate_every, done = parts_.state.done;
    return every > 0 && done > 0 && done % every == 0;
  }

  // Notes the loss, unless a rank is asked to stop meanwhile.
  void Validate() {
    const ValidationData& data = *parts_.opened.validation;
    if (data.batches() == 0) return;
    const int64_t done = parts_.state.done;
    parts_.limits.SetMeeting(parts_.limits.step.seconds(),
                             fmt::format("the validation after step {}", done));
    CountedSum own;
    for (int64_t b = 0; b < data.batches(); ++b) {
      parts_.limits.ExpectStep(fmt::format("batch {} of the validation after step {}", b, done));
      leaving_.LookForReason();
      if (leaving_.leaving()) return;
      saves_.Look(0);
      int64_t of_batch = 0;
      own.sum += parts_.engine.Evaluate(
          [&](int rank, int64_t, std::span<int32_t> inputs, std::span<int32_t> targets,
              std::span<int32_t> starts) {
            try {
              data.Fill(b, rank, inputs, targets, starts);
            } catch (...) {
              leaving_.KeepFailure(std::current_exception());
              FillWithAnything(inputs, targets, starts, parts_.batch().seq_len,
                               parts_.opened.document_limits());
            }
          },
          &of_batch);
      own.counted += of_batch;
    }
    leaving_.LookForReason();
    if (leaving_.leaving()) return;
    // What follows hangs on it: rank 0's sum counts.
    const std::optional<double> loss = MeanOverRanks(parts_, data.batches(), own);
    if (!loss) {
      if (parts_.first()) LogWarning("no token of the validation part counts: no validation loss");
      return;
    }
    last_loss_ = *loss;
    parts_.state.best.Note(done, *loss);
    leaving_.Tell([&] { parts_.observer.OnValidation(done, *loss); });
  }

  // Between two steps: the same, and the checkpoint if it is to be kept.
  void ValidateAndKeep() {
    Validate();
    const BestValidation& best = parts_.state.best;
    const int64_t done = parts_.state.done;
    if (leaving_.leaving() || !best.NotedAt(done)) return;
    EndWithoutPatience();
    if (!parts_.options.keep_best || !best.IsAt(done)) return;
    saves_.SaveBetweenSteps(parts_.Meta());
    saved_at_ = done;
    leaving_.LookForReason();
  }

  // Ends the run if too many validations in a row were no better.
  void EndWithoutPatience() {
    const int64_t patience = parts_.options.patience;
    if (patience == 0 || parts_.state.best.worse() < patience) return;
    out_of_patience_ = true;
    if (parts_.first()) {
      LogInfo(
          "⟦patience⟧ {}: the run ends after step {}, as no loss of so many validations was "
          "the lowest",
          patience, parts_.state.done);
    }
  }

  std::optional<double> last_loss() const { return last_loss_; }
  bool out_of_patience() const { return out_of_patience_; }
  // The step at which ValidateAndKeep last saved; -1: it did not.
  int64_t saved_at() const { return saved_at_; }

 private:
  const RunParts& parts_;
  Leaving& leaving_;
  RunSaves& saves_;
  std::optional<double> last_loss_;
  bool out_of_patience_ = false;
  int64_t saved_at_ = -1;
};

// All ranks call it at the same points of the run.
class RunSteps {
 public:
  // All outlive it.
  RunSteps(const RunParts& parts, Leaving& leaving, RunSaves& saves, RunValidation& validation,
           BadSteps& bad_steps)
      : parts_(parts),
        leaving_(leaving),
        saves_(saves),
        validation_(validation),
        bad_steps_(bad_steps),
        router_(parts.opened.program.model) {}

  // Makes steps, and what is due between them, until the run has its length or ends early. Throws
  // as EndDiverged, and what fails.
  void Run() {
    while (parts_.state.done < parts_.opened.steps && !leaving_.leaving() &&
           !validation_.out_of_patience()) {
      Step();
    }
  }

  double median_seconds() const { return Median(seconds_); }
  double last_loss() const { return last_loss_; }
  // Memory in use on this rank's device, by anyone: the highest seen, now among them.
  std::optional<uint64_t> LookAtDevice() {
    const std::optional<uint64_t> used = parts_.engine.DeviceUsedBytes();
    if (used) device_used_bytes_ = std::max(device_used_bytes_.value_or(0), *used);
    return device_used_bytes_;
  }

 private:
  void Step() {
    parts_.group.ThrowIfFailed();
    // Alone there is nobody to agree with.
    if (parts_.group.world_size() == 1) leaving_.LookForReason();
    if (leaving_.leaving()) return;
    if (StopRequested() || leaving_.HasFailed()) parts_.engine.RequestStop();
    parts_.limits.ExpectStep(fmt::format("step {}", parts_.state.done + 1));
    const SteadyClock::time_point begin = SteadyClock::now();
    const StepState state = RunOnEngine();
    if (state.skip == kAbandoned) return leaving_.NoteAbandoned();
    const double seconds = SecondsSince(begin);
    seconds_.push_back(seconds);
    parts_.limits.step.Note(seconds);
    parts_.state.consumed += static_cast<uint64_t>(parts_.batch().global_batch());
    const int64_t done = ++parts_.state.done;
    const bool in_backward = parts_.opened.program.setup.zero.optimizer_in_backward;
    if (in_backward && state.skip == kGradientsNotFinite) EndDamaged(parts_, saves_);
    Report(state, seconds);
    if (bad_steps_.too_many()) EndDiverged(parts_, state, bad_steps_, saves_);
    if (state.stop_requested > 0) leaving_.LookForReason();
    if (done >= parts_.opened.steps || leaving_.leaving()) return;
    if (validation_.IsDue()) validation_.ValidateAndKeep();
    if (leaving_.leaving() || validation_.out_of_patience() || validation_.saved_at() == done)
      return;
    if (!saves_.IsDue()) return;
    saves_.SaveBetweenSteps(parts_.Meta());
    leaving_.LookForReason();
  }

  StepState RunOnEngine() {
    return parts_.engine.Step([this](int rank, int64_t m, std::span<int32_t> inputs,
                                     std::span<int32_t> targets, std::span<int32_t> starts) {
      try {
        parts_.opened.sampler->FillTrain(parts_.state.consumed, rank, m, inputs, targets, starts);
      } catch (...) {
        leaving_.KeepFailure(std::current_exception());
        FillWithAnything(inputs, targets, starts, parts_.batch().seq_len,
                         parts_.opened.document_limits());
        parts_.engine.AbandonStep(rank);
      }
    });
  }

  void Report(const StepState& state, double seconds) {
    StepReport step;
    step.step = parts_.state.done;
    step.state = state;
    step.tokens = parts_.batch().global_batch() * parts_.batch().seq_len;
    step.step_seconds = seconds;
    step.tokens_per_second = static_cast<double>(step.tokens) / seconds;
    step.mfu = MfuOf(parts_, step.tokens_per_second);
    step.times = parts_.engine.LastStepTimes();
    step.router = router_.Note(parts_.engine.RouterTotals());
    if (parts_.first() && step.router && step.router->warning) {
      LogWarning("{}", *step.router->warning);
    }
    {
      const Watch::Meeting meeting(parts_.watch);
      step.slowest = stragglers_.Note(parts_.engine.LastOwnSeconds(), parts_.group);
    }
    if (parts_.first() && step.slowest) {
      if (const auto warning = stragglers_.Warning(*step.slowest, SteadyClock::now())) {
        LogWarning("{}", *warning);
      }
    }
    saves_.NoteStep(seconds);
    saves_.Look(seconds);
    if (seconds_.size() == 1 || step.step % kDeviceUseEvery == 0) LookAtDevice();
    step.device_used_bytes = device_used_bytes_;
    last_loss_ = state.loss_sum;
    bad_steps_.Note(state);
    leaving_.Tell([&] { parts_.observer.OnStep(step); });
  }

  const RunParts& parts_;
  Leaving& leaving_;
  RunSaves& saves_;
  RunValidation& validation_;
  BadSteps& bad_steps_;
  Stragglers stragglers_;
  RouterWatch router_;
  std::vector<double> seconds_;  // of each step
  double last_loss_ = 0;
  std::optional<uint64_t> device_used_bytes_;
};

// What rank 0 says of the data before the first step.
void SayData(const RunParts& parts) {
  const BatchSampler& sampler = *parts.opened.sampler;
  if (parts.first()) {
    if (parts.options.skip_loss_spike > 0 &&
        parts.opened.program.setup.zero.optimizer_in_backward) {
      LogWarning(
          "⟦skip_loss_spike⟧ looks at the loss alone: with updates in the backward pass the "
          "gradient norm is known after them");
    }
    const DataFacts facts = FactsOf(*parts.opened.data, sampler);
    LogInfo("Data: {} {}", DataLine(facts),
            EpochText(facts, parts.batch().global_batch(), parts.opened.steps));
    const ValidationData& validation = *parts.opened.validation;
    if (const std::string text = validation.Describe(); !text.empty()) {
      LogInfo("{}", text);
    } else if (parts.options.shuffle && validation.batches() == 0) {
      LogInfo("{}",
              parts.options.holds_back
                  ? "too little data to hold back a global batch: no validation part"
                  : "no validation part: ⟦data_repeats⟧ holds back none; ⟦validation_data⟧ names "
                    "what to validate with");
    }
  }
  parts.observer.OnStart({parts.state.done, parts.opened.steps, sampler.train_samples()});
}

// The resumable checkpoint, and beside it the weights alone as transformers reads them.
void SaveFinal(const RunParts& parts, const RunValidation& validation, RunSaves& saves) {
  const TrainOptions& options = parts.options;
  const int64_t done = parts.state.done;
  saves.Finish();
  // A run that was over when it was resumed has nothing to add to its checkpoint.
  const bool as_resumed =
      done == parts.state.resumed_at && !validation.last_loss() && !options.keep_best;
  if (saves.saved_at() != done && !as_resumed) saves.Save(parts.Meta());
  parts.watch.Rest();
  parts.limits.SetMeeting(0, "writing the weights");
  if (!parts.first()) return;  // the others wait at the end
  const Program& program = parts.opened.program;
  const std::filesystem::path taken = FinalCheckpoint(options, parts.state.best.record());
  try {
    const auto source = CheckpointSource::Open(taken, program.model, *program.layout.tensors);
    if (HasAdapters(program.model)) {
      // Embeddings that come along untrained are not in the checkpoint.
      AdaptedWeights weights(options.init_from, options.adapter, program.model,
                             *program.layout.tensors, /*seed=*/1, options.resize_embeddings);
      weights.ReadTunedFrom(source);
      return WriteAdapter(options.save_dir, program.model, *program.layout.tensors, weights,
                          options.base_name, parts.opened.base_digest, options.final_weights);
    }
    WriteHfWeights(options.save_dir, program.model, *program.layout.tensors, source,
                   options.final_weights);
  } catch (const Error& error) {
    if (taken == options.save_dir || error.code() != ExitCode::kUsage) throw;
    const std::string what = error.what();
    ThrowUsage(
        "{}\n⟦final_weights⟧ best: the best checkpoint is damaged, and no weights are written; the "
        "run is saved: ⟦resume⟧ with ⟦final_weights⟧ last writes the last ones",
        what.substr(0, what.find('\n')));
  }
}

// The Chrome trace of what this process's ranks ran, and what `options` adds to it. REQUIRES: the
// engine is drained.
void WriteTrace(const Program& program, const Engine& engine, const TrainOptions& options) {
  ChromeTrace trace(program);
  for (int i = 0; i < engine.local_rank_count(); ++i) {
    const int rank = engine.first_local_rank() + i;
    std::vector<TracedInstruction> issued;
    for (const ExecutedInstruction& executed : engine.ExecutedTrace(rank)) {
      issued.push_back({executed.section, executed.index});
    }
    GiveTimes(program, engine.SpanTrace(rank), &issued);
    trace.AddProcess(fmt::format("rank {}", rank), issued);
  }
  if (options.add_to_trace) options.add_to_trace(trace);
  WriteTraceFile(options.trace_file, trace, "⟦trace⟧");
}

}  // namespace

RunReport RunLoop(const RunParts& parts, Leaving& leaving, RunSaves& saves) {
  BadSteps bad_steps(parts.opened.program.setup.precision, parts.options.max_bad_steps);
  bad_steps.Start(parts.engine.state());
  RunValidation validation(parts, leaving, saves);
  RunSteps steps(parts, leaving, saves, validation, bad_steps);
  const BestValidation& best = parts.state.best;
  SayData(parts);
  // A resume from a checkpoint that was saved before its step was validated.
  if (parts.options.watches_best() && validation.IsDue() && !best.NotedAt(parts.state.done)) {
    validation.ValidateAndKeep();
  }
  validation.EndWithoutPatience();
  steps.Run();
  if (!leaving.leaving() && !best.NotedAt(parts.state.done)) validation.Validate();
  if (leaving.some_rank_failed()) leaving.EndFailed(bad_steps, saves);
  if (const StepState state = parts.engine.state(); bad_steps.nothing_learned() &&
                                                    state.skipped_steps == parts.state.done &&
                                                    !leaving.leaving()) {
    EndUntrained(parts, state, bad_steps, saves);
  }
  if (!parts.options.save_dir.empty()) SaveFinal(parts, validation, saves);
  parts.limits.ExpectMoves("the last update");
  parts.engine.Drain();  // which may still fail
  parts.watch.Rest();
  if (parts.first() && !parts.options.trace_file.empty()) {
    WriteTrace(parts.opened.program, parts.engine, parts.options);
  }
  RunReport report;
  report.steps = parts.state.done;
  report.skipped_steps = parts.engine.state().skipped_steps;
  report.interrupted = leaving.interrupted();
  report.out_of_patience = validation.out_of_patience();
  report.saves = saves.count();
  report.saves_waited_for = saves.waited_for();
  report.step_seconds_median = steps.median_seconds();
  report.last_loss = steps.last_loss();
  report.validation_loss = validation.last_loss();
  report.high_water = parts.engine.high_water();
  report.device_used_bytes = steps.LookAtDevice();
  parts.observer.OnEnd(report);
  parts.group.Barrier();  // nobody leaves while another may still fail
  return report;
}

}  // namespace zeroplan
