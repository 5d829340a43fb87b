// PlaceArenas keeps views of what is placed, so that it need not look at every buffer for every
// other. Here the rule itself, without views: both place every buffer alike.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "core/lowering/lower.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

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
