// The memory of a rank: one allocation for each space, of exactly the planned size, and nothing
// else.
#pragma once

#include <sanitizer/asan_interface.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/program/program.h"
#include "executor/device/swap_file.h"

#if defined(__SANITIZE_ADDRESS__)
#define ZEROPLAN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ZEROPLAN_ASAN 1
#endif
#endif
#ifdef ZEROPLAN_ASAN
#endif

namespace zeroplan {

struct UnmapMemory {
  uint64_t bytes = 0;
  void operator()(std::byte* memory) const noexcept;
};

// Addressable memory of one space, aligned to a page and initially zero. On the CPU backend
// "device" memory is host memory too. Under AddressSanitizer all of it starts poisoned.
class MemoryArena {
 public:
  MemoryArena() = default;
  // Locks kPinned into memory if the limit allows; a backend without DMA works without, so a
  // refusal is a line at debug level. Throws Error(kRuntime) naming rank, space and bytes.
  MemoryArena(Space space, uint64_t bytes, int rank);

  std::byte* data() const { return memory_.get(); }
  uint64_t bytes() const { return memory_.get_deleter().bytes; }

 private:
  std::unique_ptr<std::byte, UnmapMemory> memory_;
};

// The first byte of each arena, by Space; nullptr for kFile and spaces without planned bytes.
using ArenaBases = std::array<std::byte*, kSpaces>;

// All arenas of a rank.
class RankArenas {
 public:
  // Creates the arenas that `program` plans. `swap_dir` is needed if it plans a file arena.
  // `pattern`: fills the arenas with PatternByte.
  RankArenas(const Program& program, int rank, const std::string& swap_dir, bool pattern);

  // First byte of a memory space. REQUIRES: space is not kFile.
  std::byte* data(Space space) const;
  // The bytes of a buffer. REQUIRES: it is not in kFile.
  std::span<std::byte> bytes(const Buffer& buffer) const;
  ArenaBases bases() const;
  const SwapFile& file() const { return file_; }

  // AddressSanitizer: marks a buffer's bytes as live or free.
  void MarkLive(const Buffer& buffer) const;
  void MarkFree(const Buffer& buffer) const;

  // Index past the highest byte that differs from the pattern, by Space.
  std::array<uint64_t, kSpaces> PatternHighWater() const;

 private:
  std::array<MemoryArena, kSpaces - 1> memory_;
  SwapFile file_;
};

// A byte pattern that training data does not produce, to find how far an arena was written.

// The pattern at a position of an arena. Bytes are 0x60..0x7b with either sign bit: as the top byte
// of a float of any width they give a huge but finite number, as the top byte of an index one out
// of any range, so a buffer's last byte hardly ever equals the pattern by chance.
std::byte PatternByte(uint64_t position);

// Fills bytes that begin at `first_position` of their arena.
void FillPattern(std::span<std::byte> bytes, uint64_t first_position);

// Index after the last byte that differs from the pattern; 0: none does. Reads poisoned bytes too.
uint64_t PatternEnd(std::span<const std::byte> bytes, uint64_t first_position);

// Marks arena bytes that no live buffer owns, so that AddressSanitizer reports a kernel that
// touches one byte too many. Without AddressSanitizer everything here is empty.

#ifdef ZEROPLAN_ASAN
inline constexpr bool kPoisoning = true;
inline void PoisonBytes(const std::byte* begin, uint64_t bytes) {
  ASAN_POISON_MEMORY_REGION(begin, bytes);
}
inline void UnpoisonBytes(const std::byte* begin, uint64_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(begin, bytes);
}
#else
inline constexpr bool kPoisoning = false;
inline void PoisonBytes(const std::byte*, uint64_t) {}
inline void UnpoisonBytes(const std::byte*, uint64_t) {}
#endif

}  // namespace zeroplan
