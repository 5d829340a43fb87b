// Pass 11: offsets. Persistent buffers lie at an arena's bottom in order; above them each transient
// buffer, largest first, takes the tightest gap that is free while it lives. Sections follow one
// another in time, so each is placed by itself and all share the space. What a micro-step leaves to
// the next one lives until the list's end, and from its begin until it is freed there.
#include <algorithm>

#include "core/base/units.h"
#include "core/lowering/passes.h"

namespace zeroplan {
namespace {

constexpr uint64_t kDeviceAlignment = 128, kFileAlignment = 4096;

struct Lifetime {
  BufferId buffer;
  uint32_t begin, end;  // positions of Alloc and Free
  uint32_t head;        // carried: lives until there, too; else 0
};

struct Placed {
  uint64_t offset, next;  // next: where the next buffer may begin, aligned
  uint32_t begin, end, head;
};

// Placed buffers by time, each list by rising offset. Most buffers live briefly, so few others are
// there meanwhile: beside a list of all there are lists of windows over the section, each begun
// halfway through the one before. A lifetime of at most half a window lies within one, whose list
// has all that live meanwhile.
class PlacedByTime {
 public:
  explicit PlacedByTime(uint32_t positions) {
    for (uint32_t half = std::max(1u, positions); levels_.size() < kLevels; half /= 16) {
      if (half == 0) break;
      levels_.push_back({half, std::vector<std::vector<Placed>>(positions / half + 1)});
    }
  }

  // All that live at some time of `life`, and others.
  const std::vector<Placed>& Near(const Lifetime& life) const {
    const Level* level = &levels_.front();
    for (const Level& finer : levels_) {
      if (life.head == 0 && life.end - life.begin <= finer.half) level = &finer;
    }
    return level->windows[life.head == 0 ? life.begin / level->half : 0];
  }

  void Add(const Placed& entry) {
    for (Level& level : levels_) {
      uint32_t next = 0;  // window that has it not yet
      if (entry.head > 0) next = AddTo(level, entry, 0, entry.head, next);
      AddTo(level, entry, entry.begin, entry.end, next);
    }
  }

 private:
  static constexpr size_t kLevels = 2;
  struct Level {
    uint32_t half;  // of a window's width
    std::vector<std::vector<Placed>> windows;
  };

  // Adds to the windows from `next` on that overlap [begin, end); returns the one after the last.
  static uint32_t AddTo(Level& level, const Placed& entry, uint32_t begin, uint32_t end,
                        uint32_t next) {
    // Window w covers [w * half, (w + 2) * half).
    const uint32_t first = begin / level.half;
    const uint32_t last =
        std::min<uint32_t>((end - 1) / level.half, static_cast<uint32_t>(level.windows.size()) - 1);
    for (uint32_t w = std::max(next, first == 0 ? 0 : first - 1); w <= last; ++w) {
      std::vector<Placed>& window = level.windows[w];
      window.insert(
          std::upper_bound(window.begin(), window.end(), entry,
                           [](const Placed& a, const Placed& b) { return a.offset < b.offset; }),
          entry);
    }
    return std::max(next, last + 1);
  }

