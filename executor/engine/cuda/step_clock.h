// Times on the GPU: the waits of the compute stream in a step, and, for a trace, the time of each
// instruction.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "core/program/chrome_trace.h"
#include "executor/device/cuda/cuda_handles.h"
#include "executor/engine/engine.h"

namespace zeroplan {

class StepClock {
 public:
  using Host = std::chrono::steady_clock;

  // Uses `stream` as the origin of time: it must be idle.
  StepClock(cudaStream_t stream, bool record_trace);

  // ---- waits of the compute stream ----
  enum class Cause : uint8_t { kCommunication, kOffload };
  // Called around a wait on `stream`; the time between the two is the wait.
  void BeginWait(cudaStream_t stream, Cause cause);
  void EndWait(cudaStream_t stream);

  // Called around the issuing thread's work for offload between two instructions of `stream`. If
  // the thread blocks there, `stream` runs dry, and that time counts as waited, too. A second
  // BeginIssue has no effect, nor has an EndIssue without a begin.
  void BeginIssue(cudaStream_t stream);
  void EndIssue(cudaStream_t stream);

  // ---- spans of a trace ----
  bool traces() const { return record_trace_; }
  void BeginSpan(cudaStream_t stream, Section section, int32_t index);
  void EndSpan(cudaStream_t stream);
  double HostSeconds() const;
  void AddHostSpan(const TraceSpan& span);  // any thread

  // Reads the times of work issued since the last call. REQUIRES: all waits are over. A span that
  // is not over (work carried into the next step) stays for the next call.
  StepTimes Settle();

  // The settled spans, and the host's.
  std::vector<TraceSpan> spans() const {
    const std::lock_guard lock(mutex_);
    return spans_;
  }

 private:
  struct Wait {
    size_t begin, end;  // indices into events_
    Cause cause;
  };
  struct Span {
    size_t begin, end;
    Section section;
    int32_t index;
  };
  size_t Mark(cudaStream_t stream);
  double Between(size_t begin, size_t end) const;

  const bool record_trace_;
  // The origin of the spans' times. It advances with every Settle, because CUDA gives the time
  // between two events in single precision: 1 us off after 8 s and 8 us after a minute.
  CudaEvent origin_;
  double origin_seconds_ = 0;  // since the construction
  Host::time_point host_origin_;
  std::vector<CudaEvent> events_;
  std::vector<size_t> free_;  // indices into events_
  std::vector<Wait> waits_;
  std::optional<size_t> issue_begin_;  // index into events_
  Host::time_point issue_host_begin_;
  std::vector<Span> pending_;
  mutable std::mutex mutex_;  // guards spans_
  std::vector<TraceSpan> spans_;
};

}  // namespace zeroplan
