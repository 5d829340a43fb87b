// Statistics of training data that is laid into sequences of one length. The run's own reader and
// sampler count them (text/sequences/data_facts.h). `plan` prints them before a run, `train` as it
// starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/settings/packing.h"

namespace zeroplan {

// The histogram of document lengths in tokens: each length that occurs, and how many documents have
// it.
class DocumentLengths {
 public:
  DocumentLengths() = default;
  // REQUIRES: the lengths in `of` increase strictly, and lengths and counts are at least 1.
  explicit DocumentLengths(std::vector<std::pair<uint64_t, uint64_t>> of);

  uint64_t documents() const { return documents_; }
  uint64_t tokens() const { return tokens_; }
  double mean() const;
  // The smallest length that at least this share of the documents do not exceed: share 0 gives the
  // shortest document, share 1 the longest. Returns 0 if there are no documents.
  uint64_t AtShare(double share) const;
  // The number of documents with more than `above` and at most `to` tokens, and the sum of their
  // tokens.
  std::pair<uint64_t, uint64_t> Between(uint64_t above, uint64_t to) const;
  // Longer counts the documents with more than `tokens` tokens. TokensBeyond sums the tokens that
  // they have beyond that length.
  uint64_t Longer(uint64_t tokens) const;
  uint64_t TokensBeyond(uint64_t tokens) const;
  // The mean length of the longest of `count` documents, over all ways to draw that many, with each
  // document cut off after `most` tokens. If there are fewer documents than `count`, all are drawn.
  double MeanLongestOf(uint64_t count, uint64_t most) const;
  // The mean length of all documents, each cut off after `most` tokens.
  double MeanUpTo(uint64_t most) const;
  // Positions of documents and the keys that these attend to, where a document of n tokens fills
  // n - 1 positions, each of which attends to those up to its own. Longer ones than `most`
  // positions are cut off behind them, or into pieces of them.
  struct Keys {
    double positions = 0, keys = 0;
  };
  Keys KeysOf(uint64_t most, bool in_pieces) const;

 private:
  std::vector<std::pair<uint64_t, uint64_t>> of_;
  uint64_t documents_ = 0, tokens_ = 0;
};

// An epoch as sequences of seq_len positions. A position that is no padding has an input and a
// target, so a document of n tokens fills n - 1 positions.
struct EpochRows {
  uint64_t sequences = 0;
  uint64_t filled = 0;  // positions that are no padding

  double PaddingShare(int64_t seq_len) const;
};

struct DataFacts {
  DocumentLengths lengths;          // every document, including those held back
  std::optional<uint64_t> counted;  // tokens that count in the loss; unset: all do
  int64_t seq_len = 0;
  Packing packing = Packing::kStream;
  // False for another program, where a document of n tokens fills n positions and a micro-batch is
  // padded only to its longest document. `epoch` then has no padding.
  bool fixed_rows = true;
  EpochRows epoch;  // the sequences that are trained on
  // The same documents laid out with --packing documents and with --packing off. Unset for a
  // stream, and for data that cannot be packed.
  std::optional<EpochRows> packed, padded;
  uint64_t trained_documents = 0;  // in `epoch`; 0 for a stream, like the counts below it except
                                   // held_back
  uint64_t held_back = 0;          // documents for validation; for a stream, sequences
  uint64_t longer = 0;             // documents longer than a sequence, including those held back
  uint64_t left_out = 0;  // tokens of those documents that are not trained on; 0: the documents are
                          // cut into pieces
  uint64_t unheard = 0;   // how many of the longer documents are cut off before any token that
                          // counts in the loss
  uint64_t single = 0;    // documents of one token; they are left out
};

// The tokens of a micro-batch. The counts differ only where a micro-batch is padded to its longest
// document.
struct MicroBatchTokens {
  uint64_t planned = 0;  // tokens that memory and time are planned for, including padding
  uint64_t largest = 0;  // the most tokens of any micro-batch; below `planned` where no document is
                         // as long as a sequence
  double mean = 0;       // over all ways to draw a micro-batch
  double padding = 0;    // share of its tokens
};
// The tokens of a micro-batch of `sequences` sequences.
MicroBatchTokens MicroBatchOf(const DataFacts& facts, int64_t sequences);

// The mean number of keys that a position attends to, itself included, in rows of packed documents.
// The padding of a row counts as the sampler lays it out: as documents no longer than the longest.
// Documents that are held back count as well. REQUIRES: packing documents and fixed_rows.
double MeanVisibleKeys(const DataFacts& facts);

// The number of sequences in `epochs` epochs, rounded up. A product that rounding error lifts above
// a whole number counts as that number.
double SequencesOfEpochs(double epochs, uint64_t sequences);

// The shortest sequence length, a multiple of kSeqLenStep, that cuts at most kMostCut of the
// documents.
inline constexpr int64_t kSeqLenStep = 128;
inline constexpr double kMostCut = 0.01;
struct SeqLenProposal {
  int64_t seq_len = 0;
  double cut_documents = 0, cut_tokens = 0;  // shares of all
};
// Tokens of the longest document that a sequence holds whole. With `fixed_rows` (see DataFacts) the
// last token is only a target.
uint64_t LongestWhole(bool fixed_rows, int64_t seq_len);
// The shares of documents and tokens that `seq_len` cuts.
SeqLenProposal CutsOf(const DocumentLengths& lengths, bool fixed_rows, int64_t seq_len);
// REQUIRES: there are documents.
SeqLenProposal ProposeSeqLen(const DocumentLengths& lengths, bool fixed_rows);

// A paragraph: documents, tokens and lengths, then the sequences that the documents become, with
// their padding and the tokens that are cut. Names options as ⟦packing⟧.
std::string DataText(const DataFacts& facts);
// The same in a line: documents, what they become, padding, and all that is not trained on or cut.
std::string DataLine(const DataFacts& facts);
// "An epoch is 96 sequences, 8 a step: 12 steps. 36 steps are 3 epochs."
std::string EpochText(const DataFacts& facts, int64_t global_batch, int64_t steps);

}  // namespace zeroplan
