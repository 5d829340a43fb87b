// Selects the tokens that each rank trains on at each micro-step.
//
// A sample is a row of T = seq_len positions. With Packing::kStream sample k is tokens [k*T, k*T +
// T] of the stream: inputs are the first T, targets the last T. Samples share no input token, and
// there are (tokens - 1) / T of them. Otherwise samples are whole documents (packed_sequences.h),
// and no target is of another document than its input. Positions without a document have input 0
// and target -1.
//
// A target that does not count in the loss, by the data's mask, is -1.
//
// Training samples have positions 0, 1, 2, ... without end. N ranks form R = N/S groups of S
// consecutive ranks that share sequences: of each row of group q, rank q*S + s has tokens [s*T/S,
// (s+1)*T/S) as inputs, and their targets. If `samples_consumed` positions have been used before
// this optimizer step, row i of micro-step m of group q takes position
//
//     samples_consumed + (m * R + q) * micro_batch + i
//
// which with samples_consumed = step * global_batch is the documented order of --no-shuffle. The
// sample at a position depends on seed and data alone. So a global batch is the same for any
// division among ranks and micro-steps, and a checkpoint only has to keep the count of consumed
// samples.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/settings/packing.h"
#include "text/files/token_dataset.h"
#include "text/sequences/packed_sequences.h"

namespace zeroplan {

struct SamplerOptions {
  int64_t seq_len = 1024;   // tokens of a sample, T
  int64_t micro_batch = 1;  // samples of a rank and micro-step
  int64_t grad_accum = 1;   // micro-steps of an optimizer step
  int world_size = 1;       // ranks
  // true: each epoch visits every training sample once, in an order drawn from (seed, epoch).
  // false: in the order of the stream, starting over at its end, and nothing is held back for
  // validation.
  bool shuffle = true;
  uint64_t seed = 1;
  // Share of the samples, from the data's tail, held back for validation when shuffling; 0: none.
  // Rounded down to whole global batches, but at least one, so that the part does not depend on the
  // rank count. Data of fewer than two global batches has no validation part at all.
  double validation_fraction = 0.05;
  // Tokens from the stream's begin that are trained on, as in an earlier part of the run, so that
  // another batch or sequence length never trains on the rest. Replaces the fraction. For
  // documents: those that begin there.
  std::optional<uint64_t> train_tokens;
  Packing packing = Packing::kStream;
  // Documents longer than a sequence: cut into pieces, or cut off behind the first T pairs.
  bool cut_long = true;
  std::string_view option = "⟦data⟧";  // name of the data in errors
  int sequence_ranks = 1;  // number of ranks that share each sequence (BatchSpec::sequence_ranks)

  int64_t data_ranks() const { return world_size / sequence_ranks; }
  int64_t global_batch() const { return micro_batch * grad_accum * data_ranks(); }
};

// Thread-safe: every rank fills its own batches.
class BatchSampler {
 public:
  // REQUIRES: `data` outlives the sampler. Throws Error(kUsage) naming the existing and the needed
  // number of tokens if the data is less than one sample, for options out of range, and if no token
  // counts in the loss.
  BatchSampler(const TokenDataset& data, const SamplerOptions& options);

  const SamplerOptions& options() const { return options_; }
  // Samples of an epoch, at least 1.
  uint64_t train_samples() const { return train_samples_; }
  // A multiple of the global batch; 0: no validation part.
  uint64_t validation_samples() const { return validation_samples_; }
  // Tokens from the stream's begin that are trained on; 0: all, nothing is held back.
  uint64_t train_tokens() const { return train_tokens_; }
  // Calls of FillValidation that visit the part once: a multiple of grad_accum.
  int64_t validation_batches() const;

  // The sample at a training position.
  uint64_t SampleAt(uint64_t position) const;
  // The sequences of the documents; empty for a stream.
  const PackedSequences& train_sequences() const { return train_sequences_; }
  const PackedSequences& validation_sequences() const { return validation_sequences_; }
  // Limits of the `starts` of FillTrain and FillValidation; for a stream, one document a row.
  DocumentLimits document_limits() const { return document_limits_; }

  // Fills the rank's part of micro_batch rows, and unless `starts` is empty the start of each
  // position's document in its row, of whole rows. Throws Error(kUsage) for a token outside the
  // vocabulary. REQUIRES: 0 <= rank < world_size, 0 <= micro_step < grad_accum, spans of
  // micro_batch * seq_len tokens, inputs and targets of that over sequence_ranks.
  void FillTrain(uint64_t samples_consumed, int rank, int64_t micro_step, std::span<int32_t> inputs,
                 std::span<int32_t> targets, std::span<int32_t> starts = {}) const;
  // The same for batch 0 .. validation_batches() - 1 of the validation part, in the stream's order.
  void FillValidation(int64_t batch, int rank, std::span<int32_t> inputs,
                      std::span<int32_t> targets, std::span<int32_t> starts = {}) const;

 private:
  struct Row {
    // Positions of the row from `begin` on; or of the whole row; or empty.
    std::span<int32_t> inputs, targets, starts;
    size_t begin = 0;
  };
  // The part of `rank` in row `row` of a batch.
  Row RowOf(int64_t row, int rank, std::span<int32_t> inputs, std::span<int32_t> targets,
            std::span<int32_t> starts) const;
  // The first row of `rank` in micro-step or batch `index`.
  uint64_t FirstRow(int64_t index, int rank) const;
  void SplitStream();
  void SplitDocuments();
  void FillFromStream(uint64_t sample, const Row& row) const;
  void FillFromDocuments(std::span<const PackedSequences::Piece> pieces, const Row& row) const;

  const TokenDataset& data_;
  SamplerOptions options_;
  uint64_t train_samples_ = 0;
  uint64_t validation_samples_ = 0;
  uint64_t first_validation_ = 0;  // a sample of the stream
  uint64_t train_tokens_ = 0;
  PackedSequences train_sequences_, validation_sequences_;  // set for documents
  DocumentLimits document_limits_{.most_in_row = 1};
};

// Fills a valid batch for a step or validation that will be void: rows of `seq_len`, whose
// documents are within `limits`.
void FillWithAnything(std::span<int32_t> inputs, std::span<int32_t> targets,
                      std::span<int32_t> starts, int64_t seq_len, const DocumentLimits& limits);

}  // namespace zeroplan
