#include "core/lowering/placement.h"

#include <algorithm>
#include <utility>

#include "core/base/units.h"
#include "core/lowering/passes.h"

namespace zeroplan {

namespace {

struct Placed {
  uint64_t offset, next;  // next: where the next buffer may begin, aligned
  uint32_t begin, end, head;

  // Whether it lives at some time of `life`.
  bool Meets(const Lifetime& life) const {
    return (begin < life.end && end > life.begin) || begin < life.head || life.begin < head;
  }
};
bool Below(const Placed& a, const Placed& b) { return a.offset < b.offset; }

// What is placed, as seen by buffers that live at some time of [begin, end). All that lives through
// all of that is in their way; what of this lies side by side is one block. Of the rest only what
// is not within a block counts.
class View {
 public:
  View(uint32_t begin, uint32_t end) : begin_(begin), end_(end) {}

  void Add(const Placed& entry) {
    const bool throughout = (entry.begin <= begin_ && entry.end >= end_) || entry.head >= end_;
    throughout ? AddToBlocks(entry) : AddToRest(entry);
  }

  // Calls visit for what is in the way of `life`, by rising offset.
  template <typename Visit>
  void ForEach(const Lifetime& life, const Visit& visit) const {
    auto block = blocks_.begin();
    for (const Placed& other : rest_) {
      if (!other.Meets(life)) continue;
      for (; block != blocks_.end() && block->offset <= other.offset; ++block) visit(*block);
      visit(other);
    }
    for (; block != blocks_.end(); ++block) visit(*block);
  }

 private:
  void AddToBlocks(const Placed& entry) {
    auto block = std::upper_bound(blocks_.begin(), blocks_.end(), entry, Below);
    const bool joins_last = block != blocks_.begin() && block[-1].next == entry.offset;
    const bool joins_next = block != blocks_.end() && entry.next == block->offset;
    if (joins_last) {
      block[-1].next = joins_next ? block->next : entry.next;
      block = joins_next ? blocks_.erase(block) - 1 : block - 1;
    } else if (joins_next) {
      block->offset = entry.offset;
    } else {
      block = blocks_.insert(block, entry);
    }
    const auto first = std::lower_bound(rest_.begin(), rest_.end(), *block, Below);
    const auto last =
        std::find_if(first, rest_.end(), [&](const Placed& p) { return p.offset >= block->next; });
    rest_.erase(std::remove_if(first, last, [&](const Placed& p) { return p.next <= block->next; }),
                last);
  }
  void AddToRest(const Placed& entry) {
    const auto after = std::upper_bound(blocks_.begin(), blocks_.end(), entry, Below);
    if (after != blocks_.begin() && entry.next <= after[-1].next) return;
    rest_.insert(std::upper_bound(rest_.begin(), rest_.end(), entry, Below), entry);
  }

  uint32_t begin_, end_;
  std::vector<Placed> blocks_, rest_;  // each by rising offset
};

// Placed buffers by time. Many buffers of a training step live at its busiest instant, from a
// layer's forward to its backward pass; most others live briefly. So there is a view of that
// instant, and views of short times, each told of what lives in its own time or in the next one:
// every second one of those that a buffer lives in have all that it meets.
class PlacedByTime {
 public:
  // `busiest`: any tick will do. `ticks`: at least 1. Of few buffers, few views: these cost
  // more than they save.
  PlacedByTime(uint32_t busiest, uint32_t ticks, size_t buffers)
      : busiest_(busiest), at_busiest_(busiest, busiest + 1) {
    const auto most = std::max<size_t>(32, buffers / 512);
    const auto views = static_cast<uint32_t>(std::clamp<size_t>(buffers / 40, 1, most));
    length_ = (ticks + views - 1) / views;
    all_.reserve(buffers);
    for (uint32_t begin = 0; begin < ticks; begin += length_) {
      views_.emplace_back(begin, std::min(ticks, begin + length_));
    }
  }

  void Add(const Placed& entry) {
    all_.push_back(entry);
    at_busiest_.Add(entry);
    size_t next = 0;  // view that has not been told
    if (entry.head > 0) next = AddToViews(entry, 0, entry.head, next);
    AddToViews(entry, entry.begin, entry.end, next);
  }

