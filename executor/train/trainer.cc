#include "executor/train/trainer.h"

#include <cstdlib>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/long_work.h"
#include "core/program/chrome_trace.h"
#include "executor/checkpoint/checkpoint_source.h"
#include "executor/checkpoint/hf_export.h"
#include "executor/optimizer/step_scalars.h"
#include "executor/process/process_group.h"
#include "executor/train/run_end.h"
#include "executor/train/run_loop.h"
#include "executor/train/run_open.h"
#include "executor/train/run_parts.h"
#include "executor/train/run_saves.h"

namespace zeroplan {
namespace {

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

// Continues the checkpoint that was opened, whose states `states` has, with the base below
// adapters. Returns where it leaves off.
RunState Resume(const RunParts& parts, const CheckpointSource& checkpoint,
                const StateSource& states) {
  parts.limits.ExpectMoves("loading the checkpoint");
  const CheckpointMeta& meta = checkpoint.meta();
  StepState state = meta.state;
  // The gradient's scale depends on the batch, which a resumed run may cut differently.
  state.grad_scale = GradScale(parts.opened.program.setup, state.loss_scale);
  state.stop_requested = 0;
  parts.engine.Load(states, true, &state);
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
    const StateSource* states = run.checkpoint.get();
    if (run.weights) states = run.weights.get();
    parts.state = Resume(parts, *run.checkpoint, *states);
    saves.ResumedFrom(run.checkpoint->folder());
    run.weights.reset();
    run.checkpoint.reset();
  } else if (run.weights) {
    parts.limits.ExpectMoves("loading weights");
    parts.engine.Load(*run.weights, false, nullptr);
    if (parts.first()) {
      LogInfo("weights: read from {} ({})", options.init_from.string(), run.weights_text);
    }
    run.weights.reset();
  } else if (parts.first()) {
    LogInfo("weights: fresh, drawn with seed {}; ⟦init_from⟧ DIR starts from published ones",
            run.seed);
  }
  parts.limits.SetMeeting(parts.limits.still_seconds(), "training");
  parts.watch.Rest();
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
  HearStops(nullptr);  // from here on between two steps, and what was trained is saved
  try {
    return RunLoop(parts, leaving, saves);
  } catch (...) {
    // Told before the folder of a save under way goes: others would fail of what they miss.
    FailOf(group, std::current_exception());
    saves.FinishAlone();
    throw;
  }
}

}  // namespace

RunReport Train(const Program& program, const TrainOptions& options, TrainObserver& observer) {
  ZEROPLAN_CHECK(program.document_borders == (options.packing == Packing::kDocuments),
                 "packing {}, of a program {} borders of documents", PackingName(options.packing),
                 program.document_borders ? "with" : "without");
  if (options.data.empty()) ThrowUsage("⟦data⟧: name at least one text file, folder or token file");
  if (!options.epochs && options.steps < 1)
    ThrowUsage("⟦steps⟧ {}: must be at least 1", options.steps);
  SingleProcess alone;
  ProcessGroup& group = options.engine.group != nullptr ? *options.engine.group : alone;
  TrainObserver silent;  // of the ranks above 0
  TrainObserver& heard = group.rank() == 0 ? observer : silent;
  return SpreadFailure(group, [&] { return Run(program, options, group, heard); });
}

}  // namespace zeroplan
