// PyTorch's CUDA caching allocator on paper: which segments it asks the driver for when tensors
// come and go in a given order. Reserved memory, and what an allocation really takes, follow from
// it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

namespace zeroplan {

// The rules of c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.11) with default settings: sizes are
// multiples of 512 bytes; up to 1 MiB from segments of 2 MiB, below 10 MiB from segments of 20 MiB,
// above from segments of their own in multiples of 2 MiB; best fit by stream; a block is split if
// more than 512 bytes (small) or 1 MiB (large) remain, so what remains below is counted as
// allocated; neighbours that are free merge; segments are given back by EmptyCache, or when memory
// is out.
class CachingAllocator {
 public:
  using BlockId = int32_t;

  // `limit_bytes`: reserved memory stays within it, where that is possible (Allocate).
  explicit CachingAllocator(std::optional<uint64_t> limit_bytes = std::nullopt)
      : limit_(limit_bytes) {}

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
  void Split(BlockId block, uint64_t bytes);
  void Merge(BlockId into, BlockId next);

  std::optional<uint64_t> limit_;
  std::vector<Block> blocks_;
  std::vector<BlockId> unused_;
  std::map<int, std::set<FreeKey>> free_;  // by pool: two a stream, small and large
  uint64_t next_address_ = 0;
  uint64_t allocated_ = 0, reserved_ = 0, peak_allocated_ = 0, peak_reserved_ = 0;
  uint64_t given_back_ = 0;
  bool failed_ = false;
};

// What PyTorch's cache of page-locked memory takes for `bytes`: the next power of two
// (aten/src/ATen/core/CachingHostAllocator.h). Blocks are kept when freed.
uint64_t PinnedBlockBytes(uint64_t bytes);

}  // namespace zeroplan
