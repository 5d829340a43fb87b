// The memory of a PyTorch process while a trace of tensors plays: GPU by class and phase, host.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "planner/footprint.h"
#include "planner/runtimes/caching_allocator.h"

namespace zeroplan {

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
  explicit TorchMemory(std::optional<uint64_t> limit_bytes = std::nullopt)
      : limit_(limit_bytes), allocator_(limit_bytes) {}
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
  const TorchPeak& peak(TorchPhase phase) const { return peaks_[static_cast<size_t>(phase)]; }

  // Page-locked memory, from PyTorch's cache: a power of two, kept when freed and taken again.
  void Pin(uint64_t bytes);
  void Unpin(uint64_t bytes);
  void AddPageable(uint64_t bytes);
  void DropPageable(uint64_t bytes);
  const HostPeak& host_peak(TorchPhase phase) const {
    return host_peaks_[static_cast<size_t>(phase)];
  }
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
  std::map<uint64_t, int> unpinned_;  // free blocks of page-locked memory by size
  HostPeak host_;
  std::array<HostPeak, kTorchPhases> host_peaks_{};
  std::optional<TorchPhase> out_of_memory_;
};

}  // namespace zeroplan
