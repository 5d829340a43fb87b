// For PlaceArenas: places transient buffers in an arena by their sizes and lifetimes alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

// The alignment of buffers in an arena, in bytes.
inline uint64_t ArenaAlignment(size_t space) {
  constexpr uint64_t kMemory = 128, kFile = 4096;
  return static_cast<Space>(space) == Space::kFile ? kFile : kMemory;
}

// The lifetime of a buffer in its arena's time: a tick for each Alloc and each Free.
struct Lifetime {
  uint64_t bytes = 0;
  uint32_t begin = 0, end = 0;  // ticks of Alloc and Free
  uint32_t head = 0;            // carried buffers live from tick 0 to here, too; else 0

  bool LivesAt(uint32_t tick) const { return (begin <= tick && tick < end) || tick < head; }
  bool operator==(const Lifetime&) const = default;
};

struct Places {
  std::vector<uint64_t> offsets;  // one for each lifetime, from 0 on
  uint64_t bytes = 0;             // the arena's size
  uint64_t live_peak_bytes = 0;   // the largest sum of live bytes at any tick
};

// Places the buffers, the largest first: each in the tightest gap that is free during its lifetime,
// else behind the buffers that live then. REQUIRES: at least one; `begin` rises from each to the
// next.
Places Place(const std::vector<Lifetime>& lifetimes, uint64_t alignment);

// A cache of the last placements. Sections of programs that differ in where states live, or in
// streams, mostly have the same lifetimes.
class PlacementCache {
 public:
  // Lifetimes kept at most, unless the last request has more: 8 MB.
  static constexpr size_t kMostKept = 1u << 18;

  // Valid until the next call.
  const Places& Of(std::vector<Lifetime> lifetimes, uint64_t alignment);
  size_t kept() const { return kept_; }

 private:
  struct Entry {
    std::vector<Lifetime> lifetimes;
    uint64_t alignment;
    Places places;
  };
  std::vector<Entry> entries_;  // the last one requested comes first
  size_t kept_ = 0;             // lifetimes of all entries
};

}  // namespace zeroplan
