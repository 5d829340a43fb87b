#include "executor/device/pattern.h"

namespace zeroplan {

#if defined(__GNUC__)
#define ZEROPLAN_READS_POISON __attribute__((no_sanitize("address")))
#else
#define ZEROPLAN_READS_POISON
#endif

std::byte PatternByte(uint64_t position) {
  // One multiply-xorshift round (constants of SplitMix64): neighbours differ, no period shorter
  // than the arena that a copy of a whole buffer could hide behind.
  uint64_t hash = (position + 1) * 0x9e3779b97f4a7c15u;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
  hash ^= hash >> 31;
  const uint64_t sign = hash & 0x80u;
  return static_cast<std::byte>(sign | (0x60u + (hash >> 40) % 28u));
}

void FillPattern(std::span<std::byte> bytes, uint64_t first_position) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = PatternByte(first_position + i);
}

ZEROPLAN_READS_POISON uint64_t PatternEnd(std::span<const std::byte> bytes,
                                          uint64_t first_position) {
  const std::byte* data = bytes.data();
  for (uint64_t end = bytes.size(); end > 0; --end) {
    if (data[end - 1] != PatternByte(first_position + end - 1)) return end;
  }
  return 0;
}

}  // namespace zeroplan
