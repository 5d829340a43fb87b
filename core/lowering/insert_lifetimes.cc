// Pass 9: Alloc of all persistent buffers at init's start; Alloc before a transient buffer's first
// use in a section and Free after its last, unless a pass has freed it itself. All of them run on
// the compute stream: one order of memory for all streams.
#include <algorithm>

#include "core/lowering/passes.h"

namespace zeroplan {
namespace {

void AddLifetimes(Program& p, std::vector<Instruction>& list) {
  if (list.empty()) return;
  constexpr uint32_t kNever = UINT32_MAX;
  std::vector<uint32_t> first(p.buffers.size(), kNever), last(p.buffers.size(), 0);
  std::vector<bool> freed(p.buffers.size(), false);
  std::vector<BufferId> used;
  auto touch = [&](BufferId id, uint32_t at) {
    if (p.buffers[id].persistent) return;
    if (first[id] == kNever) {
      first[id] = at;
      used.push_back(id);
    }
    last[id] = at;
  };
  for (uint32_t i = 0; i < list.size(); ++i) {
    if (const auto* free = std::get_if<Free>(&list[i].op)) {
      freed[free->buffer] = true;
      continue;
    }
    ForEachAccess(p, list[i], [&](const Ref& ref, ArgMode) { touch(ref.buffer, i); });
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
  out.reserve(list.size() + allocs.size() + frees.size());
  auto tagged = [](Op op, const Instruction& like) {
    Instruction instruction{op};
    instruction.phase = like.phase;
    instruction.layer = like.layer;
    return instruction;
  };
  for (size_t i = 0; i < list.size(); ++i) {
    for (uint32_t a = alloc_begin[i]; a < alloc_begin[i + 1]; ++a) {
      out.push_back(tagged(Alloc{allocs[a]}, list[i]));
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
