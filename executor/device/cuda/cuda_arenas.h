// The arenas of a rank that trains on a GPU: one allocation a memory space, of exactly the planned
// size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/program/program.h"
#include "executor/device/arena.h"
#include "executor/device/swap_file.h"

namespace zeroplan {

struct FreeDevice {
  void operator()(std::byte* memory) const noexcept;
};

// Page-locks memory owned by another object during its lifetime.
class PageLock {
 public:
  PageLock() = default;
  // Throws Error(kRuntime) naming rank, bytes and the fix.
  PageLock(std::byte* memory, uint64_t bytes, int rank);
  // Empty if the driver refuses; `why` is its message.
  static std::optional<PageLock> Try(std::byte* memory, uint64_t bytes, std::string& why);
  PageLock(PageLock&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  PageLock& operator=(PageLock&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~PageLock();

 private:
  std::byte* memory_ = nullptr;
};

// Page-locked memory. `threads` threads touch its pages, so that a large arena is ready in seconds.
class PinnedArena {
 public:
  PinnedArena() = default;
  // Throws Error(kRuntime) naming rank and bytes.
  PinnedArena(uint64_t bytes, int rank, int threads);
  // Null if the driver refuses; `why` is its message.
  static std::unique_ptr<PinnedArena> Try(uint64_t bytes, int rank, int threads, std::string& why);

  std::byte* data() const { return memory_.data(); }
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  MemoryArena memory_;
  PageLock lock_;  // after memory_: unlocked before the memory is freed
};

class CudaArenas {
 public:
  // Allocates on the current device. `pinned`: the pinned arena if the caller has made it already;
  // null: made here. Throws Error(kRuntime) naming rank, space, bytes and the free bytes.
  CudaArenas(const Program& program, int rank, const std::string& swap_dir, int threads,
             std::shared_ptr<PinnedArena> pinned);

  ArenaBases bases() const;
  const SwapFile& file() const { return file_; }

 private:
  std::unique_ptr<std::byte, FreeDevice> device_;
  std::shared_ptr<PinnedArena> pinned_;
  MemoryArena pageable_;
  SwapFile file_;
};

}  // namespace zeroplan
