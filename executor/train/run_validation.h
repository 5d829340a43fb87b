// The validations of a run: the best one's checkpoint is kept, and too many in a row that are no
// better end the run.
#pragma once

#include <cstdint>
#include <optional>

#include "executor/train/run_end.h"
#include "executor/train/run_parts.h"
#include "executor/train/run_saves.h"

namespace zeroplan {

// All ranks call it at the same points of the run.
class RunValidation {
 public:
  // All outlive it.
  RunValidation(const RunParts& parts, Leaving& leaving, RunSaves& saves)
      : parts_(parts), leaving_(leaving), saves_(saves) {}

  // Whether one is due after the step that was just made.
  bool IsDue() const;
  // Notes the loss, unless a rank is asked to stop meanwhile.
  void Validate();
  // Between two steps: the same, and the checkpoint if it is to be kept.
  void ValidateAndKeep();
  // Ends the run if too many validations in a row were no better.
  void EndWithoutPatience();

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

}  // namespace zeroplan
