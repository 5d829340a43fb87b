// Ends of a run before its last step: by bad steps, by a failure, or on request.
#pragma once

#include <cstdint>
#include <exception>
#include <mutex>
#include <string>

#include "core/program/step_state.h"
#include "core/settings/zero_config.h"
#include "executor/train/run_parts.h"
#include "executor/train/run_saves.h"

namespace zeroplan {

// "gradients that are not finite". Empty for kTaken.
std::string SkipReasonText(int32_t reason);

// Counts bad steps, which were skipped, and tells when too many came in a row.
class BadSteps {
 public:
  // At most `limit` bad steps in a row are skipped; one more is too many.
  BadSteps(const PrecisionConfig& precision, int64_t limit)
      : precision_(precision), limit_(limit) {}

  // `state`: the state of the first step.
  void Start(const StepState& state) { scale_ = state.loss_scale; }
  // Called after each step. An overflow that a lower loss scale may cure is not bad, because a
  // dynamic scale is found by overflows.
  void Note(const StepState& state);

  int64_t in_a_row() const { return in_a_row_; }
  bool too_many() const { return in_a_row_ > limit_; }
  // Whether any step since Start changed the weights.
  bool any_taken() const { return any_taken_; }
  // Whether there were steps, and no lower scale could have cured any of them.
  bool nothing_learned() const { return any_lost_ && !any_taken_ && !any_curable_; }

 private:
  PrecisionConfig precision_;
  int64_t limit_;
  float scale_ = 1;  // scale of the next step
  int64_t in_a_row_ = 0;
  bool any_taken_ = false, any_curable_ = false, any_lost_ = false;
};

// Ends a run early: by a stop requested from any rank, or by the failure of one.
class Leaving {
 public:
  // `parts` must outlive it.
  explicit Leaving(const RunParts& parts) : parts_(parts) {}

  // Keeps this process's failure until all ranks have saved. Any thread.
  void KeepFailure(const std::exception_ptr& failure);
  bool HasFailed() const;
  // Notes that a rank could not fill its batch of a step.
  void NoteAbandoned() { some_rank_failed_ = true; }
  // Between steps: checks whether a stop was requested from any rank or one has failed. All ranks
  // call it at once.
  void LookForReason();

  bool interrupted() const { return interrupted_; }
  bool some_rank_failed() const { return some_rank_failed_; }
  bool leaving() const { return interrupted_ || some_rank_failed_; }

  // Calls `tell`, and keeps its failure: an observer's failure must not lose the training so far.
  template <typename Fn>
  void Tell(Fn&& tell) {
    try {
      tell();
    } catch (...) {
      KeepFailure(std::current_exception());
    }
  }

  // Saves the training so far and throws the failure of a rank. All ranks call it, when the state
  // is whole on every rank.
  [[noreturn]] void EndFailed(const BadSteps& bad_steps, RunSaves& saves) const;

 private:
  const RunParts& parts_;
  bool interrupted_ = false, some_rank_failed_ = false;
  mutable std::mutex mutex_;
  std::exception_ptr failure_;  // this process's; guarded by mutex_
};

// Ends a run that has diverged. Saves the state before the bad steps, which changed nothing, unless
// it is saved already or no step was good. Then throws Error(kDiverged) that names the checkpoint
// to continue from. `state`: after the last step. All ranks call it.
[[noreturn]] void EndDiverged(const RunParts& parts, const StepState& state,
                              const BadSteps& bad_steps, RunSaves& saves);

// Ends a run in which no step changed the weights, in this process or before. Saves nothing. Throws
// Error(kDiverged). All ranks call it.
[[noreturn]] void EndUntrained(const RunParts& parts, const StepState& state,
                               const BadSteps& bad_steps, RunSaves& saves);

// Ends a run whose updates ran in the backward pass of a step that should have been skipped: saves
// nothing. Throws Error(kDiverged). All ranks call it.
[[noreturn]] void EndDamaged(const RunParts& parts, RunSaves& saves);

}  // namespace zeroplan
