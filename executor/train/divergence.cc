#include "executor/train/divergence.h"

#include <string>

#include "core/base/error.h"

namespace zeroplan {
namespace {

// What there is to go on from. Weights of which no step was good are not worth a checkpoint.
std::string SaveBefore(int64_t done, const BadSteps& bad_steps, const TrainOptions& options,
                       RunSaves& saves, const CheckpointMeta& meta) {
  std::string failed;
  if (!options.save_dir.empty()) {
    try {
      saves.Finish();
      if (bad_steps.any_taken() && saves.saved_at() != done) {
        saves.Save(meta);
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
  if (options.save_dir.empty()) return "Nothing was saved (no --save)";
  return "No step of this run was good; " + last;
}

}  // namespace

void EndDiverged(int64_t done, const StepState& state, const BadSteps& bad_steps,
                 const TrainOptions& options, RunSaves& saves, const CheckpointMeta& meta) {
  throw Error(
      ExitCode::kDiverged,
      fmt::format("training diverged at step {}: {} bad step{} in a row, the last with {} (loss "
                  "{}, gradient norm {}); bad steps change nothing. {}. Lower the learning rate or "
                  "lengthen its warm-up, or look at these steps' data",
                  done, bad_steps.in_a_row(), bad_steps.in_a_row() == 1 ? "" : "s",
                  SkipReasonText(state.skip), state.loss_sum, state.grad_norm,
                  SaveBefore(done, bad_steps, options, saves, meta)));
}

}  // namespace zeroplan
