#include "executor/device/cuda/cuda_arenas.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/thread.h"
#include "core/base/units.h"
#include "executor/device/cuda/cuda_handles.h"

namespace zeroplan {
namespace {

constexpr uint64_t kTouchStride = 4096;

std::byte* AllocateDevice(uint64_t bytes, int rank) {
  if (bytes == 0) return nullptr;
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky: others may go on
    size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    ThrowRuntime(
        "rank {}: no memory for the device arena of {} bytes ({}): the GPU has {} free of {}; "
        "other "
        "processes may use it, or the plan is for a larger GPU (see ⟦gpu_memory⟧)",
        rank, bytes, FormatBytes(bytes), FormatBytes(free_bytes), FormatBytes(total_bytes));
  }
  ZEROPLAN_CUDA(status);
  return static_cast<std::byte*>(memory);
}

// Large pages where the system gives them, and every page there before the first step.
void TouchPages(std::byte* memory, uint64_t bytes, int threads) {
  if (bytes == 0) return;
  madvise(memory, bytes, MADV_HUGEPAGE);
  const auto parts = static_cast<uint64_t>(std::clamp(threads, 1, 64));
  const uint64_t part = AlignUp(CeilDiv(bytes, parts), kTouchStride);
  std::atomic<uint64_t> next{0};
  const auto touch = [&] {
    for (uint64_t begin; (begin = next.fetch_add(part)) < bytes;) {
      const uint64_t end = std::min(bytes, begin + part);
      for (uint64_t at = begin; at < end; at += kTouchStride) memory[at] = std::byte{0};
    }
  };
  const std::vector<std::jthread> others = StartHelpers(parts - 1, touch);
  touch();
}

}  // namespace

void FreeDevice::operator()(std::byte* memory) const noexcept {
  WarnCuda(cudaFree(memory), "cudaFree");
}

std::optional<PageLock> PageLock::Try(std::byte* memory, uint64_t bytes, std::string& why) {
  PageLock lock;
  if (bytes == 0) return lock;
  const cudaError_t status =
      cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (status != cudaSuccess) {
    cudaGetLastError();
    why = cudaGetErrorString(status);
    return std::nullopt;
  }
  lock.memory_ = memory;
  return lock;
}

PageLock::PageLock(std::byte* memory, uint64_t bytes, int rank) {
  std::string why;
  std::optional<PageLock> lock = Try(memory, bytes, why);
  if (!lock) {
    ThrowRuntime(
        "rank {}: cannot page-lock {} bytes ({}) of host memory: {}; free host memory or raise "
        "the container's limit of it",
        rank, bytes, FormatBytes(bytes), why);
  }
  *this = std::move(*lock);
}

PageLock::~PageLock() {
  if (memory_ != nullptr) WarnCuda(cudaHostUnregister(memory_), "cudaHostUnregister");
}

PinnedArena::PinnedArena(uint64_t bytes, int rank, int threads)
    // Not as kPinned: what locks the pages is the driver, which learns of them that way.
    : memory_(Space::kPageable, bytes, rank) {
  TouchPages(memory_.data(), bytes, threads);
  lock_ = PageLock(memory_.data(), bytes, rank);
}

std::unique_ptr<PinnedArena> PinnedArena::Try(uint64_t bytes, int rank, int threads,
                                              std::string& why) {
  auto arena = std::make_unique<PinnedArena>();
  arena->memory_ = MemoryArena(Space::kPageable, bytes, rank);
  TouchPages(arena->memory_.data(), bytes, threads);
  std::optional<PageLock> lock = PageLock::Try(arena->memory_.data(), bytes, why);
  if (!lock) return nullptr;
  arena->lock_ = std::move(*lock);
  return arena;
}

CudaArenas::CudaArenas(const Program& program, int rank, const std::string& swap_dir, int threads,
                       std::shared_ptr<PinnedArena> pinned)
    : pinned_(std::move(pinned)) {
  const auto bytes = [&](Space space) { return program.arena_bytes[static_cast<size_t>(space)]; };
  device_.reset(AllocateDevice(bytes(Space::kDevice), rank));
  if (pinned_ == nullptr) {
    pinned_ = std::make_shared<PinnedArena>(bytes(Space::kPinned), rank, threads);
  }
  ZEROPLAN_CHECK(pinned_->bytes() == bytes(Space::kPinned), "a pinned arena of {} bytes, not {}",
                 pinned_->bytes(), bytes(Space::kPinned));
  pageable_ = MemoryArena(Space::kPageable, bytes(Space::kPageable), rank);
  TouchPages(pageable_.data(), pageable_.bytes(), threads);
  if (bytes(Space::kFile) > 0) file_ = SwapFile(swap_dir, bytes(Space::kFile), rank);
}

ArenaBases CudaArenas::bases() const {
  ArenaBases bases{};
  bases[static_cast<size_t>(Space::kDevice)] = device_.get();
  bases[static_cast<size_t>(Space::kPinned)] = pinned_->data();
  bases[static_cast<size_t>(Space::kPageable)] = pageable_.data();
  return bases;
}

}  // namespace zeroplan
