// A training run: data, steps, validation, checkpoints, stop. The observer presents it to the user
// (progress, metrics).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/program/program.h"
#include "core/program/step_state.h"
#include "core/settings/packing.h"
#include "executor/checkpoint/hf_export.h"
#include "executor/engine/engine.h"
#include "executor/process/process_group.h"
#include "executor/train/router_watch.h"
#include "executor/train/save_schedule.h"
#include "executor/train/stragglers.h"

namespace zeroplan {

class ChromeTrace;

struct TrainOptions {
  // The caller sets `backend`, `group` and `threads_per_rank`; Train sets the others.
  EngineOptions engine;
  std::vector<std::string> data;  // text files or folders, or token files
  int64_t steps = 100;            // optimizer steps in all, including those before a resume
  std::optional<double> epochs;   // instead of steps: StepsOfEpochs converts it
  std::optional<uint64_t> seed;   // seed of weights and data order; default 1, or the checkpoint's
  // The packing of documents into sequences. kDocuments: the program has document_borders.
  Packing packing = Packing::kStream;
  bool truncate = false;   // cut documents longer than a sequence off, rather than into pieces
  bool holds_back = true;  // without validation data, hold a part of `data` back for validation
  bool shuffle = true;     // false: samples in the stream's order, no validation part
  std::filesystem::path save_dir;  // checkpoints and final weights; empty: save nothing
  int64_t save_every = 0;          // steps; 0: at the end only
  // Interruptions a second, over all machines of the run. If above 0, it saves between steps as
  // SaveSchedule (executor/train/save_schedule.h) chooses, instead of by save_every.
  double interruption_rate = 0;
  bool resume = false;         // from save_dir's latest checkpoint; fresh if there is none
  bool strict_resume = false;  // refuse a damaged checkpoint, rather than use an older one
  int keep = 2;                // number of checkpoints to keep, see CommitCheckpoint
  std::vector<std::string> allow_change;  // kHeldFacts that a resume may change
  std::filesystem::path init_from;        // folder with Hugging Face weights; empty: fresh weights
  bool resize_embeddings = false;         // the weights may have fewer tokens than the model
  std::filesystem::path adapter;          // folder of adapters to continue; empty: fresh ones
  std::string base_name;                  // the name of the base model in adapters
  HfExportOptions final_weights;          // format of the weights saved in save_dir
  // Validation files, of the same kinds as `data`; empty: the tail of `data`, which is then not
  // trained on.
  std::vector<std::string> validation_data;
  int64_t validate_every = 0;  // steps; 0: at the end only
  // Batches of one validation at most; unset: all of validation_data, or 16 of the part held back.
  std::optional<int64_t> validation_batches;
  // Keeps the checkpoint with the lowest validation loss: each validation whose loss is lower than
  // all before saves one, and `best` names it (executor/checkpoint/checkpoint_folder.h).
  bool keep_best = false;
  bool best_weights = false;  // save that checkpoint's weights at the end
  // The run ends after this many validations in a row whose loss is not below the lowest. 0: no
  // limit.
  int64_t patience = 0;
  // A step whose gradients or loss are not finite is bad and is skipped. At most this many bad
  // steps in a row are tolerated; one more ends the run.
  int64_t max_bad_steps = 5;
  // A step is also bad if its loss or gradient norm exceeds this many times its median over the
  // last kSpikeWindow steps. 0: no such limit.
  double skip_loss_spike = 0;
  // Seconds of a step after which the run ends as hung; 0: no limit. Unset: StepLimit
  // (executor/train/run_parts.h) derives it from earlier steps and the prediction.
  std::optional<double> step_timeout;
  std::optional<double> predicted_step_seconds;  // rank 0's counts
  std::filesystem::path trace_file;              // Chrome trace of the whole run; empty: none
  // adds the prediction, for example; called on rank 0
  std::function<void(ChromeTrace&)> add_to_trace;
  std::string choice;           // the program's inputs of lowering, for checkpoints; empty: none
  IoHook* save_hook = nullptr;  // tests: hook of checkpoints
  // Dense FLOP/s of one rank's device in the compute dtype, the denominator of MFU.
  std::optional<double> dense_peak_flops;

