// What training data comes to in sequences of one length: counted with the run's own reader and
// sampler (text/sequences/data_facts.h), said by plan before a run and by train as it starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/settings/packing.h"

namespace zeroplan {

// How many tokens the documents have: each length that occurs, and how many documents have it.
class DocumentLengths {
 public:
  DocumentLengths() = default;
  // REQUIRES: `of` rises by its lengths, which are at least 1, as are its counts.
  explicit DocumentLengths(std::vector<std::pair<uint64_t, uint64_t>> of);

  uint64_t documents() const { return documents_; }
  uint64_t tokens() const { return tokens_; }
  double mean() const;
  // The least length that at least this share of the documents do not exceed; 0 of none. 0: the
  // shortest document, 1: the longest.
  uint64_t AtShare(double share) const;
  // Those of more than `above` tokens and at most `to`, and all tokens of theirs.
  std::pair<uint64_t, uint64_t> Between(uint64_t above, uint64_t to) const;
  // Documents of more than `tokens`, and what theirs are beyond that.
  uint64_t Longer(uint64_t tokens) const;
  uint64_t TokensBeyond(uint64_t tokens) const;
  // The mean, over all ways to draw `count` of the documents, of the longest one drawn, where each
  // is cut off behind `most` tokens. Of fewer documents than that all are drawn.
  double MeanLongestOf(uint64_t count, uint64_t most) const;
  // The mean of the documents so cut off.
  double MeanUpTo(uint64_t most) const;

 private:
  std::vector<std::pair<uint64_t, uint64_t>> of_;
  uint64_t documents_ = 0, tokens_ = 0;
};

// An epoch as sequences of seq_len positions. A position that is no padding has an input and a
// target: a document of n tokens fills n - 1.
struct EpochRows {
  uint64_t sequences = 0;
  uint64_t filled = 0;  // positions that are no padding

  double PaddingShare(int64_t seq_len) const;
};

struct DataFacts {
  DocumentLengths lengths;          // of all documents, those held back too
  std::optional<uint64_t> counted;  // tokens that count in the loss; unset: all do
  int64_t seq_len = 0;
  Packing packing = Packing::kStream;
  // False: of another program, where a document of n tokens takes n positions, and a micro-batch is
  // padded to its longest document alone. `epoch` has no padding then.
  bool fixed_rows = true;
  EpochRows epoch;  // what is trained on
  // The same documents with --packing documents and off; unset of a stream, and of data that cannot
  // be packed.
  std::optional<EpochRows> packed, padded;
  uint64_t trained_documents = 0;  // in `epoch`; of a stream 0, as the following
  uint64_t held_back = 0;          // documents for validation; of a stream sequences
  uint64_t longer = 0;             // documents that do not fit a sequence, those held back too
  uint64_t left_out = 0;  // tokens of theirs that are not trained on; 0: they are in pieces
  uint64_t unheard = 0;   // of these, those cut off before anything counts in the loss
  uint64_t single = 0;    // documents of one token, which are left out
};

// A micro-batch of so many sequences of them.
struct MicroBatchTokens {
  uint64_t planned = 0;  // what memory and time are planned for, padding too
  uint64_t largest = 0;  // of any; less where no document is as long as a sequence
  double mean = 0;       // over all ways to draw one
  double padding = 0;    // share of their tokens
};
// They differ where a micro-batch is padded to its longest document alone.
MicroBatchTokens MicroBatchOf(const DataFacts& facts, int64_t sequences);

// Sequences of `epochs` epochs, the last one whole. A product that misses a whole number by its
// rounding counts as that one.
double SequencesOfEpochs(double epochs, uint64_t sequences);

// The shortest sequence length, a multiple of kSeqLenStep, that cuts at most kMostCut of the
// documents.
inline constexpr int64_t kSeqLenStep = 128;
inline constexpr double kMostCut = 0.01;
struct SeqLenProposal {
  int64_t seq_len = 0;
  double cut_documents = 0, cut_tokens = 0;  // shares of all
};
// Tokens of the longest document that a sequence holds, whose last one may be a target alone.
// `fixed_rows` as DataFacts has it.
uint64_t LongestWhole(bool fixed_rows, int64_t seq_len);
// What `seq_len` cuts.
SeqLenProposal CutsOf(const DocumentLengths& lengths, bool fixed_rows, int64_t seq_len);
// REQUIRES: there are documents.
SeqLenProposal ProposeSeqLen(const DocumentLengths& lengths, bool fixed_rows);

// Files, documents, tokens, lengths; what the documents become, with padding and what is cut: a
// paragraph, fields named as ⟦packing⟧.
std::string DataText(const DataFacts& facts);
// "An epoch is 96 sequences, 8 a step: 12 steps. 36 steps are 3 epochs."
std::string EpochText(const DataFacts& facts, int64_t global_batch, int64_t steps);

}  // namespace zeroplan
