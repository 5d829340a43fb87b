// Pass 11: offsets. Persistent buffers lie at an arena's bottom in order; above them each transient
// buffer, largest first, takes the tightest gap that is free while it lives. Sections follow one
// another in time, so each is placed by itself and all share the space. What a micro-step leaves to
// the next one lives until the list's end, and from its begin until it is freed there.
#include <algorithm>

#include "core/base/units.h"
#include "core/lowering/arena_alignment.h"
#include "core/lowering/passes.h"
#include "core/lowering/placement.h"

namespace zeroplan {
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
