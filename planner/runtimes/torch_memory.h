// The memory of a PyTorch process while a trace of tensors plays: its caching allocator, GPU memory
// by class and phase, the host's.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

#include "planner/footprint.h"

namespace zeroplan {

// The rules of c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.11) with default settings: sizes are
// multiples of 512 bytes; up to 1 MiB from segments of 2 MiB, below 10 MiB from segments of 20 MiB,
// above from segments of their own in multiples of 2 MiB; best fit by stream; a block is split if
// more than 512 bytes (small) or 1 MiB (large) remain, so what remains below is counted as
// allocated; neighbours that are free merge; segments are given back by EmptyCache, or when memory
// is out.
//
// With expandable_segments:True each pool is one segment that grows at its end, by pages of 2 MiB
// (small) or 20 MiB; a free block there is part of what grows. A block is split if 512 bytes
// remain. Free pages are given back one by one.
class CachingAllocator {
 public:
  using BlockId = int32_t;

  // `limit_bytes`: reserved memory stays within it, where that is possible (Allocate).
  explicit CachingAllocator(std::optional<uint64_t> limit_bytes = std::nullopt,
                            bool expandable = false)
      : limit_(limit_bytes), expandable_(expandable) {}

  // Where the limit is in the way, gives back all free segments first. If it still is, the
  // allocation is made all the same, and failed() from then on. REQUIRES: bytes > 0.
  BlockId Allocate(uint64_t bytes, int stream = 0);
  void Free(BlockId block);
  // torch.cuda.empty_cache(): segments without a tensor go back to the driver. Returns how many.
  uint64_t EmptyCache();

  uint64_t allocated() const { return allocated_; }
  uint64_t reserved() const { return reserved_; }
  uint64_t peak_allocated() const { return peak_allocated_; }
  uint64_t peak_reserved() const { return peak_reserved_; }
  bool failed() const { return failed_; }
  // Segments given back because the limit was in the way.
  uint64_t given_back() const { return given_back_; }
  // Bytes that Allocate counted for `block`: at least those asked for.
  uint64_t BlockBytes(BlockId block) const;
  // Both peaks start again from what there is now.
  void ResetPeaks();

 private:
  struct Block {
    uint64_t address = 0;
    uint64_t bytes = 0;
    int pool = 0;
    bool free = false;
    BlockId previous = -1, next = -1;  // neighbours in the segment
  };
  using FreeKey = std::tuple<uint64_t, uint64_t, BlockId>;  // size, address

  BlockId NewBlock(const Block& block);
  BlockId NewSegment(uint64_t bytes, int pool);
  void Reserve(uint64_t bytes);
  // A block of at least `bytes` at the end of the pool's segment.
  BlockId Grow(uint64_t bytes, int pool);
  // Gives back the whole pages of a free block. Returns whether there were any.
  bool Unmap(BlockId block);
  void Forget(BlockId block);  // it is not free any more
  bool IsSegment(const Block& block) const {
    return !expandable_ && block.previous < 0 && block.next < 0;
  }
  void Split(BlockId block, uint64_t bytes);
  void Merge(BlockId into, BlockId next);

  std::optional<uint64_t> limit_;
  bool expandable_ = false;
  std::map<int, BlockId> last_;  // by pool: of an expandable segment
  std::vector<Block> blocks_;
  std::vector<BlockId> unused_;
  std::map<int, std::set<FreeKey>> free_;  // by pool: two a stream, small and large
  std::set<BlockId> whole_;                // of these, unless expandable, those that are a segment
  uint64_t next_address_ = 0;
  uint64_t allocated_ = 0, reserved_ = 0, peak_allocated_ = 0, peak_reserved_ = 0;
  uint64_t given_back_ = 0;
  bool failed_ = false;
};

// What PyTorch's cache of page-locked memory takes for `bytes`: the next power of two
// (aten/src/ATen/core/CachingHostAllocator.h). Blocks are kept when freed.
uint64_t PinnedBlockBytes(uint64_t bytes);

class TorchMemory;

// A tensor on the GPU; its memory is freed with it. Empty when default-constructed or moved from.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Tensor&& other) noexcept { *this = std::move(other); }
  Tensor& operator=(Tensor&& other) noexcept;
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { Reset(); }

  void Reset();
  explicit operator bool() const { return memory_ != nullptr; }

 private:
  friend class TorchMemory;
  TorchMemory* memory_ = nullptr;
  CachingAllocator::BlockId block_ = -1;
  TorchClass kind_ = TorchClass::kBuffers;
};

// REQUIRES: outlives its tensors.
class TorchMemory {
 public:
  explicit TorchMemory(std::optional<uint64_t> limit_bytes = std::nullopt, bool expandable = false)
      : limit_(limit_bytes), allocator_(limit_bytes, expandable) {}
  TorchMemory(const TorchMemory&) = delete;
  TorchMemory& operator=(const TorchMemory&) = delete;

  // An empty tensor where bytes is 0. `stream` 0 is the one that computes.
  Tensor New(TorchClass kind, uint64_t bytes, int stream = 0);
  void EmptyCache() { allocator_.EmptyCache(); }
  // Whether the driver has that many bytes that the allocator did not reserve.
  bool DriverHas(uint64_t bytes) const {
    return !limit_ || allocator_.reserved() + bytes <= *limit_;
  }

  // Peaks from here on are those of `phase`; those it already has go on.
  void Enter(TorchPhase phase);
  // Peaks from here on are those of `phase`, and of nothing before.
  void ForgetPeaks(TorchPhase phase);
  const TorchPeak& peak(TorchPhase phase) const { return peaks_[static_cast<size_t>(phase)]; }

  // Page-locked memory, from PyTorch's cache: a power of two, kept when freed and taken again.
  void Pin(uint64_t bytes);
  void Unpin(uint64_t bytes);
  // Page-locked memory beside that cache, as large as it is.
  void Lock(uint64_t bytes);
  void AddPageable(uint64_t bytes);
  void DropPageable(uint64_t bytes);
  const HostPeak& host_peak(TorchPhase phase) const {
    return host_peaks_[static_cast<size_t>(phase)];
  }
  // What the process has of the host now.
  const HostPeak& host() const { return host_; }
  // Files on a disk.
  void AddFiles(uint64_t bytes) { file_bytes_ += bytes; }
  uint64_t file_bytes() const { return file_bytes_; }
  // Managed memory (cudaMallocManaged), of no class.
  void AddManaged(uint64_t bytes) { managed_bytes_ += bytes; }
  uint64_t managed_bytes() const { return managed_bytes_; }
  // The phase in which the limit was exceeded first, if any.
  std::optional<TorchPhase> out_of_memory() const { return out_of_memory_; }

  const CachingAllocator& allocator() const { return allocator_; }

 private:
  friend class Tensor;
  void Note();
  void NoteHost();

  std::optional<uint64_t> limit_;
  CachingAllocator allocator_;
  std::array<uint64_t, kTorchClasses> live_{};
  TorchPhase phase_ = TorchPhase::kInit;
  std::array<TorchPeak, kTorchPhases> peaks_{};
  uint64_t file_bytes_ = 0, managed_bytes_ = 0;
  std::map<uint64_t, int> unpinned_;  // free blocks of page-locked memory by size
  HostPeak host_;
  std::array<HostPeak, kTorchPhases> host_peaks_{};
  std::optional<TorchPhase> out_of_memory_;
};

}  // namespace zeroplan
