#include "executor/train/best_validation.h"

#include <cmath>

#include "core/base/error.h"
#include "core/base/log.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/checkpoint_writer.h"

namespace zeroplan {
namespace {

// Whether this checkpoint was, when it was saved, the best by the same validations.
bool IsBestOf(const ValidationRecord& record, const std::filesystem::path& folder) {
  const CheckpointMeta meta = ReadCheckpointMeta(folder);
  const auto& of_folder = meta.validation;
  return meta.step == record.best_step && of_folder && of_folder->any_finite &&
         of_folder->best_step == record.best_step && of_folder->best_loss == record.best_loss &&
         of_folder->data == record.data;
}

}  // namespace

bool BestValidation::Resume(const ValidationRecord& record) {
  if (record.data != record_.data) return false;
  record_ = record;
  noted_ = true;
  return true;
}

void BestValidation::Note(int64_t step, double loss) {
  noted_ = true;
  record_.step = step;
  if (std::isfinite(loss) && (!record_.any_finite || loss < record_.best_loss)) {
    record_.any_finite = true;
    record_.best_step = step;
    record_.best_loss = loss;
    record_.worse = 0;
    return;
  }
  ++record_.worse;
}

bool RestoreBest(const std::filesystem::path& save_dir, const ValidationRecord& record) {
  try {
    const auto named = ReadBest(save_dir);
    if (named && IsBestOf(record, CheckpointsFolder(save_dir) / *named)) return true;
  } catch (const Error&) {  // it names nothing that can be read
  }
  for (const CheckpointListing& checkpoint : ListCheckpoints(save_dir)) {
    if (!checkpoint.is_whole || !IsBestOf(record, checkpoint.folder)) continue;
    NameBest(save_dir, checkpoint.folder.filename().string());
    return true;
  }
  return false;
}

void ResumeBest(BestValidation& best, const ValidationRecord& record, const TrainOptions& options,
                bool first, const std::function<std::string(const std::string&)>& of_first) {
  const bool taken = best.Resume(record);
  const std::string why_not =
      taken ? "the best checkpoint so far is not there any more"
            : fmt::format("validation is with {}, and before with {}", best.data(), record.data);
  if (!options.keep_best) {
    if (!taken && options.patience > 0 && first) {
      LogWarning("--patience: counts anew, as {}", why_not);
    }
    return;
  }
  // Rank 0 looks, and all do the same.
  std::string there = "-";
  if (first && taken && record.any_finite && RestoreBest(options.save_dir, record)) there = "+";
  if (of_first(there) == "+" || (taken && !record.any_finite)) return;
  best.Forget();
  if (first) LogWarning("--keep-best: starts anew, as {}", why_not);
}

std::filesystem::path FinalCheckpoint(const TrainOptions& options,
                                      const std::optional<ValidationRecord>& record) {
  if (!options.best_weights) return options.save_dir;
  const auto best = ReadBest(options.save_dir);
  if (!best || !record || !record->any_finite) {
    LogWarning("--final-weights best: nothing was validated; the weights are the last");
    return options.save_dir;
  }
  LogInfo("weights: those of {}, validation loss {:.4f}", *best, record->best_loss);
  return CheckpointsFolder(options.save_dir) / *best;
}

}  // namespace zeroplan
