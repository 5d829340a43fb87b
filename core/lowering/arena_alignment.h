// What buffers of an arena begin at multiples of.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/program/program.h"

namespace zeroplan {

inline uint64_t ArenaAlignment(size_t space) {
  constexpr uint64_t kMemory = 128, kFile = 4096;
  return static_cast<Space>(space) == Space::kFile ? kFile : kMemory;
}

}  // namespace zeroplan
