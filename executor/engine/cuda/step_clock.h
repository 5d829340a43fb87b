// Times on the GPU: what the compute stream waited for in a step, and, for a trace, when each
// instruction ran.
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

  // Takes `stream` as the origin of time: it must be idle.
  StepClock(cudaStream_t stream, bool record_trace);

  // ---- waits of the compute stream ----
  enum class Cause : uint8_t { kCommunication, kOffload };
  // Around a wait on `stream`; what lies between is the time it waited.
  void BeginWait(cudaStream_t stream, Cause cause);
  void EndWait(cudaStream_t stream);

  // Called around the issuing thread's work for offload between two instructions of `stream`. Where
  // the thread blocks there, `stream` runs dry, and that time counts as waited, too. Begun twice is
  // begun once; ended without a begin is nothing.
  void BeginIssue(cudaStream_t stream);
  void EndIssue(cudaStream_t stream);

  // ---- spans of a trace ----
  bool traces() const { return record_trace_; }
  void BeginSpan(cudaStream_t stream, Section section, int32_t index);
  void EndSpan(cudaStream_t stream);
  double HostSeconds() const;
  void AddHostSpan(const TraceSpan& span);  // any thread

  // Reads the times of what was issued since the last call. REQUIRES: all waits are over. A span
  // that is not (work carried into the next step) stays for the next call.
  StepTimes Settle();

  // The settled spans, and the host's.
  std::vector<TraceSpan> spans() const {
    const std::lock_guard lock(mutex_);
    return spans_;
  }

 private:
  struct Wait {
    size_t begin, end;  // into events_
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
  // What spans are timed from. It moves on with every Settle: CUDA gives the time between two
  // events in single precision, which is 1 us off after 8 s and 8 us after a minute.
  CudaEvent origin_;
  double origin_seconds_ = 0;  // after the construction
  Host::time_point host_origin_;
  std::vector<CudaEvent> events_;
  std::vector<size_t> free_;  // of events_
  std::vector<Wait> waits_;
  std::optional<size_t> issue_begin_;  // into events_
  Host::time_point issue_host_begin_;
  std::vector<Span> pending_;
  mutable std::mutex mutex_;  // of spans_
  std::vector<TraceSpan> spans_;
};

}  // namespace zeroplan
