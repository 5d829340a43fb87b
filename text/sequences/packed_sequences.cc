#include "text/sequences/packed_sequences.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/base/error.h"

namespace zeroplan {
namespace {

constexpr uint64_t kMostPosition = uint64_t{1} << 40, kMostPairs = uint64_t{1} << 24;
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

// A set of numbers below `size`, which finds the least one from a given number on in a few steps:
// bits, and above each 64 of them one that says whether any is set.
class NumberSet {
 public:
  explicit NumberSet(uint64_t size) {
    do {
      size = (size + 63) / 64;
      levels_.emplace_back(size);
    } while (size > 1);
  }

  void Insert(uint64_t number) {
    for (std::vector<uint64_t>& level : levels_) {
      level[number / 64] |= uint64_t{1} << number % 64;
      number /= 64;
    }
  }
  void Erase(uint64_t number) {
    for (std::vector<uint64_t>& level : levels_) {
      uint64_t& word = level[number / 64];
      word &= ~(uint64_t{1} << number % 64);
      if (word != 0) return;
      number /= 64;
    }
  }
  // kNone if there is none.
  uint32_t LeastFrom(uint64_t number) const {
    for (size_t i = 0; i < levels_.size(); ++i) {
      if (number / 64 >= levels_[i].size()) return kNone;
      const uint64_t rest = levels_[i][number / 64] >> number % 64;
      if (rest == 0) {
        number = number / 64 + 1;
        continue;
      }
      number += static_cast<uint64_t>(std::countr_zero(rest));
      while (i-- > 0) {
        number = number * 64 + static_cast<uint64_t>(std::countr_zero(levels_[i][number]));
      }
      return static_cast<uint32_t>(number);
    }
    return kNone;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;
};

// The sequence of each piece, best fit decreasing; their number.
uint32_t BestFit(std::span<const PackedSequences::Piece> pieces, uint64_t T,
                 std::vector<uint32_t>& sequence_of) {
  // The pieces' numbers by length, those of length L from first[L] to first[L + 1].
  std::vector<uint32_t> first(T + 2), order(pieces.size());
  for (const auto& piece : pieces) ++first[piece.pairs + 1];
  for (uint64_t length = 0; length <= T; ++length) first[length + 1] += first[length];
  std::vector<uint32_t> next = first;
  for (uint32_t i = 0; i < pieces.size(); ++i) order[next[pieces[i].pairs]++] = i;
  NumberSet rooms(T + 1);                         // positions that some sequence has left
  std::vector<uint32_t> with_room(T + 1, kNone);  // the latest sequence with so many left
  std::vector<uint32_t> before;                   // by sequence: the one before with as many left
  for (uint64_t pairs = T; pairs > 0; --pairs) {
    for (uint32_t o = first[pairs]; o < first[pairs + 1]; ++o) {
      uint32_t room = rooms.LeastFrom(pairs), sequence;
      if (room == kNone) {
        room = static_cast<uint32_t>(T);
        sequence = static_cast<uint32_t>(before.size());
        before.push_back(kNone);
      } else {
        sequence = with_room[room];
        with_room[room] = before[sequence];
        if (with_room[room] == kNone) rooms.Erase(room);
      }
      sequence_of[order[o]] = sequence;
      const uint64_t left = room - pairs;
      if (left == 0) continue;
      before[sequence] = with_room[left];
      with_room[left] = sequence;
      rooms.Insert(left);
    }
  }
  return static_cast<uint32_t>(before.size());
}

// Pieces and their whole length that a document of `pairs` gives.
struct Cut {
  uint64_t pieces, pairs;
};
Cut CutOf(uint64_t pairs, const PackedOptions& options) {
  const auto T = static_cast<uint64_t>(options.seq_len);
  if (pairs <= T) return {pairs > 0 ? 1u : 0u, pairs};
  return options.cut_long ? Cut{(pairs + T - 1) / T, pairs} : Cut{1, T};
}

// Of the targets [begin, begin + count).
bool AnyCounts(const TokenDataset& data, uint64_t begin, uint64_t count) {
  std::vector<int32_t> targets(count, 0);
  data.MaskTargets(begin, targets);
  return std::any_of(targets.begin(), targets.end(), [](int32_t target) { return target == 0; });
}

}  // namespace

PackedSequences::PackedSequences(const TokenDataset& data, uint64_t begin, uint64_t end,
                                 const PackedOptions& options)
    : seq_len_(options.seq_len) {
  const auto T = static_cast<uint64_t>(options.seq_len);
  ZEROPLAN_CHECK(options.packing != Packing::kStream && T > 0, "a stream is not packed");
  if (T >= kMostPairs || data.size() > kMostPosition) {
    ThrowUsage(
        "⟦packing⟧ {}: sequences of {} tokens, data of {}: at most {} and {}; use ⟦packing⟧ stream",
        PackingName(options.packing), T, data.size(), kMostPairs - 1, kMostPosition);
  }
  data.ForEachDocument(
      begin, end, [&](uint64_t first, uint64_t last) { AddDocument(data, first, last, options); });
  if (pieces_.size() >= kNone) {
    ThrowUsage("⟦packing⟧ {}: {} pieces of documents; at most {}, or use ⟦packing⟧ stream",
               PackingName(options.packing), pieces_.size(), kNone - 1);
  }
  const auto count = static_cast<uint32_t>(pieces_.size());
  if (options.packing == Packing::kOff) {
    first_piece_.resize(count + 1u);
    for (uint32_t i = 0; i <= count; ++i) first_piece_[i] = i;
    return;
  }
  std::vector<uint32_t> sequence_of(count);
  const uint32_t sequences = BestFit(pieces_, T, sequence_of);
  // By their first piece, and how many each has.
  std::vector<uint32_t> rank(sequences, kNone);
  first_piece_.assign(sequences + 1u, 0);
  uint32_t seen = 0;
  for (uint32_t& sequence : sequence_of) {
    if (rank[sequence] == kNone) rank[sequence] = seen++;
    sequence = rank[sequence];
    ++first_piece_[sequence + 1u];
  }
  for (uint32_t k = 0; k < sequences; ++k) first_piece_[k + 1u] += first_piece_[k];
  std::vector<uint32_t>& next = rank;
  std::copy(first_piece_.begin(), first_piece_.end() - 1, next.begin());
  std::vector<Piece> sorted(count);
  for (uint32_t i = 0; i < count; ++i) sorted[next[sequence_of[i]]++] = pieces_[i];
  pieces_ = std::move(sorted);
}

void PackedSequences::AddDocument(const TokenDataset& data, uint64_t begin, uint64_t end,
                                  const PackedOptions& options) {
  const auto T = static_cast<uint64_t>(options.seq_len);
  uint64_t pairs = end - begin - 1;
  if (pairs == 0) {
    ++too_short_;
    return;
  }
  ++documents_;
  if (pairs > T) {
    ++cut_;
    if (!options.cut_long) {
      unheard_ += data.has_mask() && !AnyCounts(data, begin + 1, T) &&
                  AnyCounts(data, begin + 1 + T, pairs - T);
      left_out_ += pairs - T;
      pairs = T;
    }
  }
  pairs_ += pairs;
  for (uint64_t done = 0; done < pairs; done += T) {
    // Both fit (see the constructor); the masks say so to the compiler.
    pieces_.push_back(
        {(begin + done) & (kMostPosition - 1), std::min(T, pairs - done) & (kMostPairs - 1)});
  }
}

DocumentLimits PackedSequences::Limits() const {
  DocumentLimits limits{.most_in_row = 1, .longest = pieces_.empty() ? seq_len_ : 1};
  for (const Piece& piece : pieces_) {
    limits.longest = std::max(limits.longest, static_cast<int64_t>(piece.pairs));
  }
  for (uint64_t k = 0; k < size(); ++k) {
    int64_t padding = seq_len_;
    for (const Piece& piece : at(k)) padding -= static_cast<int64_t>(piece.pairs);
    const auto pieces = static_cast<int64_t>(at(k).size());
    limits.most_in_row =
        std::max(limits.most_in_row, pieces + (padding + limits.longest - 1) / limits.longest);
  }
  return limits;
}

uint64_t HoldBackDocuments(const TokenDataset& data, const PackedOptions& options, double share,
                           uint64_t least_sequences) {
  // What does not fit one sequence less is as many at least, however it is packed.
  const auto T = static_cast<uint64_t>(options.seq_len);
  const auto weight = [&](uint64_t begin, uint64_t end) {
    const Cut cut = CutOf(end - begin - 1, options);
    return options.packing == Packing::kOff ? cut.pieces * T : cut.pairs;
  };
  uint64_t all = 0;
  data.ForEachDocument(0, data.size(), [&](uint64_t b, uint64_t e) { all += weight(b, e); });
  const uint64_t least = least_sequences * T;
  const uint64_t wanted = std::max(least, static_cast<uint64_t>(static_cast<double>(all) * share));
  if (all < wanted || share <= 0) return data.size();
  uint64_t before = 0, cut = 0;
  data.ForEachDocument(0, data.size(), [&](uint64_t b, uint64_t e) {
    if (all - before >= wanted) cut = b;
    before += weight(b, e);
  });
  uint64_t trained = 0;
  data.ForEachDocument(0, cut, [&](uint64_t b, uint64_t e) { trained += weight(b, e); });
  return trained < least ? data.size() : cut;
}

}  // namespace zeroplan
