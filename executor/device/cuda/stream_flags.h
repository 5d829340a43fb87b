// Numbers in page-locked memory that GPU streams and host threads set and wait for: they order the
// host's streams with the GPU's.
//
// An event between host and GPU counts its records: the n-th record writes n, and a wait issued
// after it waits until the number reaches n. So a wait is for the record that precedes it in the
// program, however far the GPU runs ahead of the host or behind it. A cudaEvent_t only remembers
// its latest record.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "executor/device/cuda/cuda_arenas.h"

namespace zeroplan {

class StreamFlags {
 public:
  // All start at 0. Throws Error(kRuntime) if the driver lacks stream memory operations.
  explicit StreamFlags(uint32_t count);
  ~StreamFlags();
  StreamFlags(const StreamFlags&) = delete;
  StreamFlags& operator=(const StreamFlags&) = delete;

  // On the GPU's stream, after the work issued before: sets the flag; waits for it.
  void WriteOn(cudaStream_t stream, uint32_t flag, uint32_t value);
  void WaitOn(cudaStream_t stream, uint32_t flag, uint32_t value);

  // Sets the flag on the host.
  void Write(uint32_t flag, uint32_t value) noexcept;
  bool Reached(uint32_t flag, uint32_t value) const noexcept;

  // Releases every waiting stream, for a run that has failed.
  void ReleaseAll() noexcept;

 private:
  struct Driver;
  using Flag = std::atomic<uint32_t>;
  static_assert(sizeof(Flag) == 4 && Flag::is_always_lock_free);

  uint32_t count_;
  MemoryArena memory_;
  PageLock lock_;
  Flag* flags_;
  std::unique_ptr<const Driver> driver_;
};

}  // namespace zeroplan
