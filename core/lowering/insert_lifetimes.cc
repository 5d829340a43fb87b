// Pass 9: Alloc of all persistent buffers at init's start; Alloc before a transient buffer's first
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

// The instruction before which a micro-step frees what it finds carried. The later, the longer the
// carried reductions may take, as the compute stream waits there for them. `begins` and `ends`: by
// buffer, where it lives, the carried ones until the list's end.
size_t FreeCarriedBefore(const Program& p, const std::vector<Instruction>& list,
                         const std::vector<BufferId>& used, const std::vector<BufferId>& carried,
                         const std::vector<uint32_t>& begins, const std::vector<uint32_t>& ends) {
  std::vector<int64_t> live(list.size() + 1, 0);
  for (BufferId id : used) {
    if (p.buffers[id].space != Space::kDevice) continue;
    live[begins[id]] += static_cast<int64_t>(p.buffers[id].bytes);
    live[ends[id]] -= static_cast<int64_t>(p.buffers[id].bytes);
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
  std::vector<uint32_t> first(p.buffers.size(), kNever), last(p.buffers.size(), 0);
  std::vector<bool> freed(p.buffers.size(), false);
  // By buffer: the micro-steps that use it, and those in which it is allocated and freed.
  std::vector<uint8_t> used_when(p.buffers.size(), 0), lives_when(p.buffers.size(), kEvery);
  std::vector<BufferId> used, carried;
  auto touch = [&](BufferId id, uint32_t at) {
    if (p.buffers[id].persistent) return;
    used_when[id] |= list[at].when;
    if (first[id] == kNever) {
      first[id] = at;
      used.push_back(id);
    }
    last[id] = at;
  };
  for (uint32_t i = 0; i < list.size(); ++i) {
    if (const auto* free = std::get_if<Free>(&list[i].op)) {
      freed[free->buffer] = true;
      last[free->buffer] = i;
      if (list[i].when == kCompletesGrads) {
        const bool of_others = (used_when[free->buffer] & ~kCompletesGrads) != 0;
        if (of_others) {
          carried.push_back(free->buffer);
        } else {
          lives_when[free->buffer] = kCompletesGrads;  // the last micro-step's alone
        }
      }
      continue;
    }
    ForEachTouched(p, list[i], [&](BufferId id) { touch(id, i); });
  }
  if (used.empty()) return;
  size_t free_carried_at = list.size();
  if (!carried.empty()) {
    std::vector<uint32_t> ends = last;
    for (BufferId id : used) ends[id] += freed[id] ? 0 : 1;
    for (BufferId id : carried) ends[id] = static_cast<uint32_t>(list.size());
    free_carried_at = FreeCarriedBefore(p, list, used, carried, first, ends);
  }
  // Counting sort of the buffers by first and by last use.
  std::vector<uint32_t> alloc_begin(list.size() + 1, 0), free_begin(list.size() + 1, 0);
  for (BufferId id : used) {
    ++alloc_begin[first[id] + 1];
    if (!freed[id]) ++free_begin[last[id] + 1];
  }
  for (size_t i = 0; i < list.size(); ++i) {
    alloc_begin[i + 1] += alloc_begin[i];
    free_begin[i + 1] += free_begin[i];
  }
  std::vector<BufferId> allocs(alloc_begin.back()), frees(free_begin.back());
  std::vector<uint32_t> alloc_at = alloc_begin, free_at = free_begin;
  for (BufferId id : used) {
    allocs[alloc_at[first[id]]++] = id;
    if (!freed[id]) frees[free_at[last[id]]++] = id;
  }
  std::vector<Instruction> out;
  out.reserve(list.size() + allocs.size() + frees.size() + carried.size());
  auto tagged = [](Op op, const Instruction& like) {
    Instruction instruction{op};
    instruction.phase = like.phase;
    instruction.layer = like.layer;
    return instruction;
  };
  for (size_t i = 0; i < list.size(); ++i) {
    for (size_t c = 0; i == free_carried_at && c < carried.size(); ++c) {
      out.push_back(tagged(Free{carried[c]}, list[i]));
      out.back().when = kTakesFromMicroStep;
    }
    for (uint32_t a = alloc_begin[i]; a < alloc_begin[i + 1]; ++a) {
      out.push_back(tagged(Alloc{allocs[a]}, list[i]));
      out.back().when = lives_when[allocs[a]];
    }
    out.push_back(list[i]);
    for (uint32_t f = free_begin[i]; f < free_begin[i + 1]; ++f) {
      out.push_back(tagged(Free{frees[f]}, list[i]));
    }
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
