#include "planner/runtimes/torch_memory.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/base/error.h"

namespace zeroplan {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kRound = 512;
constexpr uint64_t kSmall = kMiB;  // the largest request of the small pool
constexpr uint64_t kSmallSegment = 2 * kMiB;
constexpr uint64_t kLargeSegment = 20 * kMiB;  // of requests below kOwnSegment
constexpr uint64_t kOwnSegment = 10 * kMiB;
constexpr uint64_t kSegmentRound = 2 * kMiB;

uint64_t RoundUp(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

bool IsSmallPool(int pool) { return pool % 2 == 0; }

uint64_t PageBytes(int pool) { return IsSmallPool(pool) ? kSmallSegment : kLargeSegment; }

uint64_t SegmentBytes(uint64_t bytes) {
  if (bytes <= kSmall) return kSmallSegment;
  if (bytes < kOwnSegment) return kLargeSegment;
  return RoundUp(bytes, kSegmentRound);
}

}  // namespace

CachingAllocator::FreeBlocks& CachingAllocator::FreeOf(int pool) {
  const auto index = static_cast<size_t>(pool);
  if (index >= free_.size()) free_.resize(index + 1);
  return free_[index];
}

// A binary search without branches, which would be mispredicted half of the time: a simulated step
// searches here a hundred thousand times.
CachingAllocator::FreeBlocks::iterator CachingAllocator::Find(FreeBlocks& free, uint64_t bytes,
                                                              uint64_t address) {
  const auto before = [bytes, address](const FreeBlock& block) {
    return (block.bytes < bytes) | ((block.bytes == bytes) & (block.address < address));
  };
  auto first = free.begin();
  for (auto left = static_cast<std::ptrdiff_t>(free.size()); left > 0;) {
    const std::ptrdiff_t half = (left + 1) / 2;
    first += before(first[half - 1]) ? half : 0;
    left -= half;
  }
  return first;
}

void CachingAllocator::AddFree(BlockId id) {
  const Block& block = blocks_[static_cast<size_t>(id)];
  FreeBlocks& free = FreeOf(block.pool);
  free.insert(Find(free, block.bytes, block.address), {block.address, block.bytes, id});
}

void CachingAllocator::DropFree(BlockId id) {
  const Block& block = blocks_[static_cast<size_t>(id)];
  FreeBlocks& free = FreeOf(block.pool);
  const auto at = Find(free, block.bytes, block.address);
  ZEROPLAN_CHECK(at != free.end() && at->id == id);
  free.erase(at);
}

CachingAllocator::BlockId CachingAllocator::NewBlock(const Block& block) {
  if (unused_.empty()) {
    blocks_.push_back(block);
    return static_cast<BlockId>(blocks_.size() - 1);
  }
  const BlockId id = unused_.back();
  unused_.pop_back();
  blocks_[static_cast<size_t>(id)] = block;
  return id;
}

void CachingAllocator::Reserve(uint64_t bytes) {
  if (limit_ && reserved_ + bytes > *limit_) {
    given_back_ += EmptyCache();
    if (reserved_ + bytes > *limit_) failed_ = true;
  }
  reserved_ += bytes;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
}

CachingAllocator::BlockId CachingAllocator::NewSegment(uint64_t bytes, int pool) {
  Reserve(bytes);
  Block block;
  block.address = next_address_;
  block.bytes = bytes;
  block.pool = pool;
  next_address_ += bytes;
  return NewBlock(block);
}

void CachingAllocator::Forget(BlockId id) {
  Block& block = blocks_[static_cast<size_t>(id)];
  DropFree(id);
  block.free = false;
}

CachingAllocator::BlockId CachingAllocator::Grow(uint64_t bytes, int pool) {
  // Addresses of one pool are those of no other.
  constexpr uint64_t kSpan = uint64_t{1} << 48;
  const auto at_end = [&]() -> std::optional<BlockId> {
    const auto at = last_.find(pool);
    if (at == last_.end() || !blocks_[static_cast<size_t>(at->second)].free) return std::nullopt;
    return at->second;
  };
  const auto missing = [&](std::optional<BlockId> end) {
    return RoundUp(bytes - (end ? blocks_[static_cast<size_t>(*end)].bytes : 0), PageBytes(pool));
  };
  std::optional<BlockId> end = at_end();
  if (limit_ && reserved_ + missing(end) > *limit_) {
    given_back_ += EmptyCache();
    end = at_end();
  }
  const uint64_t pages = missing(end);
  Reserve(pages);
  if (end) {
    Forget(*end);
    blocks_[static_cast<size_t>(*end)].bytes += pages;
    return *end;
  }
  Block block;
  block.pool = pool;
  block.bytes = pages;
  block.address = static_cast<uint64_t>(pool) * kSpan;
  const auto last = last_.find(pool);
  if (last != last_.end()) {
    const Block& before = blocks_[static_cast<size_t>(last->second)];
    block.address = before.address + before.bytes;
    block.previous = last->second;
  }
  const BlockId id = NewBlock(block);
  if (block.previous >= 0) blocks_[static_cast<size_t>(block.previous)].next = id;
  last_[pool] = id;
  return id;
}

void CachingAllocator::Split(BlockId id, uint64_t bytes) {
  Block rest = blocks_[static_cast<size_t>(id)];
  rest.address += bytes;
  rest.bytes -= bytes;
  rest.free = true;
  rest.previous = id;
  const BlockId rest_id = NewBlock(rest);
  Block& block = blocks_[static_cast<size_t>(id)];
  block.bytes = bytes;
  block.next = rest_id;
  if (rest.next >= 0) blocks_[static_cast<size_t>(rest.next)].previous = rest_id;
  if (expandable_ && last_[rest.pool] == id) last_[rest.pool] = rest_id;
  AddFree(rest_id);
}

CachingAllocator::BlockId CachingAllocator::Allocate(uint64_t bytes, int stream) {
  ZEROPLAN_CHECK(bytes > 0);
  bytes = RoundUp(bytes, kRound);
  const int pool = 2 * stream + (bytes <= kSmall ? 0 : 1);
  FreeBlocks& free = FreeOf(pool);
  const auto found = Find(free, bytes, 0);
  BlockId id = -1;
  if (found != free.end()) {
    id = found->id;
    free.erase(found);
    Block& block = blocks_[static_cast<size_t>(id)];
    block.free = false;
    if (IsSegment(block)) whole_.erase(std::lower_bound(whole_.begin(), whole_.end(), id));
  } else {
    id = expandable_ ? Grow(bytes, pool) : NewSegment(SegmentBytes(bytes), pool);
  }
  const uint64_t rest = blocks_[static_cast<size_t>(id)].bytes - bytes;
  if (IsSmallPool(pool) || expandable_ ? rest >= kRound : rest > kSmall) Split(id, bytes);
  allocated_ += blocks_[static_cast<size_t>(id)].bytes;
  peak_allocated_ = std::max(peak_allocated_, allocated_);
  return id;
}

void CachingAllocator::Merge(BlockId into, BlockId next) {
  Block& block = blocks_[static_cast<size_t>(into)];
  const Block& other = blocks_[static_cast<size_t>(next)];
  block.bytes += other.bytes;
  block.next = other.next;
  if (other.next >= 0) blocks_[static_cast<size_t>(other.next)].previous = into;
  if (expandable_ && last_[block.pool] == next) last_[block.pool] = into;
  unused_.push_back(next);
}

void CachingAllocator::Free(BlockId id) {
  Block& block = blocks_[static_cast<size_t>(id)];
  ZEROPLAN_CHECK(!block.free);
  allocated_ -= block.bytes;
  block.free = true;
  const auto is_free = [this](BlockId other) {
    return other >= 0 && blocks_[static_cast<size_t>(other)].free;
  };
  BlockId whole = id;
  if (is_free(block.next)) {
    DropFree(block.next);
    Merge(id, block.next);
  }
  if (is_free(blocks_[static_cast<size_t>(id)].previous)) {
    whole = blocks_[static_cast<size_t>(id)].previous;
    DropFree(whole);
    Merge(whole, id);
  }
  AddFree(whole);
  if (IsSegment(blocks_[static_cast<size_t>(whole)])) {
    whole_.insert(std::lower_bound(whole_.begin(), whole_.end(), whole), whole);
  }
}

bool CachingAllocator::Unmap(BlockId id) {
  const Block block = blocks_[static_cast<size_t>(id)];
  const uint64_t page = PageBytes(block.pool);
  const uint64_t from = RoundUp(block.address, page);
  const uint64_t to = (block.address + block.bytes) / page * page;
  if (from >= to) return false;
  reserved_ -= to - from;
  Forget(id);
  // What is left at either side does not join again.
  const auto keep = [&](uint64_t begin, uint64_t end, BlockId previous, BlockId next) {
    BlockId kept = -1;
    if (begin < end) {
      kept = NewBlock({begin, end - begin, block.pool, true, previous, next});
      AddFree(kept);
    }
    if (previous >= 0) blocks_[static_cast<size_t>(previous)].next = kept;
    if (next >= 0) blocks_[static_cast<size_t>(next)].previous = kept;
    return kept;
  };
  unused_.push_back(id);
  const BlockId before = keep(block.address, from, block.previous, -1);
  const BlockId after = keep(to, block.address + block.bytes, -1, block.next);
  if (last_[block.pool] == id) {
    // The segment ends with what is before; it grows from there again.
    const BlockId end = after >= 0 ? after : before >= 0 ? before : block.previous;
    if (end >= 0) {
      last_[block.pool] = end;
    } else {
      last_.erase(block.pool);
    }
  }
  return true;
}

uint64_t CachingAllocator::EmptyCache() {
  uint64_t segments = whole_.size();
  if (expandable_) {
    std::vector<BlockId> all;
    for (const FreeBlocks& free : free_) {
      for (const FreeBlock& block : free) all.push_back(block.id);
    }
    for (const BlockId id : all) segments += Unmap(id) ? 1 : 0;
    return segments;
  }
  for (const BlockId id : whole_) {
    reserved_ -= blocks_[static_cast<size_t>(id)].bytes;
    Forget(id);
    unused_.push_back(id);
  }
  whole_.clear();
  return segments;
}

uint64_t CachingAllocator::BlockBytes(BlockId block) const {
  return blocks_[static_cast<size_t>(block)].bytes;
}

void CachingAllocator::ResetPeaks() {
  peak_allocated_ = allocated_;
  peak_reserved_ = reserved_;
}

uint64_t PinnedBlockBytes(uint64_t bytes) { return bytes == 0 ? 0 : std::bit_ceil(bytes); }

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  memory_ = std::exchange(other.memory_, nullptr);
  block_ = other.block_;
  kind_ = other.kind_;
  return *this;
}

