// Pass 16: Alloc of all persistent buffers at init's start; Alloc before a transient buffer's first
// use in a section and Free after its last, unless a pass has freed it itself. All of them run on
// the compute stream: one order of memory for all streams.
//
// What a pass frees in the step's last micro-step alone is carried: every other micro-step leaves
// it to the one after it, which frees it in its forward pass: halfway, or earlier where it would
// make the peak. If the last micro-step alone uses it, it alone allocates it too.
#include <algorithm>

#include "core/lowering/passes.h"
#include "core/program/step_order.h"

namespace zeroplan {
namespace {

constexpr uint32_t kNever = UINT32_MAX;

// When a transient buffer lives in one section.
struct Life {
  uint32_t first = kNever, last = 0;  // uses, or what a pass has freed it with
  uint8_t used_when = 0;              // the micro-steps that use it
  uint8_t lives_when = kEvery;        // those in which it is allocated and freed
  bool freed = false;                 // by a pass
  bool carried = false;               // until the list's end
};

// The instruction before which a micro-step frees what it finds carried. The later, the longer the
// carried reductions may take, as the compute stream waits there for them.
size_t FreeCarriedBefore(const Program& p, const std::vector<Instruction>& list,
                         const std::vector<BufferId>& used, const std::vector<BufferId>& carried,
                         const std::vector<Life>& lives) {
  std::vector<int64_t> live(list.size() + 1, 0);
  for (BufferId id : used) {
    if (p.buffers[id].space != Space::kDevice) continue;
    const Life& life = lives[id];
    const size_t end = life.carried ? list.size() : life.last + (life.freed ? 0u : 1u);
    live[life.first] += static_cast<int64_t>(p.buffers[id].bytes);
    live[end] -= static_cast<int64_t>(p.buffers[id].bytes);
  }
  for (size_t i = 1; i < live.size(); ++i) live[i] += live[i - 1];
  const int64_t peak = *std::max_element(live.begin(), live.end());
  int64_t bytes = 0;
  for (BufferId id : carried) bytes += static_cast<int64_t>(p.buffers[id].bytes);
  // Half of the forward pass is long for the two buckets that are left. Near its end, where most is
  // live, they would be in the way: what lies around them leaves gaps.
  size_t forward = 0, at = 0;
  while (forward < list.size() && list[forward].phase != Phase::kBackward) ++forward;
  while (at < forward / 2 && live[at] + bytes <= peak) ++at;
  return at;
}

void AddLifetimes(Program& p, std::vector<Instruction>& list) {
  if (list.empty()) return;
  std::vector<Life> lives(p.buffers.size());
  std::vector<BufferId> used, carried;  // `used`: by first use
  used.reserve(p.buffers.size());
  for (uint32_t i = 0; i < list.size(); ++i) {
    const uint8_t when = list[i].when;
    if (const auto* free = std::get_if<Free>(&list[i].op)) {
      Life& life = lives[free->buffer];
      life.freed = true;
      life.last = i;
      if (when == kCompletesGrads) {
        const bool of_others = (life.used_when & ~kCompletesGrads) != 0;
        if (of_others) {
          life.carried = true;
          carried.push_back(free->buffer);
        } else {
          life.lives_when = kCompletesGrads;  // the last micro-step's alone
        }
      }
      continue;
    }
    ForEachTouched(p, list[i], [&](BufferId id) {
      if (p.buffers[id].persistent) return;
      Life& life = lives[id];
      life.used_when |= when;
      if (life.first == kNever) {
        life.first = i;
        used.push_back(id);
      }
      life.last = i;
    });
  }
  if (used.empty()) return;
  const size_t free_carried_at =
      carried.empty() ? list.size() : FreeCarriedBefore(p, list, used, carried, lives);
  // Counting sort of the buffers by last use.
  std::vector<uint32_t> free_begin(list.size() + 1, 0);
  for (BufferId id : used) {
    if (!lives[id].freed) ++free_begin[lives[id].last + 1];
  }
  for (size_t i = 0; i < list.size(); ++i) free_begin[i + 1] += free_begin[i];
  std::vector<BufferId> frees(free_begin.back());
  std::vector<uint32_t> free_at = free_begin;
  for (BufferId id : used) {
    if (!lives[id].freed) frees[free_at[lives[id].last]++] = id;
  }
  std::vector<Instruction> out;
  out.reserve(list.size() + used.size() + frees.size() + carried.size());
  const auto add = [&](const auto& op, const Instruction& like, uint8_t when = kEvery) {
    out.push_back({op, Stream::kCompute, when, like.phase, like.layer});
  };
  size_t allocated = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    for (size_t c = 0; i == free_carried_at && c < carried.size(); ++c) {
      add(Free{carried[c]}, list[i], kTakesFromMicroStep);
    }
    for (; allocated < used.size() && lives[used[allocated]].first == i; ++allocated) {
      add(Alloc{used[allocated]}, list[i], lives[used[allocated]].lives_when);
    }
    out.push_back(list[i]);
    for (uint32_t f = free_begin[i]; f < free_begin[i + 1]; ++f) add(Free{frees[f]}, list[i]);
  }
  list = std::move(out);
}

}  // namespace

Program InsertLifetimes(Program p) {
  for (auto& list : p.sections) AddLifetimes(p, list);
  std::vector<Instruction>& init = p.section(Section::kInit);
  std::vector<Instruction> out;
  out.reserve(p.buffers.size() + init.size());
  for (size_t id = 0; id < p.buffers.size(); ++id) {
    if (!p.buffers[id].persistent || p.buffers[id].bytes == 0) continue;
    out.push_back(Instruction{Alloc{static_cast<BufferId>(id)}});
  }
  out.insert(out.end(), init.begin(), init.end());
  init = std::move(out);
  return p;
}

}  // namespace zeroplan
