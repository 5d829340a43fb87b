#include "executor/train/run_end.h"

#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/stop_signals.h"

namespace zeroplan {
namespace {

// What there is to go on from. Weights of which no step was good are not worth a checkpoint.
std::string SaveBefore(const RunParts& parts, const BadSteps& bad_steps, RunSaves& saves) {
  const bool is_saved = !parts.options.save_dir.empty();
  std::string failed;
  if (is_saved) {
    try {
      saves.Finish();
      if (bad_steps.any_taken() && saves.saved_at() != parts.state.done) {
        saves.Save(parts.Meta());
        return fmt::format("What was trained before them is saved in {}",
                           saves.last_checkpoint().string());
      }
    } catch (const Error& error) {
      failed = fmt::format("It could not be saved ({})", error.what());
    }
  }
  const std::string last =
      saves.last_checkpoint().empty()
          ? "nothing was saved"
          : fmt::format("the last checkpoint is {}", saves.last_checkpoint().string());
  if (!failed.empty()) return failed + "; " + last;
  if (!is_saved) return "Nothing was saved (no ⟦save⟧)";
  return "No step of this run was good; " + last;
}

}  // namespace

std::string SkipReasonText(int32_t reason) {
  switch (static_cast<SkipReason>(reason)) {
    case kTaken:
      return "";
    case kGradientsNotFinite:
      return "gradients that are not finite";
    case kLossNotFinite:
      return "a loss that is not finite";
    case kLossSpike:
      return "a loss above ⟦skip_loss_spike⟧ times its running median";
    case kGradientSpike:
      return "a gradient norm above ⟦skip_loss_spike⟧ times its running median";
    case kAbandoned:
      return "data that a rank could not read";
    case kNothingCounts:
      return "no token that counts in the loss";
  }
  return "an unknown reason";
}

void BadSteps::Note(const StepState& state) {
  const float scale = std::exchange(scale_, state.loss_scale);
  if (state.skip == kTaken) {
    in_a_row_ = 0;
    any_taken_ = true;
    return;
  }
  any_lost_ = true;
  if (state.skip == kNothingCounts) return;  // which says nothing of the training
  const bool dynamic = precision_.dtype == Dtype::kF16 && precision_.loss_scale <= 0;
  const bool curable = dynamic && state.skip == kGradientsNotFinite &&
                       static_cast<double>(scale) > precision_.min_loss_scale;
  any_curable_ = any_curable_ || curable;
  if (!curable) ++in_a_row_;
}

void Leaving::KeepFailure(const std::exception_ptr& failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = failure;
}

bool Leaving::HasFailed() const {
  const std::lock_guard lock(mutex_);
  return failure_ != nullptr;
}

void Leaving::LookForReason() {
  const char mine = HasFailed() ? 'f' : StopRequested() ? 's' : '-';
  for (const std::string& of_rank : parts_.Gather(std::string(1, mine))) {
    some_rank_failed_ = some_rank_failed_ || of_rank == "f";
    interrupted_ = interrupted_ || of_rank == "s";
  }
}

void Leaving::EndFailed(const BadSteps& bad_steps, RunSaves& saves) const {
  if (!parts_.options.save_dir.empty()) {
    try {
      saves.Finish();
      if (bad_steps.any_taken() && saves.saved_at() != parts_.state.done) {
        saves.Save(parts_.Meta());
      }
    } catch (const Error& error) {
      LogWarning("not saved before the run ends: {}", error.what());
      if (!failure_) throw;  // the others wait for this rank's part of the checkpoint
    }
  }
  if (failure_) std::rethrow_exception(failure_);
  parts_.group.Barrier();  // the rank that failed tells why
  ZEROPLAN_CHECK(false, "a rank said that it had failed, and did not");
}

void EndDiverged(const RunParts& parts, const StepState& state, const BadSteps& bad_steps,
                 RunSaves& saves) {
  throw Error(
      ExitCode::kDiverged,
      fmt::format("training diverged at step {}: {} bad step{} in a row, the last with {} (loss "
                  "{}, gradient norm {}); bad steps change nothing. {}. Lower the learning rate or "
                  "lengthen its warm-up, or look at these steps' data",
                  parts.state.done, bad_steps.in_a_row(), bad_steps.in_a_row() == 1 ? "" : "s",
                  SkipReasonText(state.skip), state.loss_sum, state.grad_norm,
                  SaveBefore(parts, bad_steps, saves)));
}

void EndUntrained(const RunParts& parts, const StepState& state, const BadSteps& bad_steps,
                  RunSaves& saves) {
  throw Error(
      ExitCode::kDiverged,
      fmt::format("nothing was trained: {} left out, the last with {} (loss {}, gradient norm "
                  "{}). {}. Look at the data, and at the weights that the run starts from",
                  parts.state.done == 1 ? "the one step was"
                                        : fmt::format("all {} steps were", parts.state.done),
                  SkipReasonText(state.skip), state.loss_sum, state.grad_norm,
                  SaveBefore(parts, bad_steps, saves)));
}

void EndDamaged(const RunParts& parts, RunSaves& saves) {
  if (!parts.options.save_dir.empty()) saves.Finish();
  const std::string last = saves.last_checkpoint().empty()
                               ? "Nothing was saved"
                               : fmt::format("Resume from {}", saves.last_checkpoint().string());
  throw Error(
      ExitCode::kDiverged,
      fmt::format("training diverged at step {}: its gradients are not finite, and with "
                  "_zeroplan.optimizer_in_backward its updates had begun, so the weights are lost. "
                  "{}. Lower the learning rate, or train without it, "
                  "where such a step changes nothing",
                  parts.state.done, last));
}

}  // namespace zeroplan