  std::vector<Level> levels_;  // widest first
};

// Offsets relative to the transient region; returns the region's size. `positions`: the section's.
uint64_t PlaceTransients(Program& p, std::vector<Lifetime>& lifetimes, uint64_t alignment,
                         uint32_t positions) {
  std::sort(lifetimes.begin(), lifetimes.end(), [&](const Lifetime& a, const Lifetime& b) {
    const uint64_t x = p.buffers[a.buffer].bytes, y = p.buffers[b.buffer].bytes;
    return x != y ? x > y : a.begin < b.begin;
  });
  PlacedByTime placed(positions);
  uint64_t size = 0;
  for (const Lifetime& life : lifetimes) {
    const uint64_t bytes = p.buffers[life.buffer].bytes;
    uint64_t best = UINT64_MAX, best_gap = UINT64_MAX, top = 0;
    for (const Placed& other : placed.Near(life)) {
      const bool apart = other.begin >= life.end || other.end <= life.begin;
      if (apart && other.begin >= life.head && life.begin >= other.head) continue;
      if (other.offset > top) {
        const uint64_t gap = other.offset - top;
        if (gap >= bytes && gap < best_gap) {
          best_gap = gap;
          best = top;
        }
      }
      top = std::max(top, other.next);
    }
    const uint64_t offset = best == UINT64_MAX ? top : best;
    p.buffers[life.buffer].offset = offset;
    size = std::max(size, offset + bytes);
    placed.Add({offset, AlignUp(offset + bytes, alignment), life.begin, life.end, life.head});
  }
  return size;
}

uint64_t LargestLiveSum(const Program& p, const std::vector<Lifetime>& lifetimes,
                        uint32_t positions) {
  std::vector<int64_t> change(positions + 1, 0);
  for (const Lifetime& life : lifetimes) {
    change[life.begin] += static_cast<int64_t>(p.buffers[life.buffer].bytes);
    change[life.end] -= static_cast<int64_t>(p.buffers[life.buffer].bytes);
    change[0] += life.head > 0 ? static_cast<int64_t>(p.buffers[life.buffer].bytes) : 0;
    change[life.head] -= life.head > 0 ? static_cast<int64_t>(p.buffers[life.buffer].bytes) : 0;
  }
  int64_t live = 0, peak = 0;
  for (int64_t step : change) peak = std::max(peak, live += step);
  return static_cast<uint64_t>(peak);
}

}  // namespace

Program PlaceArenas(Program p) {
  std::array<uint64_t, kSpaces> persistent_live{}, base{};
  auto alignment = [](size_t space) {
    return static_cast<Space>(space) == Space::kFile ? kFileAlignment : kDeviceAlignment;
  };
  for (Buffer& buffer : p.buffers) {
    if (!buffer.persistent || buffer.bytes == 0) continue;
    const auto space = static_cast<size_t>(buffer.space);
    buffer.offset = AlignUp(p.persistent_bytes[space], alignment(space));
    p.persistent_bytes[space] = buffer.offset + buffer.bytes;
    persistent_live[space] += buffer.bytes;
  }
  for (size_t space = 0; space < kSpaces; ++space) {
    base[space] = AlignUp(p.persistent_bytes[space], alignment(space));
    p.arena_bytes[space] = p.persistent_bytes[space];
    p.live_peak_bytes[space] = persistent_live[space];
  }
  constexpr uint32_t kNotYet = UINT32_MAX;
  std::vector<uint32_t> begun(p.buffers.size(), kNotYet), heads(p.buffers.size(), 0);
  for (const auto& list : p.sections) {
    std::array<std::vector<Lifetime>, kSpaces> transients;
    const auto positions = static_cast<uint32_t>(list.size());
    for (uint32_t i = 0; i < positions; ++i) {
      if (const auto* alloc = std::get_if<Alloc>(&list[i].op)) {
        begun[alloc->buffer] = i;
      } else if (const auto* free = std::get_if<Free>(&list[i].op)) {
        const BufferId id = free->buffer;
        if (begun[id] == kNotYet) {  // what the micro-step before left
          heads[id] = i + 1;
          continue;
        }
        const uint32_t end = heads[id] > 0 ? positions : i;
        transients[static_cast<size_t>(p.buffers[id].space)].push_back(
            {id, begun[id], end, heads[id]});
      }
    }
    for (size_t space = 0; space < kSpaces; ++space) {
      if (transients[space].empty()) continue;
      const uint64_t size = PlaceTransients(p, transients[space], alignment(space), positions);
      for (const Lifetime& life : transients[space]) p.buffers[life.buffer].offset += base[space];
      const uint64_t live = LargestLiveSum(p, transients[space], positions);
      p.arena_bytes[space] = std::max(p.arena_bytes[space], base[space] + size);
      p.live_peak_bytes[space] = std::max(p.live_peak_bytes[space], persistent_live[space] + live);
    }
  }
  return p;
}

}  // namespace zeroplan
