#include "text/sequences/batch_sampler.h"

#include <algorithm>

#include "core/base/error.h"
#include "text/sequences/permutation.h"

namespace zeroplan {

BatchSampler::BatchSampler(const TokenDataset& data, const SamplerOptions& options)
    : data_(data), options_(options) {
  const SamplerOptions& o = options_;
  ZEROPLAN_CHECK(o.sequence_ranks >= 1 && o.world_size % o.sequence_ranks == 0 &&
                     o.seq_len % o.sequence_ranks == 0,
                 "sequences of {} over {} of {} ranks", o.seq_len, o.sequence_ranks, o.world_size);
  if (o.seq_len < 1 || o.micro_batch < 1 || o.grad_accum < 1 || o.world_size < 1) {
    ThrowUsage(
        "sequence length {}, micro-batch {}, accumulation {}, ranks {}: all must be positive",
        o.seq_len, o.micro_batch, o.grad_accum, o.world_size);
  }
  if (!(o.validation_fraction >= 0 && o.validation_fraction < 1)) {
    ThrowUsage("validation fraction {}: must be at least 0 and less than 1", o.validation_fraction);
  }
  if (!data.any_counts()) {
    ThrowUsage(
        "{}: by its loss mask none of its {} tokens counts; make the file again with 'zeroplan "
        "data "
        "tokenize'",
        o.option, data.size());
  }
  if (o.packing == Packing::kStream) {
    SplitStream();
  } else {
    SplitDocuments();
  }
}

void BatchSampler::SplitStream() {
  const SamplerOptions& o = options_;
  const uint64_t samples = (data_.size() - 1) / static_cast<uint64_t>(o.seq_len);
  if (samples == 0) {
    ThrowUsage("{}: {} tokens, but one sample of sequence length {} needs {}", o.option,
               data_.size(), o.seq_len, o.seq_len + 1);
  }
  const auto batch = static_cast<uint64_t>(o.global_batch());
  const auto length = static_cast<uint64_t>(o.seq_len);
  if (o.shuffle && o.train_tokens) {
    train_tokens_ = *o.train_tokens;
    train_samples_ = train_tokens_ / length;
    if (train_samples_ == 0 || train_samples_ > samples) {
      ThrowUsage("⟦data⟧: {} tokens are trained on, of {}, with sequences of {}: that is no sample",
                 train_tokens_, data_.size(), length);
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

void BatchSampler::SplitDocuments() {
  const SamplerOptions& o = options_;
  const PackedOptions packed = {o.seq_len, o.packing, o.cut_long};
  const auto batch = static_cast<uint64_t>(o.global_batch());
  uint64_t border = data_.size();
  if (o.shuffle) {
    border = o.train_tokens ? std::min(*o.train_tokens, data_.size())
                            : HoldBackDocuments(data_, packed, o.validation_fraction, batch);
  }
  train_sequences_ = PackedSequences(data_, 0, border, packed);
  train_samples_ = train_sequences_.size();
  if (train_samples_ == 0) {
    ThrowUsage(
        "{}: none of its {} documents has two tokens, an input and its target; use other data, or "
        "⟦packing⟧ stream",
        o.option, data_.documents());
  }
  if (border < data_.size()) {
    validation_sequences_ = PackedSequences(data_, border, data_.size(), packed);
    validation_samples_ = validation_sequences_.size() / batch * batch;
    train_tokens_ = border;
  }
  document_limits_ = train_sequences_.Limits();
  if (validation_samples_ > 0) {
    document_limits_ = DocumentLimits::Either(document_limits_, validation_sequences_.Limits());
  }
}

int64_t BatchSampler::validation_batches() const {
  return static_cast<int64_t>(validation_samples_) / (options_.micro_batch * options_.data_ranks());
}

uint64_t BatchSampler::FirstRow(int64_t index, int rank) const {
  const SamplerOptions& o = options_;
  return static_cast<uint64_t>((index * o.data_ranks() + rank / o.sequence_ranks) * o.micro_batch);
}

uint64_t BatchSampler::SampleAt(uint64_t position) const {
  const uint64_t epoch = position / train_samples_;
  const uint64_t index = position % train_samples_;
  return options_.shuffle ? PermutedIndex(index, train_samples_, options_.seed, epoch) : index;
}

void BatchSampler::FillTrain(uint64_t samples_consumed, int rank, int64_t micro_step,
                             std::span<int32_t> inputs, std::span<int32_t> targets,
                             std::span<int32_t> starts) const {
  const SamplerOptions& o = options_;
  ZEROPLAN_CHECK(micro_step >= 0 && micro_step < o.grad_accum, "micro-step {} of {}", micro_step,
                 o.grad_accum);
  const uint64_t first = FirstRow(micro_step, rank);
  for (int64_t i = 0; i < o.micro_batch; ++i) {
    const uint64_t sample = SampleAt(samples_consumed + first + static_cast<uint64_t>(i));
    const Row row = RowOf(i, rank, inputs, targets, starts);
    if (o.packing == Packing::kStream) {
      FillFromStream(sample, row);
    } else {
      FillFromDocuments(train_sequences_.at(sample), row);
    }
  }
}

void BatchSampler::FillValidation(int64_t batch, int rank, std::span<int32_t> inputs,
                                  std::span<int32_t> targets, std::span<int32_t> starts) const {
  const SamplerOptions& o = options_;
  ZEROPLAN_CHECK(batch >= 0 && batch < validation_batches(), "validation batch {} of {}", batch,
                 validation_batches());
  const uint64_t first = FirstRow(batch, rank);
  for (int64_t i = 0; i < o.micro_batch; ++i) {
    const uint64_t sample = first + static_cast<uint64_t>(i);
    const Row row = RowOf(i, rank, inputs, targets, starts);
    if (o.packing == Packing::kStream) {
      FillFromStream(first_validation_ + sample, row);
    } else {
      FillFromDocuments(validation_sequences_.at(sample), row);
    }
  }
}

BatchSampler::Row BatchSampler::RowOf(int64_t row, int rank, std::span<int32_t> inputs,
                                      std::span<int32_t> targets, std::span<int32_t> starts) const {
  const auto whole = static_cast<size_t>(options_.seq_len);
  const size_t length = whole / static_cast<size_t>(options_.sequence_ranks);
  const auto index = static_cast<size_t>(row), rows = static_cast<size_t>(options_.micro_batch);
  ZEROPLAN_CHECK(inputs.size() == rows * length && targets.size() == rows * length &&
                     (starts.empty() || starts.size() == rows * whole),
                 "{}, {} and {} tokens", inputs.size(), targets.size(), starts.size());
  return {inputs.subspan(index * length, length), targets.subspan(index * length, length),
          starts.empty() ? starts : starts.subspan(index * whole, whole),
          static_cast<size_t>(rank % options_.sequence_ranks) * length};
}

void BatchSampler::FillFromStream(uint64_t sample, const Row& row) const {
  const auto whole = static_cast<uint64_t>(options_.seq_len);
  const uint64_t begin = sample * whole + row.begin;
  data_.Read(begin, row.inputs);
  // The targets are the inputs moved by one and a single new token.
  std::copy(row.inputs.begin() + 1, row.inputs.end(), row.targets.begin());
  data_.Read(begin + row.inputs.size(), row.targets.last(1));
  data_.MaskTargets(begin + 1, row.targets);
  std::fill(row.starts.begin(), row.starts.end(), 0);
}

void BatchSampler::FillFromDocuments(std::span<const PackedSequences::Piece> pieces,
                                     const Row& row) const {
  // Where in the row: the piece, and of what the rank has the part that is filled.
  size_t at = 0, filled = 0;
  for (const PackedSequences::Piece& piece : pieces) {
    const size_t end = at + piece.pairs, own_end = row.begin + row.inputs.size();
    const size_t from = std::max(at, row.begin), to = std::min(end, own_end);
    if (from < to) {
      const std::span<int32_t> inputs = row.inputs.subspan(from - row.begin, to - from);
      const std::span<int32_t> targets = row.targets.subspan(from - row.begin, to - from);
      const uint64_t begin = piece.begin + (from - at);
      data_.Read(begin, inputs);
      std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
      data_.Read(begin + inputs.size(), targets.last(1));
      data_.MaskTargets(begin + 1, targets);
      filled = to - row.begin;
    }
    if (!row.starts.empty()) {
      std::fill_n(row.starts.begin() + static_cast<ptrdiff_t>(at), piece.pairs,
                  static_cast<int32_t>(at));
    }
    at = end;
  }
  const auto empty = static_cast<ptrdiff_t>(filled);
  std::fill(row.inputs.begin() + empty, row.inputs.end(), 0);
  std::fill(row.targets.begin() + empty, row.targets.end(), -1);
  if (!row.starts.empty()) {
    FillPaddingStarts(row.starts, static_cast<ptrdiff_t>(at), document_limits_.longest);
  }
}

void FillWithAnything(std::span<int32_t> inputs, std::span<int32_t> targets,
                      std::span<int32_t> starts, int64_t seq_len, const DocumentLimits& limits) {
  std::fill(inputs.begin(), inputs.end(), 0);
  std::fill(targets.begin(), targets.end(), 0);
  const auto row = static_cast<size_t>(seq_len);
  for (size_t at = 0; at < starts.size(); at += row) {
    FillPaddingStarts(starts.subspan(at, row), 0, limits.longest);
  }
}

}  // namespace zeroplan
