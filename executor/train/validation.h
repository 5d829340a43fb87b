// A run's validation data, and its record of the lowest validation loss.
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
  // `training` holds nothing back if options.validation_data names files; it must outlive the
  // object. Files are packed by options.packing. Checks the files' token ids against the
  // vocabulary, each rank its part. Throws Error(kUsage) naming --validation-data if the files are
  // less than one batch of all ranks, and as TokenDataset.
  static std::unique_ptr<const ValidationData> Open(const Program& program,
                                                    const TrainOptions& options, int rank,
                                                    const BatchSampler& training);
  ValidationData(const ValidationData&) = delete;
  ValidationData& operator=(const ValidationData&) = delete;

  // Batches of one validation; a batch is micro_batch rows a rank. 0: there is no validation data.
  int64_t batches() const { return batches_; }
  // The number of samples used, of those available: "--validation-data: 12 of 12 ...". "" for data
  // held back.
  std::string Describe() const;
  // Identifies the samples, however they are divided into batches.
  std::string Identity() const;
  // Identifies their source, whatever the number of samples.
  std::string Source() const;

  // BatchSampler's limits for the batches of Fill.
  DocumentLimits document_limits() const {
    return own_ ? own_->sampler.document_limits() : training_.document_limits();
  }
  // Fills batch 0 .. batches() - 1, in the stream's order. Thread-safe; throws as BatchSampler.
  void Fill(int64_t batch, int rank, std::span<int32_t> inputs, std::span<int32_t> targets,
            std::span<int32_t> starts) const;

 private:
  explicit ValidationData(const BatchSampler& training) : training_(training) {}

  // Set for files only.
  struct Own {
    TokenDataset data;
    BatchSampler sampler;
    Own(TokenDataset opened, const SamplerOptions& options)
        : data(std::move(opened)), sampler(data, options) {}
  };

  const BatchSampler& training_;
  std::optional<Own> own_;
  int64_t rows_ = 1;  // samples of a batch, over all ranks
  int64_t batches_ = 0;
};

// The validation of a run with the lowest loss, and the number of validations after it.
class BestValidation {
 public:
  // `data`: ValidationData::Identity.
  explicit BestValidation(std::string data = {}) { record_.data = std::move(data); }

  // Continues from a checkpoint's record. False, and nothing changes, if the record is of other
  // data.
  bool Resume(const ValidationRecord& record);
  // Forgets the lowest loss, because its checkpoint is gone: the next one counts as the lowest.
  void Forget() { record_.any_finite = false; }

  // Once a step. A NaN loss is never the lowest.
  void Note(int64_t step, double loss);

  // For the checkpoint; absent: no validation yet.
  std::optional<ValidationRecord> record() const {
    return noted_ ? std::optional(record_) : std::nullopt;
  }
  // Whether `step` was validated.
  bool NotedAt(int64_t step) const { return noted_ && record_.step == step; }
  // Whether the lowest loss is that of `step`; among equal ones the first counts.
  bool IsAt(int64_t step) const { return record_.any_finite && record_.best_step == step; }
  const std::string& data() const { return record_.data; }
  // Validations since the lowest loss.
  int64_t worse() const { return record_.worse; }

 private:
  ValidationRecord record_;
  bool noted_ = false;
};

// For a run that continues with `record`: makes `best` of `save_dir` name the checkpoint of
// record's best step, even if the earlier run was cut off between naming it and the save's end, or
// if the run returns to an older checkpoint. False if that checkpoint no longer exists.
bool RestoreBest(const std::filesystem::path& save_dir, const ValidationRecord& record);

// Applies a checkpoint's record to a resume. With --keep-best the best checkpoint must exist; a
// record that cannot be continued is forgotten, with a warning of rank 0 (`first`). All ranks call
// it: `of_first` passes the first rank's text to each.
void ResumeBest(BestValidation& best, const ValidationRecord& record, const TrainOptions& options,
                bool first, const std::function<std::string(const std::string&)>& of_first);

// The checkpoint whose weights the run ends with, as an argument of CheckpointSource::Open; a line
// or warning names it if options.best_weights requests the best.
std::filesystem::path FinalCheckpoint(const TrainOptions& options,
                                      const std::optional<ValidationRecord>& record);

}  // namespace zeroplan
