// The data that a run is validated with, and the validation with the lowest loss.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/program/program.h"
#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/train/trainer.h"
#include "text/files/token_dataset.h"
#include "text/sequences/batch_sampler.h"

namespace zeroplan {

// The samples that a run's data holds back, or files of their own.
class ValidationData {
 public:
  // `training` holds back nothing where options.validation_data names files; it outlives the
  // object. Files are packed as options.packing says. Token ids of the files are held against the
  // vocabulary, each rank looking at its part. Throws Error(kUsage) naming --validation-data if the
  // files are less than one batch of all ranks, and as TokenDataset.
  static std::unique_ptr<const ValidationData> Open(const Program& program,
                                                    const TrainOptions& options, int rank,
                                                    const BatchSampler& training);
  ValidationData(const ValidationData&) = delete;
  ValidationData& operator=(const ValidationData&) = delete;

  // Batches of one validation; a batch is micro_batch rows a rank. 0: there is nothing to validate
  // with.
  int64_t batches() const { return batches_; }
  // How many samples that is, of how many there are: "--validation-data: 12 of 12 ...". "" for what
  // is held back.
  std::string Describe() const;
  // Tells what is validated with from other samples, however they are cut into batches.
  std::string Identity() const;
  // Of what, whatever the number of samples.
  std::string Source() const;

  // BatchSampler's limits of what Fill writes.
  DocumentLimits document_limits() const {
    return own_ ? own_->sampler.document_limits() : training_.document_limits();
  }
  // Batch 0 .. batches() - 1, in the stream's order. Thread-safe; throws as BatchSampler.
  void Fill(int64_t batch, int rank, std::span<int32_t> inputs, std::span<int32_t> targets,
            std::span<int32_t> starts) const;

 private:
  explicit ValidationData(const BatchSampler& training) : training_(training) {}

  // Files alone.
  struct Own {
    TokenDataset data;
    BatchSampler sampler;
    Own(TokenDataset opened, const SamplerOptions& options)
        : data(std::move(opened)), sampler(data, options) {}
  };

  const BatchSampler& training_;
  std::optional<Own> own_;
  int64_t rows_ = 1;  // samples of a batch, over ranks
  int64_t batches_ = 0;
};

// Which validation of a run had the lowest loss, and how many came after it.
class BestValidation {
 public:
  // `data`: what is validated with (ValidationData::Identity).
  explicit BestValidation(std::string data = {}) { record_.data = std::move(data); }

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
