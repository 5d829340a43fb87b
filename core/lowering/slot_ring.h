// Slots in host memory that transfers take in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

// Where buffers of the host lie: page-locked or not.
inline Space HostSpace(bool pinned) { return pinned ? Space::kPinned : Space::kPageable; }

// What the slots of one ring have in common.
struct SlotKind {
  const char* label;
  Role role;
  Dtype dtype;
  Space space;
  bool persistent;
};

// At most `count` slots, each added to the program when it is first needed and as large as its
// largest use.
class SlotRing {
 public:
  // Keeps the reference.
  SlotRing(Program& program, const SlotKind& kind, int count)
      : program_(program), kind_(kind), count_(static_cast<size_t>(count)) {}

  // The first `bytes` bytes of the slot whose turn it is.
  Ref Next(uint64_t bytes);

 private:
  Program& program_;
  const SlotKind kind_;
  const size_t count_;
  size_t turn_ = 0;
  std::vector<BufferId> slots_;
};

}  // namespace zeroplan
