// The memory of a rank: one allocation for each space, of exactly the planned size, and nothing
// else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/program/program.h"
#include "executor/device/swap_file.h"

namespace zeroplan {

struct UnmapMemory {
  uint64_t bytes = 0;
  void operator()(std::byte* memory) const noexcept;
};

// Addressable memory of one space, aligned to a page and zero at first. On the CPU backend "device"
// memory is host memory too. Under AddressSanitizer all of it starts poisoned.
class MemoryArena {
 public:
  MemoryArena() = default;
  // kPinned is locked into memory where the limit allows; a backend without DMA works without, so a
  // refusal is a line at debug level. Throws Error(kRuntime) naming rank, space and bytes.
  MemoryArena(Space space, uint64_t bytes, int rank);

  std::byte* data() const { return memory_.get(); }
  uint64_t bytes() const { return memory_.get_deleter().bytes; }

 private:
  std::unique_ptr<std::byte, UnmapMemory> memory_;
};

// The first byte of each arena, by Space; nullptr for kFile and where nothing is planned.
using ArenaBases = std::array<std::byte*, kSpaces>;

// All arenas of a rank.
class RankArenas {
 public:
  // Creates what `program` plans for. `swap_dir` is needed if it plans a file arena. `pattern`:
  // fills the arenas with the byte pattern of pattern.h.
  RankArenas(const Program& program, int rank, const std::string& swap_dir, bool pattern);

  // First byte of a memory space. REQUIRES: space is not kFile.
  std::byte* data(Space space) const;
  // The bytes of a buffer. REQUIRES: it is not in kFile.
  std::span<std::byte> bytes(const Buffer& buffer) const;
  ArenaBases bases() const;
  const SwapFile& file() const { return file_; }

  // AddressSanitizer: what a buffer's bytes are from now on.
  void MarkLive(const Buffer& buffer) const;
  void MarkFree(const Buffer& buffer) const;

  // Index past the highest byte that differs from the pattern, by Space.
  std::array<uint64_t, kSpaces> PatternHighWater() const;

 private:
  std::array<MemoryArena, kSpaces - 1> memory_;
  SwapFile file_;
};

}  // namespace zeroplan
