// The arenas of a rank that trains on a GPU: one allocation a memory space, of exactly the planned
// size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/program/program.h"
#include "executor/device/arena.h"
#include "executor/device/swap_file.h"

namespace zeroplan {

struct FreeDevice {
  void operator()(std::byte* memory) const noexcept;
};

// Page-locks memory of another's while it lives.
class PageLock {
 public:
  PageLock() = default;
  // Throws Error(kRuntime) naming rank, bytes and the limit to raise.
  PageLock(std::byte* memory, uint64_t bytes, int rank);
  PageLock(PageLock&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  PageLock& operator=(PageLock&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~PageLock();

 private:
  std::byte* memory_ = nullptr;
};

class CudaArenas {
 public:
  // Allocates on the current device. `threads` of them touch host memory's pages, so that those of
  // a large arena are there in seconds. Throws Error(kRuntime) naming rank, space, bytes and what
  // is free.
  CudaArenas(const Program& program, int rank, const std::string& swap_dir, int threads);

  ArenaBases bases() const;
  const SwapFile& file() const { return file_; }

 private:
  std::unique_ptr<std::byte, FreeDevice> device_;
  MemoryArena pinned_, pageable_;
  PageLock pinned_lock_;  // after pinned_: unlocked before the memory goes
  SwapFile file_;
};

}  // namespace zeroplan