  // Calls visit for all that lives at some time of `life`, by rising offset; for some of it twice.
  template <typename Visit>
  void ForEachMet(const Lifetime& life, const Visit& visit) const {
    if (life.LivesAt(busiest_)) return at_busiest_.ForEach(life, visit);
    const size_t first = life.begin / length_, last = (life.end - 1) / length_;
    if (life.head == 0 && last <= first + 1) return views_[first].ForEach(life, visit);
    std::vector<Placed> met;
    const auto take = [&](const Placed& other) { met.push_back(other); };
    if (life.head == 0 && last - first < kFewViews) {
      for (size_t v = first; v <= last; v += 2) {
        const auto before = static_cast<std::ptrdiff_t>(met.size());
        views_[v].ForEach(life, take);
        std::inplace_merge(met.begin(), met.begin() + before, met.end(), Below);
      }
    } else {
      std::copy_if(all_.begin(), all_.end(), std::back_inserter(met),
                   [&](const Placed& other) { return other.Meets(life); });
      std::sort(met.begin(), met.end(), Below);
    }
    for (const Placed& other : met) visit(other);
  }

 private:
  // Tells the views from `next` on that [begin, end) concerns; returns the one after the last.
  size_t AddToViews(const Placed& entry, uint32_t begin, uint32_t end, size_t next) {
    const size_t first = begin / length_;
    const size_t behind = std::min<size_t>((end - 1) / length_ + 1, views_.size());
    for (size_t v = std::max(next, first == 0 ? 0 : first - 1); v < behind; ++v) {
      views_[v].Add(entry);
    }
    return std::max(next, behind);
  }

  // What lives in more is sought among all.
  static constexpr size_t kFewViews = 12;

  const uint32_t busiest_;
  View at_busiest_;
  uint32_t length_ = 1;  // of the time of a view
  std::vector<View> views_;
  std::vector<Placed> all_;
};

// The tightest gap for a buffer between others that are shown to it by rising offset; without one
// behind them all.
class GapSearch {
 public:
  explicit GapSearch(uint64_t bytes) : bytes_(bytes) {}
  void Pass(const Placed& other) {
    if (other.offset > top_) {
      const uint64_t gap = other.offset - top_;
      if (gap >= bytes_ && gap < best_gap_) {
        best_gap_ = gap;
        best_ = top_;
      }
    }
    top_ = std::max(top_, other.next);
  }
  uint64_t offset() const { return best_ == UINT64_MAX ? top_ : best_; }

 private:
  const uint64_t bytes_;
  uint64_t best_ = UINT64_MAX, best_gap_ = UINT64_MAX, top_ = 0;
};

// Where the most of `lifetimes` live.
uint32_t BusiestTick(const std::vector<Lifetime>& lifetimes, uint32_t ticks) {
  std::vector<int32_t> change(ticks + 1, 0);
  for (const Lifetime& life : lifetimes) {
    ++change[life.begin];
    --change[life.end];
  }
  int32_t live = 0, most = 0;
  uint32_t busiest = 0;
  for (uint32_t i = 0; i < ticks; ++i) {
    live += change[i];
    if (live <= most) continue;
    most = live;
    busiest = i;
  }
  return busiest;
}

uint64_t LargestLiveSum(const std::vector<Lifetime>& lifetimes, uint32_t ticks) {
  std::vector<int64_t> change(ticks + 1, 0);
  for (const Lifetime& life : lifetimes) {
    const auto bytes = static_cast<int64_t>(life.bytes);
    change[life.begin] += bytes;
    change[life.end] -= bytes;
    if (life.head == 0) continue;
    change[0] += bytes;
    change[life.head] -= bytes;
  }
  int64_t live = 0, peak = 0;
  for (int64_t step : change) peak = std::max(peak, live += step);
  return static_cast<uint64_t>(peak);
}

}  // namespace

Places Place(const std::vector<Lifetime>& lifetimes, uint64_t alignment) {
  uint32_t ticks = 0;
  // By falling bytes, those of one size by rising begin.
  std::vector<std::pair<uint64_t, uint32_t>> order;
  order.reserve(lifetimes.size());
  for (uint32_t i = 0; i < lifetimes.size(); ++i) {
    order.emplace_back(UINT64_MAX - lifetimes[i].bytes, i);
    ticks = std::max(ticks, lifetimes[i].end);
  }
  std::sort(order.begin(), order.end());
  PlacedByTime placed(BusiestTick(lifetimes, ticks), ticks, lifetimes.size());
  Places places;
  places.offsets.resize(lifetimes.size());
  for (const auto& [inverse_bytes, i] : order) {
    const Lifetime& life = lifetimes[i];
    GapSearch gaps(life.bytes);
    placed.ForEachMet(life, [&](const Placed& other) { gaps.Pass(other); });
    const uint64_t offset = gaps.offset();
    places.offsets[i] = offset;
    places.bytes = std::max(places.bytes, offset + life.bytes);
    placed.Add({offset, AlignUp(offset + life.bytes, alignment), life.begin, life.end, life.head});
  }
  places.live_peak_bytes = LargestLiveSum(lifetimes, ticks);
  return places;
}

const Places& PlacementCache::Of(std::vector<Lifetime> lifetimes, uint64_t alignment) {
  const auto known = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.alignment == alignment && entry.lifetimes == lifetimes;
  });
  if (known != entries_.end()) {
    std::rotate(entries_.begin(), known, known + 1);
    return entries_.front().places;
  }
  Places places = Place(lifetimes, alignment);
  kept_ += lifetimes.size();
  entries_.insert(entries_.begin(), {std::move(lifetimes), alignment, std::move(places)});
  for (; kept_ > kMostKept && entries_.size() > 1; entries_.pop_back()) {
    kept_ -= entries_.back().lifetimes.size();
  }
  return entries_.front().places;
}

