// What a run is validated with: the samples that its data holds back, or files of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/config/zero_config.h"
#include "executor/data/batch_sampler.h"
#include "executor/train/trainer.h"
#include "text/files/token_dataset.h"

namespace zeroplan {

class ValidationData {
 public:
  // `training` holds back nothing where options.validation_data names files; it outlives the
  // object. Files are packed as options.packing says. Token ids of the files are held against the
  // vocabulary, each rank looking at its part. Throws Error(kUsage) naming --validation-data if the
  // files are less than one batch of all ranks, and as TokenDataset.
  ValidationData(const TrainSetup& setup, int64_t vocab, const TrainOptions& options, int rank,
                 const BatchSampler& training);
  ValidationData(const ValidationData&) = delete;
  ValidationData& operator=(const ValidationData&) = delete;

  // Of one validation; a batch is micro_batch rows a rank. 0: there is nothing to validate with.
  int64_t batches() const { return batches_; }
  // How many samples that is, of how many there are: "--validation-data: 12 of 12 ...". "" for what
  // is held back.
  std::string Describe() const;
  // Tells what is validated with from other samples, however they are cut into batches.
  std::string Identity() const;

  // As BatchSampler's, of what Fill writes.
  DocumentLimits document_limits() const {
    return own_ ? own_->sampler.document_limits() : training_.document_limits();
  }
  // Batch 0 .. batches() - 1, in the stream's order. Thread-safe; throws as BatchSampler.
  void Fill(int64_t batch, int rank, std::span<int32_t> inputs, std::span<int32_t> targets,
            std::span<int32_t> starts) const;

 private:
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

}  // namespace zeroplan
