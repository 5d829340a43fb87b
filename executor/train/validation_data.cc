#include "executor/train/validation_data.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/error.h"

namespace zeroplan {
namespace {

// Batches of the data that is held back, unless --validation-batches says otherwise.
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
  SamplerOptions sampler;
  sampler.option = "--validation-data";
  sampler.seq_len = batch.seq_len;
  sampler.micro_batch = batch.micro_batch;
  sampler.world_size = batch.world_size;
  sampler.shuffle = false;
  sampler.packing = options.packing;
  sampler.cut_long = !data.has_mask();
  own_.emplace(std::move(data), sampler);
  const auto samples = static_cast<int64_t>(own_->sampler.train_samples());
  if (samples < rows_) {
    const std::string more = "use more data, or a smaller --micro-batch or --seq-len";
    if (options.packing == Packing::kStream) {
      ThrowUsage(
          "--validation-data: {} tokens, but a batch of {} sequences of {} tokens needs {}; {}",
          own_->data.size(), rows_, batch.seq_len, rows_ * batch.seq_len + 1, more);
    }
    ThrowUsage("--validation-data: {} documents fill {} of the {} sequences of a batch; {}",
               own_->data.documents(), samples, rows_, more);
  }
  batches_ = std::min(most.value_or(std::numeric_limits<int64_t>::max()), samples / rows_);
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
                          std::span<int32_t> targets, std::span<int32_t> starts) const {
  if (!own_) return training_.FillValidation(batch, rank, inputs, targets, starts);
  ZEROPLAN_CHECK(batch >= 0 && batch < batches_, "validation batch {} of {}", batch, batches_);
  own_->sampler.FillTrain(static_cast<uint64_t>(batch * rows_), rank, 0, inputs, targets, starts);
}

}  // namespace zeroplan
