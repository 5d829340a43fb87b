// Which validation of a run had the lowest loss, and how many came since.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/train/trainer.h"

namespace zeroplan {

class BestValidation {
 public:
  // `data`: what is validated with (ValidationData::Identity).
  explicit BestValidation(std::string data) { record_.data = std::move(data); }

  // Goes on from a checkpoint's record. False, and nothing is taken over, where that is of other
  // data.
  bool Resume(const ValidationRecord& record);
  // The lowest loss so far is no longer there to return to: the next one is the lowest.
  void Forget() { record_.any_finite = false; }

  // Once a step. A loss that is no number is never the lowest.
  void Note(int64_t step, double loss);

  // For the checkpoint; absent: nothing was noted yet.
  std::optional<ValidationRecord> record() const {
    return noted_ ? std::optional(record_) : std::nullopt;
  }
  // Whether `step` was validated.
  bool NotedAt(int64_t step) const { return noted_ && record_.step == step; }
  // Whether the lowest loss is that of `step`; of several equal ones the first.
  bool IsAt(int64_t step) const { return record_.any_finite && record_.best_step == step; }
  const std::string& data() const { return record_.data; }
  // Validations since the lowest.
  int64_t worse() const { return record_.worse; }

 private:
  ValidationRecord record_;
  bool noted_ = false;
};

// A run that goes on with `record` has `best` of `save_dir` name the checkpoint of record's best
// step, though it was cut off between naming and the save's end, or returns to an older checkpoint.
// False if there is no such checkpoint any more.
bool RestoreBest(const std::filesystem::path& save_dir, const ValidationRecord& record);

// What a resume makes of a checkpoint's record. With --keep-best the best checkpoint must be there;
// what cannot be gone on with is forgotten, with a warning of rank 0 (`first`). All ranks call it:
// `of_first` hands each what the first passes to it.
void ResumeBest(BestValidation& best, const ValidationRecord& record, const TrainOptions& options,
                bool first, const std::function<std::string(const std::string&)>& of_first);

// The checkpoint whose weights the run ends with, in words of CheckpointSource::Open; a line or
// warning says which where options.best_weights asks for the best.
std::filesystem::path FinalCheckpoint(const TrainOptions& options,
                                      const std::optional<ValidationRecord>& record);

}  // namespace zeroplan
