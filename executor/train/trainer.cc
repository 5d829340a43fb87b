#include "executor/train/trainer.h"

#include <cstdlib>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/program/chrome_trace.h"
#include "executor/checkpoint/checkpoint_source.h"
#include "executor/checkpoint/hf_export.h"
#include "executor/optimizer/step_scalars.h"
#include "executor/process/process_group.h"
#include "executor/train/run_end.h"
#include "executor/train/run_open.h"
#include "executor/train/run_parts.h"
#include "executor/train/run_saves.h"
#include "executor/train/run_steps.h"
#include "executor/train/run_validation.h"

namespace zeroplan {
namespace {

// Of the ranks above 0: hears nothing.
class SilentObserver : public TrainObserver {
 public:
  void OnStart(const StartReport&) override {}
  void OnStep(const StepReport&) override {}
  void OnValidation(int64_t, double) override {}
  void OnSaved(const SaveReport&) override {}
  void OnEnd(const RunReport&) override {}
};

EngineOptions SettleEngine(const OpenedRun& run, const TrainOptions& options, Watch& watch,
                           const RunLimits& limits) {
  EngineOptions engine = options.engine;
  engine.watch = &watch;
  if (limits.still_seconds() <= 0) engine.communicator_seconds = 0;
  engine.deterministic = run.program.setup.deterministic;
  engine.documents = run.document_limits();
  engine.seed = run.seed;
  engine.fresh_weights = !run.checkpoint && !run.weights;
  engine.spike_factor = options.skip_loss_spike;
  engine.swap_dir = SwapFolder(run.program.setup.zero);
  engine.record_trace = !options.trace_file.empty();
  return engine;
}

// Continues the checkpoint that was opened. Returns where it leaves off.
RunState Resume(const RunParts& parts, const CheckpointSource& checkpoint) {
  parts.limits.ExpectMoves("loading the checkpoint");
  const CheckpointMeta& meta = checkpoint.meta();
  StepState state = meta.state;
  // The gradient's scale depends on the batch, which a resumed run may cut differently.
  state.grad_scale = GradScale(parts.opened.program.setup, state.loss_scale);
  state.stop_requested = 0;
  parts.engine.Load(checkpoint, true, &state);
  RunState resumed = {meta.step, meta.samples_consumed, meta.step, parts.state.best};
  if (meta.validation) {
    ResumeBest(resumed.best, *meta.validation, parts.options, parts.first(),
               [&](const std::string& mine) { return parts.Gather(mine).front(); });
  }
  if (parts.first()) {
    LogInfo("resumed from {} at step {}", checkpoint.folder().string(), meta.step);
  }
  return resumed;
}

// Fills the engine with what the run starts from, and lets go of that.
void LoadStart(const RunParts& parts, OpenedRun& run, RunSaves& saves) {
  const TrainOptions& options = parts.options;
  const std::string predicted =
      parts.Gather(fmt::format("{}", options.predicted_step_seconds.value_or(0))).front();
  parts.limits.step.Predict(std::strtod(predicted.c_str(), nullptr));
  parts.engine.Init();
  if (run.checkpoint) {
    parts.state = Resume(parts, *run.checkpoint);
    saves.ResumedFrom(run.checkpoint->folder());
    run.checkpoint.reset();
  } else if (run.weights) {
    parts.limits.ExpectMoves("loading weights");
    parts.engine.Load(*run.weights, false, nullptr);
    if (parts.first()) {
      LogInfo("weights: read from {} ({})", options.init_from.string(), run.weights->Describe());
    }
    run.weights.reset();
  } else if (parts.first()) {
    LogInfo("weights: fresh, drawn with seed {}; @@init_from DIR starts from published ones",
            run.seed);
  }
  parts.limits.SetMeeting(parts.limits.still_seconds(), "training");
  parts.watch.Rest();
}

// What rank 0 says of the data before the first step.
void SayData(const RunParts& parts) {
  const BatchSampler& sampler = *parts.opened.sampler;
  if (parts.first()) {
    const std::string packing = DescribePacking(sampler, parts.options.packing);
    if (!packing.empty()) LogInfo("{}", packing);
    const ValidationData& validation = *parts.opened.validation;
    if (const std::string text = validation.Describe(); !text.empty()) {
      LogInfo("{}", text);
    } else if (parts.options.shuffle && validation.batches() == 0) {
      LogInfo("too little data to hold back a global batch: no validation part");
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
  const auto source = CheckpointSource::Open(FinalCheckpoint(options, parts.state.best.record()),
                                             program.model, *program.layout.tensors);
  WriteHfWeights(options.save_dir, program.model, *program.layout.tensors, source,
                 options.final_weights);
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
  WriteTraceFile(options.trace_file, trace, "@@trace");
}

// Steps and validations to the end, and what is left there.
RunReport Loop(const RunParts& parts, Leaving& leaving, RunSaves& saves) {
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

// Opens, agrees, builds, loops.
RunReport Run(const Program& program, const TrainOptions& options, ProcessGroup& group,
              TrainObserver& observer) {
  OpenedRun run = OpenRun(program, options, group);
  AgreeOnRun(run, options, group);
  Watch watch({.group = &group});
  RunLimits limits(watch, group, options.step_timeout);
  limits.ExpectMoves("setting up");
  Engine engine(run.program, SettleEngine(run, options, watch, limits));
  RunState state{.best = BestValidation(run.validation->Identity())};
  const RunParts parts{run, options, group, observer, watch, limits, engine, state};
  Leaving leaving(parts);
  RunSaves saves(parts,
                 [&](const SaveReport& save) { leaving.Tell([&] { observer.OnSaved(save); }); });
  LoadStart(parts, run, saves);
  try {
    return Loop(parts, leaving, saves);
  } catch (...) {
    saves.FinishAlone();
    throw;
  }
}

}  // namespace

RunReport Train(const Program& program, const TrainOptions& options, TrainObserver& observer) {
  ZEROPLAN_CHECK(program.document_borders == (options.packing == Packing::kDocuments),
                 "packing {}, of a program {} borders of documents", PackingName(options.packing),
                 program.document_borders ? "with" : "without");
  if (options.data.empty()) ThrowUsage("@@data: name at least one text file, folder or token file");
  if (!options.epochs && options.steps < 1)
    ThrowUsage("@@steps {}: must be at least 1", options.steps);
  SingleProcess alone;
  ProcessGroup& group = options.engine.group != nullptr ? *options.engine.group : alone;
  SilentObserver silent;
  TrainObserver& heard = group.rank() == 0 ? observer : silent;
  return SpreadFailure(group, [&] { return Run(program, options, group, heard); });
}

}  // namespace zeroplan
