#include "executor/data/batch_sampler.h"

#include <algorithm>

#include "core/base/error.h"
#include "executor/data/permutation.h"

namespace zeroplan {

BatchSampler::BatchSampler(const TokenDataset& data, const SamplerOptions& options)
    : data_(data), options_(options) {
  const SamplerOptions& o = options_;
  if (o.seq_len < 1 || o.micro_batch < 1 || o.grad_accum < 1 || o.world_size < 1) {
    ThrowUsage(
        "sequence length {}, micro-batch {}, accumulation {}, ranks {}: all must be positive",
        o.seq_len, o.micro_batch, o.grad_accum, o.world_size);
  }
  if (!(o.validation_fraction >= 0 && o.validation_fraction < 1)) {
    ThrowUsage("validation fraction {}: must be at least 0 and less than 1", o.validation_fraction);
  }
  const uint64_t samples = (data.size() - 1) / static_cast<uint64_t>(o.seq_len);
  if (samples == 0) {
    ThrowUsage("--data: {} tokens, but one sample of sequence length {} needs {}", data.size(),
               o.seq_len, o.seq_len + 1);
  }
  const auto batch = static_cast<uint64_t>(o.global_batch());
  const auto length = static_cast<uint64_t>(o.seq_len);
  if (o.shuffle && o.train_tokens) {
    train_tokens_ = *o.train_tokens;
    train_samples_ = train_tokens_ / length;
    if (train_samples_ == 0 || train_samples_ > samples) {
      ThrowUsage("--data: {} tokens are trained on, of {}, with sequences of {}: that is no sample",
                 train_tokens_, data.size(), length);
    }
    first_validation_ = std::min(samples, (train_tokens_ + length - 1) / length);
    validation_samples_ = (samples - first_validation_) / batch * batch;
    return;
  }
  if (o.shuffle && o.validation_fraction > 0 && samples / 2 >= batch) {
    const auto wanted = static_cast<uint64_t>(static_cast<double>(samples) * o.validation_fraction);
    validation_samples_ = std::clamp(wanted / batch, uint64_t{1}, samples / batch - 1) * batch;
  }
  train_samples_ = first_validation_ = samples - validation_samples_;
  if (validation_samples_ > 0) train_tokens_ = train_samples_ * length;
}

int64_t BatchSampler::validation_batches() const {
  return static_cast<int64_t>(validation_samples_) / (options_.micro_batch * options_.world_size);
}

uint64_t BatchSampler::SampleAt(uint64_t position) const {
  const uint64_t epoch = position / train_samples_;
  const uint64_t index = position % train_samples_;
  return options_.shuffle ? PermutedIndex(index, train_samples_, options_.seed, epoch) : index;
}

void BatchSampler::FillTrain(uint64_t samples_consumed, int rank, int64_t micro_step,
                             std::span<int32_t> inputs, std::span<int32_t> targets) const {
  const SamplerOptions& o = options_;
  ZEROPLAN_CHECK(micro_step >= 0 && micro_step < o.grad_accum, "micro-step {} of {}", micro_step,
                 o.grad_accum);
  const auto first = static_cast<uint64_t>((micro_step * o.world_size + rank) * o.micro_batch);
  for (int64_t i = 0; i < o.micro_batch; ++i) {
    FillRow(SampleAt(samples_consumed + first + static_cast<uint64_t>(i)), i, inputs, targets);
  }
}

void BatchSampler::FillValidation(int64_t batch, int rank, std::span<int32_t> inputs,
                                  std::span<int32_t> targets) const {
  const SamplerOptions& o = options_;
  ZEROPLAN_CHECK(batch >= 0 && batch < validation_batches(), "validation batch {} of {}", batch,
                 validation_batches());
  const auto first = static_cast<uint64_t>((batch * o.world_size + rank) * o.micro_batch);
  for (int64_t i = 0; i < o.micro_batch; ++i) {
    FillRow(first_validation_ + first + static_cast<uint64_t>(i), i, inputs, targets);
  }
}

void BatchSampler::FillRow(uint64_t sample, int64_t row, std::span<int32_t> inputs,
                           std::span<int32_t> targets) const {
  const auto length = static_cast<size_t>(options_.seq_len);
  const size_t at = static_cast<size_t>(row) * length;
  const auto expected = static_cast<size_t>(options_.micro_batch) * length;
  ZEROPLAN_CHECK(inputs.size() == expected && targets.size() == expected, "{} and {} tokens",
                 inputs.size(), targets.size());
  const auto row_inputs = inputs.subspan(at, length);
  const auto row_targets = targets.subspan(at, length);
  data_.Read(sample * length, row_inputs);
  // The targets are the inputs moved by one and a single new token.
  std::copy(row_inputs.begin() + 1, row_inputs.end(), row_targets.begin());
  data_.Read(sample * length + length, row_targets.last(1));
}

}  // namespace zeroplan
