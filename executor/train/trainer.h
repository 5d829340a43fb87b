// A training run: data, steps, validation, checkpoints, stop. What a user sees of it (progress,
// metrics) is the observer's business.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/config/packing.h"
#include "core/program/program.h"
#include "core/program/step_state.h"
#include "executor/checkpoint/hf_export.h"
#include "executor/engine/engine.h"
#include "executor/process/process_group.h"
#include "executor/train/save_schedule.h"
#include "executor/train/stragglers.h"

namespace zeroplan {

class ChromeTrace;

struct TrainOptions {
  // `backend`, `group` and `threads_per_rank` are the caller's; Train settles the others.
  EngineOptions engine;
  std::vector<std::string> data;  // text files or folders, or token files
  int64_t steps = 100;            // optimizer steps in all, those before a resume included
  std::optional<double> epochs;   // in place of steps: what StepsOfEpochs makes of it
  std::optional<uint64_t> seed;   // of weights and data order; default 1, or the checkpoint's
  // How documents become sequences. kDocuments: the program has document_borders.
  Packing packing = Packing::kStream;
  bool truncate = false;           // documents longer than a sequence are cut off, not into pieces
  bool holds_back = true;          // a part of `data` is kept for validation, where there is none
  bool shuffle = true;             // false: samples in the stream's order, no validation part
  std::filesystem::path save_dir;  // checkpoints and final weights; empty: nothing is saved
  int64_t save_every = 0;          // steps; 0: at the end only
  // Interruptions a second, of all machines of the run. Above 0 it saves between steps as
  // SaveSchedule (executor/train/save_schedule.h) chooses, in place of save_every.
  double interruption_rate = 0;
  bool resume = false;         // from save_dir's latest checkpoint; fresh if there is none
  bool strict_resume = false;  // refuse if that is damaged, rather than take an older one
  int keep = 2;                // checkpoints that stay, see CommitCheckpoint
  std::vector<std::string> allow_change;  // of kHeldFacts: what a resume may change
  std::filesystem::path init_from;        // folder with Hugging Face weights; empty: fresh weights
  bool resize_embeddings = false;         // they may have fewer tokens than the model
  std::filesystem::path adapter;          // folder of adapters to go on from; empty: fresh ones
  std::string base_name;                  // what adapters name as the model that they are of
  HfExportOptions final_weights;          // what the weights in save_dir are saved as
  // Files as in `data` to validate with; empty: the tail of `data`, which is then not trained on.
  std::vector<std::string> validation_data;
  int64_t validate_every = 0;  // steps; 0: at the end only
  // Batches of one validation at most; unset: all of validation_data, or 16 of what is held back.
  std::optional<int64_t> validation_batches;
  // The checkpoint with the lowest validation loss is kept: each validation whose loss is lower
  // than all before saves one, and `best` names it (executor/checkpoint/checkpoint_folder.h).
  bool keep_best = false;
  bool best_weights = false;  // the weights at the end are that one's
  // The run ends after this many validations in a row whose loss is not below the lowest. 0: never.
  int64_t patience = 0;
  // A step whose gradients or loss are not finite is bad and is skipped. At most this many bad
  // steps in a row are let pass; one more ends the run.
  int64_t max_bad_steps = 5;
  // A step is also bad whose loss or gradient norm is above this many times its median over the
  // last kSpikeWindow steps. 0: none is.
  double skip_loss_spike = 0;
  // Seconds that a step may take before the run ends as hung; 0: any. Unset: what StepLimit
  // (executor/train/run_parts.h) makes of the steps before and of the prediction.
  std::optional<double> step_timeout;
  std::optional<double> predicted_step_seconds;    // rank 0's counts
  std::filesystem::path trace_file;                // Chrome trace of the whole run; empty: none
  std::function<void(ChromeTrace&)> add_to_trace;  // what was predicted, say; rank 0 calls it
  std::string choice;  // what the program was lowered from, for checkpoints; empty: they lack it
  IoHook* save_hook = nullptr;  // tests: of checkpoints
  // FLOP/s of one rank's device, dense, in the compute dtype: what MFU is a share of.
  std::optional<double> dense_peak_flops;

