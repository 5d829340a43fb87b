// Where transient buffers lie in an arena, by their sizes and lifetimes alone. For PlaceArenas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

// Buffers of an arena begin at multiples of this.
inline uint64_t ArenaAlignment(size_t space) {
  constexpr uint64_t kMemory = 128, kFile = 4096;
  return static_cast<Space>(space) == Space::kFile ? kFile : kMemory;
}

// When a buffer lives, in the time of its arena: a tick for each Alloc and each Free.
struct Lifetime {
  uint64_t bytes = 0;
  uint32_t begin = 0, end = 0;  // Alloc and Free
  uint32_t head = 0;            // carried: lives until there, too; else 0

  bool LivesAt(uint32_t tick) const { return (begin <= tick && tick < end) || tick < head; }
  bool operator==(const Lifetime&) const = default;
};

struct Places {
  std::vector<uint64_t> offsets;  // of each lifetime, from 0 on
  uint64_t bytes = 0;             // that they take
  uint64_t live_peak_bytes = 0;   // the largest sum of live bytes in any instant
};

// Each buffer, largest first, takes the tightest gap that is free while it lives, else the place
// behind those that live meanwhile. REQUIRES: at least one; `begin` rises from each to the next.
Places Place(const std::vector<Lifetime>& lifetimes, uint64_t alignment);

// The placements made last. Sections of programs that differ in where states live, or in streams,
// mostly have the same lifetimes.
class PlacementCache {
 public:
  // Lifetimes that are kept at most, unless those asked for last are more: 8 MB.
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
  std::vector<Entry> entries_;  // the one asked for last comes first
  size_t kept_ = 0;             // lifetimes of all
};

}  // namespace zeroplan
