// The checkpoints of a run: those for which its steps wait, and those written concurrently with
// steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/train/background_save.h"
#include "executor/train/run_parts.h"
#include "executor/train/save_schedule.h"

namespace zeroplan {

// All ranks call it at the same points of the run. An exception of it ends the run.
class RunSaves {
 public:
  // `parts` must outlive it. Calls `tell` with each complete checkpoint.
  RunSaves(const RunParts& parts, std::function<void(const SaveReport&)> tell);
  // Gives up a save under way.
  ~RunSaves();
  RunSaves(const RunSaves&) = delete;
  RunSaves& operator=(const RunSaves&) = delete;

  // `meta` describes the present, without state and files. Returns once all of it is saved, after
  // any save under way.
  void Save(const CheckpointMeta& meta);
  // Returns once the next step may begin: the rest of the save runs concurrently with it, if the
  // program has a save copy.
  void SaveBetweenSteps(const CheckpointMeta& meta);
  // Notes the time of a step.
  void NoteStep(double seconds) { schedule_.NoteStep(seconds); }
  // Whether the present state should be saved. If the interval is chosen here, a save is never due
  // while steps would have to wait for the previous one.
  bool IsDue() const {
    const bool waits = schedule_.is_auto() && beside_ && beside_->under_way();
    return !waits && schedule_.IsDue(parts_.state.done);
  }
  // Called between two steps, of about `step_seconds` each: advances the concurrent save.
  void Look(double step_seconds);
  // Waits for a save under way.
  void Finish();
  // The same for a run that has failed, if no other rank's part is missing. Logs its own failures.
  void FinishAlone();

  // The step of the last complete checkpoint of this process; -1: none.
  int64_t saved_at() const { return saved_at_; }
  // The last checkpoint saved, or the one that the run resumed from; empty: none.
  const std::filesystem::path& last_checkpoint() const { return last_checkpoint_; }
  void ResumedFrom(const std::filesystem::path& checkpoint) { last_checkpoint_ = checkpoint; }
  int64_t count() const { return count_; }
  int64_t waited_for() const { return waited_for_; }

 private:
  // Copies the states, and leaves the rest to the background. REQUIRES: no save is under way.
  void Begin(CheckpointMeta meta);
  void SaveWaiting(const CheckpointMeta& meta);
  void NoteSaved(const std::filesystem::path& folder);
  // Sets the interval of all ranks' later saves from rank 0's measurements.
  void ChooseInterval();

  const RunParts& parts_;
  GroupSave save_;
  SaveSchedule schedule_;
  const std::function<void(const SaveReport&)> tell_;
  std::unique_ptr<BackgroundSave> beside_;  // null: steps wait
  SaveReport report_;                       // the save under way, or the last one
  std::chrono::steady_clock::time_point copied_at_;
  int64_t saved_at_ = -1, count_ = 0, waited_for_ = 0;
  std::filesystem::path last_checkpoint_;
};

}  // namespace zeroplan
