// The memory of a PyTorch process while a trace of tensors is simulated: its caching allocator, GPU
// memory by class and phase, and host memory.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "planner/footprint.h"

namespace zeroplan {

// Follows the rules of c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.11) with default settings.
// Sizes are multiples of 512 bytes. Blocks up to 1 MiB are from segments of 2 MiB, blocks below 10
// MiB from segments of 20 MiB, larger ones from segments of their own in multiples of 2 MiB. The
// search is best fit by stream. A block is split if more than 512 bytes (small) or 1 MiB (large)
// remain; a smaller remainder counts as allocated. Free neighbours merge. Segments are released by
// EmptyCache, or when memory is exhausted.
//
// With expandable_segments:True each pool is one segment that grows at its end, by pages of 2 MiB
// (small) or 20 MiB; a free block at the end becomes part of the new block. A block is split if 512
// bytes remain. Free pages are released one by one.
class CachingAllocator {
 public:
  using BlockId = int32_t;

  // `limit_bytes`: the limit of reserved memory, kept where possible (Allocate).
  explicit CachingAllocator(std::optional<uint64_t> limit_bytes = std::nullopt,
                            bool expandable = false)
      : limit_(limit_bytes), expandable_(expandable) {}

  // If the allocation would exceed the limit, first releases all free segments. If it still would,
  // allocates anyway, and failed() is true from then on. REQUIRES: bytes > 0.
  BlockId Allocate(uint64_t bytes, int stream = 0);
  void Free(BlockId block);
  // torch.cuda.empty_cache(): returns segments without a tensor to the driver. Returns their
  // number.
  uint64_t EmptyCache();

  uint64_t allocated() const { return allocated_; }
  uint64_t reserved() const { return reserved_; }
  uint64_t peak_allocated() const { return peak_allocated_; }
  uint64_t peak_reserved() const { return peak_reserved_; }
  bool failed() const { return failed_; }
  // The number of segments that were released because of the limit.
  uint64_t given_back() const { return given_back_; }
  // The bytes that Allocate counted for `block`, at least the requested ones.
  uint64_t BlockBytes(BlockId block) const;
  // Sets both peaks to the current values.
  void ResetPeaks();

 private:
  struct Block {
    uint64_t address = 0;
    uint64_t bytes = 0;
    int pool = 0;
    bool free = false;
    BlockId previous = -1, next = -1;  // neighbours in the segment
  };
  struct FreeBlock {
    uint64_t address = 0, bytes = 0;
    BlockId id = -1;
  };
  using FreeBlocks = std::vector<FreeBlock>;  // by rising size, then address; a pool has few

  BlockId NewBlock(const Block& block);
  BlockId NewSegment(uint64_t bytes, int pool);
  void Reserve(uint64_t bytes);
  // Extends the pool's segment by a block of at least `bytes`.
  BlockId Grow(uint64_t bytes, int pool);
  // Releases the whole pages of a free block. Returns true if there were any.
  bool Unmap(BlockId block);
  void Forget(BlockId block);  // removes it from the free blocks
  bool IsSegment(const Block& block) const {
    return !expandable_ && block.previous < 0 && block.next < 0;
  }
  void Split(BlockId block, uint64_t bytes);
  void Merge(BlockId into, BlockId next);

  std::optional<uint64_t> limit_;
  bool expandable_ = false;
  std::map<int, BlockId> last_;  // last block of an expandable segment, by pool
  std::vector<Block> blocks_;
  std::vector<BlockId> unused_;
  FreeBlocks& FreeOf(int pool);
  // The first of `free` that is not smaller, nor as large at a lower address.
  static FreeBlocks::iterator Find(FreeBlocks& free, uint64_t bytes, uint64_t address);
  void AddFree(BlockId id);
  void DropFree(BlockId id);

  std::vector<FreeBlocks> free_;  // by pool: two a stream, small and large
  std::vector<BlockId> whole_;    // free blocks that are whole segments, sorted; empty if
                                  // expandable
  uint64_t next_address_ = 0;
  uint64_t allocated_ = 0, reserved_ = 0, peak_allocated_ = 0, peak_reserved_ = 0;
  uint64_t given_back_ = 0;
  bool failed_ = false;
};

// The bytes that PyTorch's cache of page-locked memory allocates for `bytes`: the next power of two
// (aten/src/ATen/core/CachingHostAllocator.h). The cache keeps freed blocks.
uint64_t PinnedBlockBytes(uint64_t bytes);

class TorchMemory;

// A tensor on the GPU. Its destructor frees its memory. Empty when default-constructed or moved
// from.
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

  // Returns an empty tensor if `bytes` is 0. Stream 0 is the compute stream.
  Tensor New(TorchClass kind, uint64_t bytes, int stream = 0);
  void EmptyCache() { allocator_.EmptyCache(); }
  // True if the driver has that many bytes in addition to the allocator's reserved ones.
  bool DriverHas(uint64_t bytes) const {
    return !limit_ || allocator_.reserved() + bytes <= *limit_;
  }

  // Peaks from here on count for `phase`, in addition to the peaks that it already has.
  void Enter(TorchPhase phase);
  // Peaks from here on are the only ones of `phase`; its earlier peaks are dropped.
  void ForgetPeaks(TorchPhase phase);
  const TorchPeak& peak(TorchPhase phase) const { return peaks_[static_cast<size_t>(phase)]; }

  // Page-locked memory from PyTorch's cache: a power of two, kept when freed and reused.
  void Pin(uint64_t bytes);
  void Unpin(uint64_t bytes);
  // Page-locked memory outside that cache, of exactly `bytes`.
  void Lock(uint64_t bytes);
  void AddPageable(uint64_t bytes);
  void DropPageable(uint64_t bytes);
  const HostPeak& host_peak(TorchPhase phase) const {
    return host_peaks_[static_cast<size_t>(phase)];
  }
  // The current host memory of the process.
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
