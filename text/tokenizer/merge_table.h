// The merges of a BPE model: which two neighbouring tokens become one, and which pair goes first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zeroplan {

// The merge of a pair. Lower ranks go first.
struct Merge {
  uint32_t rank = 0;
  int32_t id = 0;  // of the token that takes the pair's place
};

class MergeTable {
 public:
  // Empty, with room for `count` pairs.
  explicit MergeTable(size_t count = 0);

  // A pair that is there already gets the new merge. REQUIRES: as many pairs at most as it has room
  // for; ids not negative.
  void Set(int32_t left, int32_t right, Merge merge);
  // nullptr: the two stay apart.
  const Merge* Find(int32_t left, int32_t right) const {
    const uint64_t key = Key(left, right);
    for (size_t at = Slot(key);; at = (at + 1) & mask_) {
      if (slots_[at].key == key) return &slots_[at].merge;
      if (slots_[at].key == kEmpty) return nullptr;
    }
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Entry {
    uint64_t key = kEmpty;
    Merge merge;
  };

  static uint64_t Key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t Slot(uint64_t key) const {
    return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> 24) & mask_;
  }

  size_t mask_ = 0;
  std::vector<Entry> slots_;
};

// Room that a thread's merging uses again and again.
struct MergeRoom {
  struct Symbol {
    int32_t id = 0;
    int32_t previous = -1;
    int32_t next = -1;
  };
  struct Candidate {
    uint32_t rank = 0;
    int32_t at = 0;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> candidates;
  std::vector<Merge> pairs;
};

// Merges `*ids` in place until no pair is left: always the pair of lowest rank, of these the
// leftmost. Takes time n log n of the number of ids. REQUIRES: at most 2^31 - 1 ids.
void MergeAll(const MergeTable& merges, std::vector<int32_t>* ids, MergeRoom* room);

}  // namespace zeroplan
