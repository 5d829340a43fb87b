// Sets of bytes as ranges: which of a buffer were written, and who owns an arena's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "core/program/happens_before.h"
#include "core/program/violations.h"

namespace zeroplan {

// A set of bytes as sorted ranges that neither overlap nor touch.
class ByteSet {
 public:
  void Clear() { ranges_.clear(); }
  void Add(uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    auto first = FirstEndingAtOrAfter(begin);
    auto last = first;
    for (; last != ranges_.end() && last->begin <= end; ++last) {
      begin = std::min(begin, last->begin);
      end = std::max(end, last->end);
    }
    if (first == last) {
      ranges_.insert(first, {begin, end});
    } else {
      *first = {begin, end};
      ranges_.erase(first + 1, last);
    }
  }
  // The first byte of [begin, end) that is missing; `end` if none is.
  uint64_t FirstMissing(uint64_t begin, uint64_t end) const {
    const auto range = const_cast<ByteSet*>(this)->FirstEndingAtOrAfter(begin);
    if (range == ranges_.end() || range->begin > begin) return begin;
    return std::min(range->end, end);
  }

 private:
  struct Range {
    uint64_t begin, end;
  };
  std::vector<Range>::iterator FirstEndingAtOrAfter(uint64_t begin) {
    return std::lower_bound(ranges_.begin(), ranges_.end(), begin,
                            [](const Range& range, uint64_t at) { return range.end < at; });
  }
  std::vector<Range> ranges_;
};

// Who owns, or owned last, each byte of an arena. Bytes that nobody ever owned have no piece.
class ArenaMap {
 public:
  struct Piece {
    uint64_t end = 0;
    BufferId owner = kNoBuffer;
    bool live = false;
    Moment freed;  // of a piece that is not live
    Site freed_site;
  };

  // Calls visit(piece) for every piece that overlaps [begin, end), then gives the range to `owner`.
  template <typename Visit>
  void Take(uint64_t begin, uint64_t end, BufferId owner, Visit&& visit) {
    if (begin >= end) return;
    auto it = pieces_.upper_bound(begin);
    if (it != pieces_.begin() && std::prev(it)->second.end > begin) --it;
    while (it != pieces_.end() && it->first < end) {
      const uint64_t piece_begin = it->first;
      const Piece piece = it->second;
      visit(piece);
      it = pieces_.erase(it);
      // What sticks out on either side keeps its owner.
      if (piece_begin < begin) {
        Piece left = piece;
        left.end = begin;
        pieces_.emplace(piece_begin, left);
      }
      if (piece.end > end) it = pieces_.emplace(end, piece).first;
    }
    pieces_.emplace(begin, Piece{end, owner, true, {}, {}});
  }

  void Release(uint64_t begin, uint64_t end, BufferId owner, Moment moment, Site site) {
    for (auto it = pieces_.lower_bound(begin); it != pieces_.end() && it->first < end; ++it) {
      if (it->second.owner != owner) continue;
      it->second.live = false;
      it->second.freed = moment;
      it->second.freed_site = site;
    }
  }

 private:
  std::map<uint64_t, Piece> pieces_;  // by first byte, disjoint
};

}  // namespace zeroplan