  // Whether the run depends on the best validation.
  bool watches_best() const { return keep_best || patience > 0; }
};

struct StepReport {
  int64_t step = 0;  // 1 for the first
  StepState state;   // after the step; `skip` tells whether it changed anything
  // positions of this step, all ranks, including padding and those that do not count
  int64_t tokens = 0;
  double step_seconds = 0;
  double tokens_per_second = 0;  // `tokens` over `step_seconds`
  // Absent: the backend cannot measure it.
  std::optional<double> mfu;           // strict, see core/model/model_spec.h
  StepTimes times;                     // this rank's
  std::optional<RouterReport> router;  // set for a mixture of experts
  // The slowest rank over the last steps (executor/train/stragglers.h).
  std::optional<SlowRank> slowest;
  // Memory in use on this rank's device, by all processes: the highest value seen; sampled at some
  // steps only.
  std::optional<uint64_t> device_used_bytes;
};

// One checkpoint, once it is complete.
struct SaveReport {
  int64_t step = 0;
  std::filesystem::path folder;
  // Written concurrently with later steps, from a copy in host memory. False: steps waited for all
  // of it.
  bool beside = false;
  // Time that the steps waited: for the copy, or for all of it.
  double stall_seconds = 0;
  // The part of it spent waiting for a save under way: the next save was due, or the run over.
  double waited_seconds = 0;
  // Seconds until the commit, by rank 0's clock: from the end of the copy, if there is one.
  double write_seconds = 0;
  // set if a SaveSchedule chooses: its choice after this save
  std::optional<ChosenInterval> chosen;
};

struct RunReport {
  int64_t steps = 0;             // optimizer steps in all, skipped ones included
  int64_t skipped_steps = 0;     // among them, including those before a resume
  bool interrupted = false;      // stopped early on request, after saving
  bool out_of_patience = false;  // stopped early, see TrainOptions::patience
  int64_t saves = 0;             // in this process's run
  // Number of saves that were due while the previous one was still being written.
  int64_t saves_waited_for = 0;
  double step_seconds_median = 0;
  double last_loss = 0;
  std::optional<double> validation_loss;      // the last
  HighWater high_water;                       // over this process's ranks
  std::optional<uint64_t> device_used_bytes;  // this rank's device; the highest seen
};

struct StartReport {
  int64_t done = 0;            // steps before a resume
  int64_t steps = 0;           // the whole run
  uint64_t train_samples = 0;  // samples of an epoch
};

// Override the events to observe.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void OnStart(const StartReport& /*report*/) {}
  virtual void OnStep(const StepReport& /*report*/) {}
  virtual void OnValidation(int64_t /*step*/, double /*loss*/) {}
  virtual void OnSaved(const SaveReport& /*report*/) {}
  virtual void OnEnd(const RunReport& /*report*/) {}
};

// Runs to the end, or until StopRequested() (core/base/stop_signals.h), which saves, without
// a validation before, and returns with `interrupted`. Throws Error(kUsage) for data or weights
// that do not fit the model, Error(kDiverged) for more than max_bad_steps bad steps in a row,
// Error(kRuntime) for I/O. REQUIRES: `program` is lowered for training.
//
// A program with a save copy (core/program/step_order.h) is saved in two parts: the states are
// copied between two steps, and files are written, synced and committed concurrently with later
// steps (executor/train/background_save.h). At most one save is under way: the next waits for it,
// and so does the end of the run, whatever ends it but a failure of another rank. A failure of such
// a save ends the run at the next step's end.
//
// If a step, the set-up or a save makes no progress, throws Error(kRuntime) naming the rank that
// blocks it; a process that is stuck nevertheless is ended with kRuntime (executor/engine/watch.h).
//
// If the state is whole on all ranks, it is saved before an error is thrown: after bad steps, which
// changed nothing, if data cannot be read, if the observer throws.
//
// With a group, every process calls it with the same arguments. Rank 0 chooses the checkpoint to
// resume from and the seed, and only its observer is called; a stop requested from any rank stops
// all; an exception of one rank is thrown on all. Data, weights and save_dir must be visible to all
// ranks.
RunReport Train(const Program& program, const TrainOptions& options, TrainObserver& observer);

}  // namespace zeroplan
