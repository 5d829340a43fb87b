#include "planner/runtimes/torch_memory.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"

namespace zeroplan {

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

void TorchMemory::AddPageable(uint64_t bytes) {
  host_.pageable_bytes += bytes;
  NoteHost();
}

void TorchMemory::DropPageable(uint64_t bytes) {
  ZEROPLAN_CHECK(bytes <= host_.pageable_bytes);
  host_.pageable_bytes -= bytes;
}

}  // namespace zeroplan
