// A program's events on a GPU's streams and the host's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "core/program/program.h"
#include "core/program/replay.h"
#include "executor/device/cuda/cuda_handles.h"
#include "executor/device/cuda/stream_flags.h"

namespace zeroplan {

// The events of a program. Each is a cudaEvent_t between streams of the GPU, and a flag where
// either side is the host's.
class EventTable {
 public:
  explicit EventTable(const Program& program);

  Stream recorder(EventId event) const { return entries_[event].recorder; }

  // A record and a wait that the GPU's streams do, in the order of issue.
  void RecordOn(cudaStream_t stream, EventId event);
  void WaitOn(cudaStream_t stream, EventId event);

  // A record or wait that a host thread will do later. The number says which record it is, or is
  // for; take it in the order of issue.
  uint32_t IssueRecord(EventId event) { return ++entries_[event].issued; }
  uint32_t IssuedSoFar(EventId event) const { return entries_[event].issued; }
  void Signal(EventId event, uint32_t number) noexcept { flags_.Write(event, number); }
  bool Reached(EventId event, uint32_t number) const noexcept {
    return flags_.Reached(event, number);
  }

  void ReleaseAll() noexcept { flags_.ReleaseAll(); }

 private:
  struct Entry {
    Stream recorder = Stream::kCompute;
    bool host_waits = false;
    bool gpu_waits = false;
    uint32_t issued = 0;  // records so far
    CudaEvent event;      // recorded and waited for on the GPU
  };

  std::vector<Entry> entries_;
  StreamFlags flags_;
};

}  // namespace zeroplan
