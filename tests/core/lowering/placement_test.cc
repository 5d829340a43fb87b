#include "core/lowering/placement.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "core/lowering/lower.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {

namespace {

// A: all the time; B and C: one after the other; D: carried, from the end into the begin.
const std::vector<Lifetime> kLives = {
    {1000, 0, 8, 0}, {400, 1, 3, 0}, {300, 3, 5, 0}, {200, 6, 8, 2}};

TEST_CASE("Place: largest first, side by side what lives together, else one over the other") {
  const Places places = Place(kLives, 128);
  CHECK(places.offsets == std::vector<uint64_t>{0, 1024, 1024, 1536});
  CHECK(places.bytes == 1736);
  CHECK(places.live_peak_bytes == 1600);
}

TEST_CASE("PlacementCache gives what Place gives, by lifetimes and alignment") {
  PlacementCache cache;
  std::vector<Lifetime> longer = kLives, carried = kLives;
  longer[1].end = 4;    // now meets C
  carried[3].head = 1;  // no longer meets B
  for (int round = 0; round < 2; ++round) {
    for (const std::vector<Lifetime>& lives : {kLives, longer, carried}) {
      for (const uint64_t alignment : {128u, 4096u}) {
        const Places expected = Place(lives, alignment);
        const Places& places = cache.Of(lives, alignment);
        CHECK(places.offsets == expected.offsets);
        CHECK(places.bytes == expected.bytes);
        CHECK(places.live_peak_bytes == expected.live_peak_bytes);
      }
    }
  }
  CHECK(Place(longer, 128).offsets == std::vector<uint64_t>{0, 1024, 1536, 1536});
  CHECK(Place(carried, 128).offsets == std::vector<uint64_t>{0, 1024, 1024, 1024});
}

TEST_CASE("PlacementCache keeps what was asked for last, and a bounded amount") {
  PlacementCache cache;
  constexpr uint32_t kCount = 100'000;
  std::vector<Lifetime> many;  // all live together
  for (uint32_t i = 0; i < kCount; ++i) many.push_back({128, i, kCount + i, 0});
  for (uint64_t bytes : {128, 256, 384, 512}) {
    many.front().bytes = bytes;
    CHECK(cache.Of(many, 128).bytes == bytes + 128 * (kCount - 1));
    CHECK(cache.kept() <= PlacementCache::kMostKept);
    CHECK(cache.kept() >= many.size());
  }
}

struct Life {
  BufferId buffer;
  size_t begin, end;  // positions of Alloc and Free
  size_t head;        // what a micro-step leaves to the next one: lives until there, too; else 0
};

bool Meet(const Life& a, const Life& b) {
  return (a.begin < b.end && b.begin < a.end) || a.begin < b.head || b.begin < a.head;
}

std::vector<Life> LivesOf(const Program& p, Section section, Space space) {
  const std::vector<Instruction>& list = p.section(section);
  std::vector<Life> lives;
  for (size_t i = 0; i < list.size(); ++i) {
    const auto* alloc = std::get_if<Alloc>(&list[i].op);
    if (alloc == nullptr || p.buffers[alloc->buffer].persistent) continue;
    if (p.buffers[alloc->buffer].space != space) continue;
    Life life = {alloc->buffer, i, i, 0};
    for (size_t f = 0; f < list.size(); ++f) {
      const auto* free = std::get_if<Free>(&list[f].op);
      if (free == nullptr || free->buffer != alloc->buffer) continue;
      (f < i ? life.head : life.end) = f < i ? f + 1 : f;
    }
    if (life.head > 0) life.end = list.size();
    lives.push_back(life);
  }
  return lives;
}

// Where the rule puts each of `lives`, in their order: largest first, each into the tightest gap
// between those that are placed already and live at some time with it, else behind them.
std::vector<uint64_t> OffsetsByRule(const Program& p, const std::vector<Life>& lives,
                                    uint64_t base) {
  const uint64_t alignment = 128;
  std::vector<size_t> order(lives.size()), done;
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  auto bytes = [&](size_t i) { return p.buffers[lives[i].buffer].bytes; };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return bytes(a) != bytes(b) ? bytes(a) > bytes(b) : lives[a].begin < lives[b].begin;
  });
  std::vector<uint64_t> offsets(lives.size());
  for (size_t i : order) {
    std::vector<size_t> met;
    for (size_t other : done) {
      if (Meet(lives[i], lives[other])) met.push_back(other);
    }
    std::sort(met.begin(), met.end(), [&](size_t a, size_t b) { return offsets[a] < offsets[b]; });
    uint64_t top = base, best = 0, best_gap = UINT64_MAX;
    for (size_t other : met) {
      if (offsets[other] > top && offsets[other] - top >= bytes(i) &&
          offsets[other] - top < best_gap) {
        best_gap = offsets[other] - top;
        best = top;
      }
      top = std::max(top, AlignUp(offsets[other] + bytes(other), alignment));
    }
    offsets[i] = best_gap < UINT64_MAX ? best : top;
    done.push_back(i);
  }
  return offsets;
}

// How many buffers were compared.
size_t CheckPlaces(const Program& p) {
  size_t compared = 0;
  for (int s = 0; s < kSections; ++s) {
    for (const Space space : {Space::kDevice, Space::kPinned, Space::kPageable}) {
      const std::vector<Life> lives = LivesOf(p, static_cast<Section>(s), space);
      const uint64_t base = AlignUp(p.persistent_bytes[static_cast<size_t>(space)], 128);
      const std::vector<uint64_t> offsets = OffsetsByRule(p, lives, base);
      for (size_t i = 0; i < lives.size(); ++i) {
        const Buffer& buffer = p.buffers[lives[i].buffer];
        INFO(SectionName(static_cast<Section>(s)), " ", BufferName(buffer));
        REQUIRE(buffer.offset == offsets[i]);
      }
      compared += lives.size();
    }
  }
  return compared;
}

TEST_CASE("PlaceArenas puts every transient buffer into the tightest gap that is free for it") {
  size_t compared = 0;
  for (const testing::Cell& cell : testing::AllCells({2}, {Dtype::kBF16})) {
    INFO(cell.name);
    compared += CheckPlaces(Lower(testing::TinyModel(6), cell.setup));
  }
  CHECK(compared > 20'000);
}

TEST_CASE("PlaceArenas does so in sections that are many views long") {
  for (const testing::Cell& cell : testing::SomeCells({Dtype::kBF16})) {
    INFO(cell.name);
    if (cell.setup.batch.world_size == 1) continue;
    CHECK(CheckPlaces(Lower(testing::TinyModel(20), cell.setup)) > 300);
  }
}

}  // namespace

}  // namespace zeroplan