  // Whether the run goes by which validation was the best.
  bool watches_best() const { return keep_best || patience > 0; }
};

struct StepReport {
  int64_t step = 0;    // 1 for the first
  StepState state;     // after the step; `skip` says whether it changed anything
  int64_t tokens = 0;  // positions of this step, all ranks: padding and what does not count too
  double step_seconds = 0;
  double tokens_per_second = 0;  // of the same
  // Absent: the backend cannot know.
  std::optional<double> mfu;  // strict, see core/model/model_spec.h
  StepTimes times;            // this rank's
  // The slowest rank over the last steps (executor/train/stragglers.h).
  std::optional<SlowRank> slowest;
  // Memory in use on this rank's device, by anyone: the highest value that was seen; asked for at
  // some steps alone.
  std::optional<uint64_t> device_used_bytes;
};

// One checkpoint, once it is complete.
struct SaveReport {
  int64_t step = 0;
  std::filesystem::path folder;
  // Written beside the steps that followed, from a copy in host memory. False: nothing went on.
  bool beside = false;
  // What the steps waited for it: for the copy, or for all of it.
  double stall_seconds = 0;
  // The part of it that waited for a save under way: the next save was due, or the run over.
  double waited_seconds = 0;
  // Seconds until the commit, by rank 0's clock: from the end of the copy, where there is one.
  double write_seconds = 0;
  std::optional<ChosenInterval> chosen;  // where a SaveSchedule chooses: what it did after this one
};

struct RunReport {
  int64_t steps = 0;             // optimizer steps in all, skipped ones included
  int64_t skipped_steps = 0;     // of them, those before a resume included
  bool interrupted = false;      // left early on request, after saving
  bool out_of_patience = false;  // left early, see TrainOptions::patience
  int64_t saves = 0;             // of this process's run
  // How many of them were due while the one before was still being written.
  int64_t saves_waited_for = 0;
  double step_seconds_median = 0;
  double last_loss = 0;
  std::optional<double> validation_loss;      // the last
  HighWater high_water;                       // over this process's ranks
  std::optional<uint64_t> device_used_bytes;  // of this rank's device; the highest seen
};

struct StartReport {
  int64_t done = 0;            // steps before a resume
  int64_t steps = 0;           // of the whole run
  uint64_t train_samples = 0;  // of an epoch
};

// Hears what it overrides.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void OnStart(const StartReport& /*report*/) {}
  virtual void OnStep(const StepReport& /*report*/) {}
  virtual void OnValidation(int64_t /*step*/, double /*loss*/) {}
  virtual void OnSaved(const SaveReport& /*report*/) {}
  virtual void OnEnd(const RunReport& /*report*/) {}
};

// Runs to the end, or until StopRequested() (executor/process/stop_signals.h), which saves and
// returns with `interrupted`; nothing is validated before that save. Throws Error(kUsage) for data
// or weights that do not fit the model, Error(kDiverged) for more than max_bad_steps bad steps in a
// row, Error(kRuntime) for I/O. REQUIRES: `program` is lowered for training.
//
// A program that has a copy for it (core/program/step_order.h) is saved in two parts: the states
// are copied between two steps, and files are written, synced and committed beside those that
// follow (executor/train/background_save.h). One save is under way at most: the next waits for it,
// and so does the end of the run, whatever ends it but a failure of another rank. A failure of such
// a save ends the run at the next step's end.
//
// Where a step, the set-up or a save gets nowhere, Error(kRuntime) says which rank holds it up; a
// process that is stuck all the same is ended with kRuntime (executor/engine/watch.h).
//
// Where the state is whole on all ranks it is saved before an error leaves: after bad steps, which
// changed nothing, where data cannot be read, where the observer throws.
//
// With a group, every process calls it with the same arguments. Rank 0 chooses the checkpoint to
// resume from and the seed, and its observer alone is called; a stop asked of any rank is all
// ranks'; what one rank throws, all throw. Data, weights and save_dir lie where all ranks see them.
RunReport Train(const Program& program, const TrainOptions& options, TrainObserver& observer);

}  // namespace zeroplan
