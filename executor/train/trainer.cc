#include "executor/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "core/base/error.h"
#include "core/base/log.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/checkpoint_source.h"
#include "executor/checkpoint/checkpoint_writer.h"
#include "executor/checkpoint/hf_weights.h"
#include "executor/data/batch_sampler.h"
#include "executor/data/token_dataset.h"
#include "executor/optimizer/step_scalars.h"
#include "executor/train/interrupt.h"

namespace zeroplan {
namespace {

// fp16 at its smallest loss scale: so many skipped steps in a row are no longer bad luck.
constexpr int kHopelessSkips = 50;

using SteadyClock = std::chrono::steady_clock;
double SecondsSince(SteadyClock::time_point begin) {
  return std::chrono::duration<double>(SteadyClock::now() - begin).count();
}

SamplerOptions MakeSamplerOptions(const Program& program, const TrainOptions& options,
                                  uint64_t seed) {
  const BatchSpec& batch = program.setup.batch;
  SamplerOptions sampler;
  sampler.seq_len = batch.seq_len;
  sampler.micro_batch = batch.micro_batch;
  sampler.grad_accum = batch.grad_accum;
  sampler.world_size = batch.world_size;
  sampler.shuffle = options.shuffle;
  sampler.seed = seed;
  return sampler;
}

class Run {
 public:
  Run(const Program& program, const TrainOptions& options, TrainObserver& observer)
      : program_(program),
        options_(options),
        observer_(observer),
        checkpoint_(OpenCheckpoint()),
        seed_(ChooseSeed()),
        data_(TokenDataset::Open(options.data)),
        sampler_(WithVocab(data_, program.model.vocab),
                 MakeSamplerOptions(program, options, seed_)),
        engine_(program, MakeEngineOptions()) {}

  RunReport Execute() {
    Start();
    if (options_.shuffle && sampler_.validation_batches() == 0) {
      LogInfo("the data is shorter than two global batches: no validation part");
    }
    observer_.OnStart(done_, sampler_.train_samples());
    while (done_ < options_.steps && !report_.interrupted) OneStep();
    if (sampler_.validation_batches() > 0 && validated_at_ != done_) Validate();
    if (!options_.save_dir.empty()) SaveFinal();
    if (!options_.trace_file.empty()) {
      ChromeTrace trace(program_);
      for (int rank = 0; rank < program_.setup.batch.world_size; ++rank) {
        trace.BeginProcess(fmt::format("rank {}", rank));
        for (const TraceSpan& span : engine_.SpanTrace(rank)) trace.Add(span);
      }
      WriteTraceFile(options_.trace_file, trace, "--trace");
    }
    report_.steps = done_;
    report_.high_water = engine_.high_water();
    if (!step_seconds_.empty()) {
      const auto middle = step_seconds_.begin() + static_cast<int64_t>(step_seconds_.size() / 2);
      std::nth_element(step_seconds_.begin(), middle, step_seconds_.end());
      report_.step_seconds_median = *middle;
    }
    observer_.OnEnd(report_);
    return report_;
  }

 private:
  static const TokenDataset& WithVocab(TokenDataset& data, int64_t vocab) {
    data.SetVocab(vocab);
    return data;
  }

  std::unique_ptr<CheckpointSource> OpenCheckpoint() const {
    if (!options_.resume) {
      if (!options_.save_dir.empty() && HasCheckpoint(options_.save_dir)) {
        ThrowUsage(
            "--save {}: the folder holds checkpoints of an earlier run; continue it with --resume "
            "or choose another folder",
            options_.save_dir.string());
      }
      return nullptr;
    }
    if (options_.save_dir.empty()) {
      ThrowUsage("--resume needs --save DIR, the folder of the run to continue");
    }
    if (!HasCheckpoint(options_.save_dir)) {
      LogInfo("no checkpoint in {} yet: starting afresh", options_.save_dir.string());
      return nullptr;
    }
    return std::make_unique<CheckpointSource>(
        CheckpointSource::Open(options_.save_dir, program_.model, *program_.layout.tensors));
  }

  uint64_t ChooseSeed() const {
    if (!checkpoint_) return options_.seed.value_or(1);
    const uint64_t saved = checkpoint_->meta().seed;
    if (options_.seed && *options_.seed != saved) {
      ThrowUsage(
          "--seed {}: the checkpoint {} was made with seed {}, which fixes the order of its data; "
          "leave --seed out",
          *options_.seed, checkpoint_->folder().string(), saved);
    }
    return saved;
  }

  EngineOptions MakeEngineOptions() const {
    EngineOptions engine;
    engine.seed = seed_;
    engine.threads_per_rank = options_.threads_per_rank;
    engine.swap_dir = options_.swap_dir;
    engine.record_trace = !options_.trace_file.empty();
    return engine;
  }