namespace {

// The transient buffers of one space in one section, in the order of their Alloc.
struct Transients {
  std::vector<BufferId> buffers;
  std::vector<Lifetime> lifetimes;
  uint32_t ticks = 0;
};

// `index_of` and `heads` are room for as many as there are buffers, all 0, and are left so.
std::array<Transients, kSpaces> FindTransients(const Program& p,
                                               const std::vector<Instruction>& list,
                                               std::vector<uint32_t>& index_of,
                                               std::vector<uint32_t>& heads) {
  std::array<Transients, kSpaces> found;
  for (const Instruction& instruction : list) {
    if (const auto* alloc = std::get_if<Alloc>(&instruction.op)) {
      const BufferId id = alloc->buffer;
      const Buffer& buffer = p.buffers[id];
      if (buffer.persistent) continue;
      Transients& t = found[static_cast<size_t>(buffer.space)];
      t.buffers.push_back(id);
      t.lifetimes.push_back({buffer.bytes, t.ticks++, 0, heads[id]});
      index_of[id] = static_cast<uint32_t>(t.buffers.size());
    } else if (const auto* free = std::get_if<Free>(&instruction.op)) {
      const BufferId id = free->buffer;
      Transients& t = found[static_cast<size_t>(p.buffers[id].space)];
      const uint32_t tick = t.ticks++;
      if (index_of[id] == 0) {  // what the micro-step before left
        heads[id] = tick + 1;
      } else {
        t.lifetimes[index_of[id] - 1].end = tick;
      }
    }
  }
  for (Transients& t : found) {
    for (size_t i = 0; i < t.buffers.size(); ++i) {
      if (t.lifetimes[i].head > 0) t.lifetimes[i].end = t.ticks;
      index_of[t.buffers[i]] = heads[t.buffers[i]] = 0;
    }
  }
  return found;
}

}  // namespace

Program PlaceArenas(Program p, PlacementCache* cache) {
  PlacementCache own;
  if (cache == nullptr) cache = &own;
  std::array<uint64_t, kSpaces> persistent_live{}, base{};
  for (Buffer& buffer : p.buffers) {
    if (!buffer.persistent || buffer.bytes == 0) continue;
    const auto space = static_cast<size_t>(buffer.space);
    buffer.offset = AlignUp(p.persistent_bytes[space], ArenaAlignment(space));
    p.persistent_bytes[space] = buffer.offset + buffer.bytes;
    persistent_live[space] += buffer.bytes;
  }
  for (size_t space = 0; space < kSpaces; ++space) {
    base[space] = AlignUp(p.persistent_bytes[space], ArenaAlignment(space));
    p.arena_bytes[space] = p.persistent_bytes[space];
    p.live_peak_bytes[space] = persistent_live[space];
  }
  std::vector<uint32_t> index_of(p.buffers.size(), 0), heads(p.buffers.size(), 0);
  for (const auto& list : p.sections) {
    std::array<Transients, kSpaces> transients = FindTransients(p, list, index_of, heads);
    for (size_t space = 0; space < kSpaces; ++space) {
      Transients& t = transients[space];
      if (t.buffers.empty()) continue;
      const Places& places = cache->Of(std::move(t.lifetimes), ArenaAlignment(space));
      for (size_t i = 0; i < t.buffers.size(); ++i) {
        p.buffers[t.buffers[i]].offset = base[space] + places.offsets[i];
      }
      p.arena_bytes[space] = std::max(p.arena_bytes[space], base[space] + places.bytes);
      p.live_peak_bytes[space] =
          std::max(p.live_peak_bytes[space], persistent_live[space] + places.live_peak_bytes);
    }
  }
  return p;
}

}  // namespace zeroplan