void Tensor::Reset() {
  if (memory_ == nullptr) return;
  memory_->live_[static_cast<size_t>(kind_)] -= memory_->allocator_.BlockBytes(block_);
  memory_->allocator_.Free(block_);
  memory_ = nullptr;
}

Tensor TorchMemory::New(TorchClass kind, uint64_t bytes, int stream) {
  Tensor tensor;
  if (bytes == 0) return tensor;
  tensor.memory_ = this;
  tensor.kind_ = kind;
  tensor.block_ = allocator_.Allocate(bytes, stream);
  live_[static_cast<size_t>(kind)] += allocator_.BlockBytes(tensor.block_);
  if (allocator_.failed() && !out_of_memory_) out_of_memory_ = phase_;
  Note();
  return tensor;
}

void TorchMemory::Note() {
  TorchPeak& peak = peaks_[static_cast<size_t>(phase_)];
  if (allocator_.allocated() > peak.allocated_bytes) {
    peak.allocated_bytes = allocator_.allocated();
    peak.class_bytes = live_;
  }
  peak.reserved_bytes = std::max(peak.reserved_bytes, allocator_.reserved());
}

void TorchMemory::Enter(TorchPhase phase) {
  phase_ = phase;
  Note();
  NoteHost();
}

void TorchMemory::ForgetPeaks(TorchPhase phase) {
  peaks_ = {};
  host_peaks_ = {};
  Enter(phase);
}

void TorchMemory::NoteHost() {
  HostPeak& peak = host_peaks_[static_cast<size_t>(phase_)];
  if (host_.total() > peak.total()) peak = host_;
}

void TorchMemory::Pin(uint64_t bytes) {
  const uint64_t block = PinnedBlockBytes(bytes);
  int& cached = unpinned_[block];
  if (cached > 0) {
    --cached;
    return;
  }
  host_.pinned_bytes += block;
  NoteHost();
}

void TorchMemory::Unpin(uint64_t bytes) { ++unpinned_[PinnedBlockBytes(bytes)]; }

void TorchMemory::Lock(uint64_t bytes) {
  host_.pinned_bytes += bytes;
  NoteHost();
}

void TorchMemory::AddPageable(uint64_t bytes) {
  host_.pageable_bytes += bytes;
  NoteHost();
}

void TorchMemory::DropPageable(uint64_t bytes) {
  ZEROPLAN_CHECK(bytes <= host_.pageable_bytes);
  host_.pageable_bytes -= bytes;
}

}  // namespace zeroplan
