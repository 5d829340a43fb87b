#include "executor/train/validation_data.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/error.h"

namespace zeroplan {
namespace {

// Of what is held back, unless --validation-batches says otherwise.
constexpr int64_t kHeldBackBatches = 16;

}  // namespace

ValidationData::ValidationData(const TrainSetup& setup, int64_t vocab, const TrainOptions& options,
                               int rank, const BatchSampler& training)
    : training_(training), rows_(setup.batch.micro_batch * setup.batch.world_size) {
  const auto& most = options.validation_batches;
  if (options.validation_data.empty()) {
    batches_ = std::min(most.value_or(kHeldBackBatches), training.validation_batches());
    return;
  }
  TokenDataset data = TokenDataset::Open(options.validation_data);
  data.SetVocab(vocab);
  const int ranks = setup.batch.world_size;
  data.CheckVocab(rank, ranks, std::numeric_limits<uint64_t>::max());
  const BatchSpec& batch = setup.batch;
  const auto length = static_cast<uint64_t>(batch.seq_len);
  const uint64_t samples = (data.size() - 1) / length;
  if (samples < static_cast<uint64_t>(rows_)) {
    ThrowUsage(
        "--validation-data: {} tokens, but a batch of {} sequences of {} tokens needs {}; use more "
        "data, or a smaller --micro-batch or --seq-len",
        data.size(), rows_, length, static_cast<uint64_t>(rows_) * length + 1);
  }
  SamplerOptions sampler;
  sampler.seq_len = batch.seq_len;
  sampler.micro_batch = batch.micro_batch;
  sampler.world_size = batch.world_size;
  sampler.shuffle = false;
  own_.emplace(std::move(data), sampler);
  batches_ = std::min<int64_t>(most.value_or(std::numeric_limits<int64_t>::max()),
                               static_cast<int64_t>(samples) / rows_);
}

std::string ValidationData::Describe() const {
  if (!own_) return "";
  return fmt::format("--validation-data: {} of {} samples, in batches of {}, each time",
                     batches_ * rows_, own_->sampler.train_samples(), rows_);
}

std::string ValidationData::Identity() const {
  const int64_t samples = batches_ * rows_;
  if (own_) return fmt::format("{} samples of {}", samples, own_->data.Digest());
  return fmt::format("{} samples behind token {} of the data", samples, training_.train_tokens());
}

void ValidationData::Fill(int64_t batch, int rank, std::span<int32_t> inputs,
                          std::span<int32_t> targets) const {
  if (!own_) return training_.FillValidation(batch, rank, inputs, targets);
  ZEROPLAN_CHECK(batch >= 0 && batch < batches_, "validation batch {} of {}", batch, batches_);
  own_->sampler.FillTrain(static_cast<uint64_t>(batch * rows_), rank, 0, inputs, targets);
}

}  // namespace zeroplan