  void Start() {
    engine_.Init();
    if (checkpoint_) {
      const CheckpointMeta& meta = checkpoint_->meta();
      StepState state = meta.state;
      // The gradient's scale depends on the batch, which a resumed run may cut differently.
      state.grad_scale = GradScale(program_.setup, state.loss_scale);
      state.stop_requested = 0;
      engine_.Load(*checkpoint_, true, &state);
      done_ = meta.step;
      consumed_ = meta.samples_consumed;
      if (meta.config_digest != options_.config_digest) {
        LogWarning(
            "the training configuration differs from the checkpoint's; it continues with the new "
            "one");
      }
      LogInfo("resumed from {} at step {}", checkpoint_->folder().string(), done_);
      checkpoint_.reset();
    } else if (!options_.init_from.empty()) {
      const HfWeightsSource weights(options_.init_from, program_.model, *program_.layout.tensors);
      engine_.Load(weights, false, nullptr);
    }
  }

  void OneStep() {
    if (StopRequested()) engine_.RequestStop();
    const SteadyClock::time_point begin = SteadyClock::now();
    const StepState state = engine_.Step(
        [this](int rank, int64_t m, std::span<int32_t> inputs, std::span<int32_t> targets) {
          sampler_.FillTrain(consumed_, rank, m, inputs, targets);
        });
    const double seconds = SecondsSince(begin);
    step_seconds_.push_back(seconds);
    consumed_ += static_cast<uint64_t>(program_.setup.batch.global_batch());
    ++done_;
    StepReport step;
    step.step = done_;
    step.state = state;
    step.tokens = program_.setup.batch.global_batch() * program_.setup.batch.seq_len;
    step.step_seconds = seconds;
    step.tokens_per_second = static_cast<double>(step.tokens) / seconds;
    report_.last_loss = state.loss_sum;
    observer_.OnStep(step);
    CheckDivergence(state);
    report_.interrupted = state.stop_requested > 0;
    const bool last = done_ >= options_.steps || report_.interrupted;
    if (last) return;
    if (options_.validate_every > 0 && done_ % options_.validate_every == 0) Validate();
    if (options_.save_every > 0 && done_ % options_.save_every == 0) Save();
  }

  void CheckDivergence(const StepState& state) {
    const PrecisionConfig& precision = program_.setup.precision;
    skips_in_a_row_ = state.skip != 0 ? skips_in_a_row_ + 1 : 0;
    const bool scales = precision.dtype == Dtype::kF16;
    const bool hopeless =
        scales ? skips_in_a_row_ >= kHopelessSkips &&
                     static_cast<double>(state.loss_scale) <= precision.min_loss_scale
               : !std::isfinite(state.loss_sum) || state.skip != 0;
    if (!hopeless) return;
    throw Error(
        ExitCode::kDiverged,
        fmt::format("training diverged at step {}: loss {}, gradient norm {}. Lower the learning "
                    "rate or lengthen its warm-up; the last checkpoint is unharmed",
                    done_, state.loss_sum, state.grad_norm));
  }

  void Validate() {
    const int64_t batches = std::min(options_.validation_batches, sampler_.validation_batches());
    if (batches == 0) return;
    double sum = 0;
    for (int64_t b = 0; b < batches; ++b) {
      sum += engine_.Evaluate(
          [this, b](int rank, int64_t, std::span<int32_t> inputs, std::span<int32_t> targets) {
            sampler_.FillValidation(b, rank, inputs, targets);
          });
    }
    report_.validation_loss = sum / static_cast<double>(batches);
    validated_at_ = done_;
    observer_.OnValidation(done_, *report_.validation_loss);
  }

  void Save() {
    CheckpointOptions writing;
    writing.world_size = program_.setup.batch.world_size;
    CheckpointWriter writer(options_.save_dir, program_.layout, done_, writing);
    engine_.Save(writer.sinks());
    CheckpointMeta meta;
    meta.step = done_;
    meta.samples_consumed = consumed_;
    meta.seed = seed_;
    meta.world_size = writing.world_size;
    meta.state = engine_.state();
    meta.model = program_.model;
    meta.config_digest = options_.config_digest;
    observer_.OnSaved(done_, writer.Finish(meta));
  }

  // The resumable checkpoint, and beside it the weights alone as transformers reads them.
  void SaveFinal() {
    Save();
    const auto source =
        CheckpointSource::Open(options_.save_dir, program_.model, *program_.layout.tensors);
    WriteHfWeights(options_.save_dir, program_.model, *program_.layout.tensors, source);
  }

  const Program& program_;
  const TrainOptions& options_;
  TrainObserver& observer_;
  std::unique_ptr<CheckpointSource> checkpoint_;
  const uint64_t seed_;
  TokenDataset data_;
  BatchSampler sampler_;
  Engine engine_;
  int64_t done_ = 0;       // optimizer steps, skipped ones included
  uint64_t consumed_ = 0;  // training positions used
  int64_t validated_at_ = -1;
  int skips_in_a_row_ = 0;
  std::vector<double> step_seconds_;
  RunReport report_;
};

}  // namespace

RunReport Train(const Program& program, const TrainOptions& options, TrainObserver& observer) {
  if (options.data.empty()) ThrowUsage("--data: name at least one text file, folder or token file");
  if (options.steps < 1) ThrowUsage("--steps {}: must be at least 1", options.steps);
  return Run(program, options, observer).Execute();
}

}  // namespace zeroplan
