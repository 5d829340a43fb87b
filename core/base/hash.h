// Hashes of bytes: against accidents, not malice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace zeroplan {

// 64-bit FNV-1a (Fowler, Noll and Vo; draft-eastlake-fnv).
inline uint64_t HashBytes(std::span<const std::byte> bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const std::byte byte : bytes) {
    hash = (hash ^ std::to_integer<uint64_t>(byte)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace zeroplan
