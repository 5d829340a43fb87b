// For AssignEvents: the instructions that last touched each byte of a buffer, by stream.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

// One instruction of the list for each stream: the last one known to be over, to have read, ...
using StreamClock = std::array<int32_t, kStreams>;
inline constexpr int32_t kNothingYet = std::numeric_limits<int32_t>::min();
inline constexpr StreamClock kNoneYet = [] {
  StreamClock clock{};
  clock.fill(kNothingYet);
  return clock;
}();

// Bytes of a buffer that a reference covers, over all ranks.
struct ByteSpan {
  uint64_t begin, end;
};
inline ByteSpan SpanOverRanks(const Ref& ref, const RankAxes& axes) {
  return {ref.offset, ref.begin(axes.Of(axes.ranks() - 1)) + ref.bytes};
}

// The history of one buffer. One entry for the whole buffer until a part of it is written, because
// most buffers are only ever written whole. Then one entry for each of the disjoint ranges that
// cover it, until it is written whole again. In the swap file parts of a buffer are read while
// others are written, so there reads are recorded by range too.
class AccessHistory {
 public:
  void Clear() {
    whole_ = {};
    parts_.clear();
  }

  // Raises `need` to the instructions that must end before an access: a read waits for writes, a
  // write for reads too.
  void AddNeeds(ByteSpan span, bool writes, StreamClock& need) const {
    if (parts_.empty()) return Join(whole_, writes, need);
    for (size_t i = FirstEndingAfter(span.begin); i < parts_.size(); ++i) {
      if (parts_[i].begin >= span.end) break;
      Join(parts_[i].last, writes, need);
    }
  }

  // REQUIRES: the access comes after all instructions that AddNeeds named.
  void Note(ByteSpan span, uint64_t buffer_bytes, bool writes, size_t stream, int32_t index,
            bool in_file = false) {
    const bool all = span.begin == 0 && span.end >= buffer_bytes;
    if (all && writes) {  // waiting for this write implies waiting for all before it
      parts_.clear();
      whole_ = {};
      whole_.write[stream] = index;
    } else if (parts_.empty() && !writes && (all || !in_file)) {
      whole_.read[stream] = index;
    } else if (span.begin < span.end) {
      NotePart(span, buffer_bytes, writes, stream, index);
    }
  }

 private:
  struct Last {
    StreamClock read = kNoneYet, write = kNoneYet;
  };
  struct Part {
    uint64_t begin, end;
    Last last;
  };

  static void Join(const Last& last, bool writes, StreamClock& need) {
    for (size_t s = 0; s < need.size(); ++s) need[s] = std::max(need[s], last.write[s]);
    if (!writes) return;
    for (size_t s = 0; s < need.size(); ++s) need[s] = std::max(need[s], last.read[s]);
  }

  size_t FirstEndingAfter(uint64_t at) const {
    const auto part = std::lower_bound(parts_.begin(), parts_.end(), at,
                                       [](const Part& p, uint64_t end) { return p.end <= end; });
    return static_cast<size_t>(part - parts_.begin());
  }

  // Makes `at` a border between parts; returns the part that begins there.
  size_t Cut(uint64_t at) {
    const size_t i = FirstEndingAfter(at);
    if (i == parts_.size() || parts_[i].begin >= at) return i;
    Part left = parts_[i];
    left.end = at;
    parts_[i].begin = at;
    parts_.insert(parts_.begin() + static_cast<std::ptrdiff_t>(i), left);
    return i + 1;
  }

  void NotePart(ByteSpan span, uint64_t buffer_bytes, bool writes, size_t stream, int32_t index) {
    if (parts_.empty()) parts_.push_back({0, buffer_bytes, whole_});
    const size_t first = Cut(span.begin), last = Cut(std::min(span.end, buffer_bytes));
    if (!writes) {
      for (size_t i = first; i < last; ++i) parts_[i].last.read[stream] = index;
      return;
    }
    // One range from now on, whose last access is this one.
    parts_[first].end = parts_[last - 1].end;
    parts_[first].last = {};
    parts_[first].last.write[stream] = index;
    parts_.erase(parts_.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                 parts_.begin() + static_cast<std::ptrdiff_t>(last));
  }

  Last whole_;
  std::vector<Part> parts_;  // sorted; empty: whole_ describes all bytes
};

// Histories of the buffers that a section touches, by kind of micro-step. Sections reuse the memory
// one after the other.
class AccessHistories {
 public:
  explicit AccessHistories(size_t buffers) : slot_(buffers, kNone) {}

  void Begin(size_t kinds) {
    for (BufferId id : touched_) slot_[id] = kNone;
    touched_.clear();
    kinds_ = kinds;
  }
  // The history of a buffer in kind k is k entries further.
  size_t SlotOf(BufferId id) {
    if (slot_[id] == kNone) Touch(id);
    return slot_[id];
  }
  AccessHistory& operator[](size_t slot) { return pool_[slot]; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  void Touch(BufferId id) {
    slot_[id] = static_cast<uint32_t>(touched_.size() * kinds_);
    touched_.push_back(id);
    if (pool_.size() < slot_[id] + kinds_) pool_.resize(slot_[id] + kinds_);
    for (size_t k = 0; k < kinds_; ++k) pool_[slot_[id] + k].Clear();
  }

  // by buffer: index into pool_ of the first of its entries, one for each kind
  std::vector<uint32_t> slot_;
  std::vector<BufferId> touched_;
  std::vector<AccessHistory> pool_;
  size_t kinds_ = 1;
};

}  // namespace zeroplan
