#include "core/lowering/slot_ring.h"

#include <algorithm>

#include "core/lowering/emitter.h"

namespace zeroplan {

Ref SlotRing::Next(uint64_t bytes) {
  const size_t slot = turn_++ % count_;
  if (slot == slots_.size()) {
    const BufferId id = AddBuffer(program_, kind_.label, kind_.role, kind_.dtype, 0);
    program_.buffers[id].space = kind_.space;
    program_.buffers[id].persistent = kind_.persistent;
    slots_.push_back(id);
  }
  Buffer& buffer = program_.buffers[slots_[slot]];
  buffer.bytes = std::max(buffer.bytes, bytes);
  return {slots_[slot], 0, bytes, 0};
}

}  // namespace zeroplan
