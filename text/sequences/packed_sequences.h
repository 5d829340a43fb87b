// Packs documents into sequences of T positions, for --packing documents and off.
//
// A document of L tokens is L - 1 pairs of an input and the token after it, its target; its last
// token is no input. Documents of more than T pairs are cut into pieces of T, each a document of
// its own from then on, or cut off behind the first T. With `documents` pieces are packed best fit
// decreasing: from the longest to the shortest, each into the fullest sequence that has room for
// it, which leaves few positions empty (Ding et al., "Fewer Truncations Improve Language Modeling",
// arXiv 2404.10830, section 3). With `off` each has a sequence of its own.
//
// The pieces of a sequence depend on the data and T alone, not on seed or epoch. Sequences are in
// the order of their first documents, and so are the pieces of one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/settings/packing.h"
#include "text/files/token_dataset.h"

namespace zeroplan {

struct PackedOptions {
  int64_t seq_len = 1024;                 // T, below 2^24
  Packing packing = Packing::kDocuments;  // or kOff
  bool cut_long = true;                   // false: pairs behind the first T are left out
};

// Read-only once built. 8 bytes a piece, and 4 a sequence.
class PackedSequences {
 public:
  // Pairs of tokens [begin, begin + pairs]: the first `pairs` tokens are inputs, the last targets.
  struct Piece {
    uint64_t begin : 40;  // offset in the stream, up to 10^12 tokens
    uint64_t pairs : 24;
  };

  PackedSequences() = default;
  // Packs the documents that begin at the stream's tokens [begin, end). Takes about a second for 10
  // million documents. Throws Error(kUsage) if T or the stream is too long for a Piece.
  PackedSequences(const TokenDataset& data, uint64_t begin, uint64_t end,
                  const PackedOptions& options);

  uint64_t size() const { return first_piece_.empty() ? 0 : first_piece_.size() - 1; }
  // The pieces of sequence k; together at most T pairs.
  std::span<const Piece> at(uint64_t k) const {
    return std::span(pieces_).subspan(first_piece_[k], first_piece_[k + 1] - first_piece_[k]);
  }

  uint64_t pairs() const { return pairs_; }          // positions that are no padding
  uint64_t documents() const { return documents_; }  // documents of at least two tokens
  uint64_t too_short() const { return too_short_; }  // documents of a single token: left out
  uint64_t cut() const { return cut_; }              // documents longer than T pairs
  uint64_t left_out() const { return left_out_; }    // pairs of theirs that are cut off
  // Documents that are cut off before any token of theirs that counts in the loss.
  uint64_t unheard() const { return unheard_; }
  // The most pieces, including padding, of a sequence, and the longest piece, which limits pieces
  // of padding (FillPaddingStarts); 1 and T if there are none.
  DocumentLimits Limits() const;

 private:
  void AddDocument(const TokenDataset& data, uint64_t begin, uint64_t end,
                   const PackedOptions& options);

  int64_t seq_len_ = 0;
  std::vector<Piece> pieces_;  // by sequence
  std::vector<uint32_t> first_piece_;
  uint64_t pairs_ = 0, documents_ = 0, too_short_ = 0, cut_ = 0, left_out_ = 0, unheard_ = 0;
};

// The token from which on documents are held back: the last ones, with at least `share` of the
// whole weight, and at least `least_sequences` sequences on both sides. The stream's size if there
// are fewer.
uint64_t HoldBackDocuments(const TokenDataset& data, const PackedOptions& options, double share,
                           uint64_t least_sequences);

}  // namespace zeroplan
