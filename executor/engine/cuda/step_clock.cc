#include "executor/engine/cuda/step_clock.h"

#include <utility>

namespace zeroplan {
namespace {

// Issuing that takes less leaves no gap worth two events on the stream.
constexpr std::chrono::microseconds kWorthAMark(20);

// In seconds; below 0 where `end` came first.
double Elapsed(cudaEvent_t begin, cudaEvent_t end) {
  float milliseconds = 0;
  ZEROPLAN_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace

StepClock::StepClock(cudaStream_t stream, bool record_trace)
    : record_trace_(record_trace), origin_(MakeEvent(true)) {
  ZEROPLAN_CUDA(cudaEventRecord(origin_.get(), stream));
  ZEROPLAN_CUDA(cudaEventSynchronize(origin_.get()));
  host_origin_ = Host::now();
}

size_t StepClock::Mark(cudaStream_t stream) {
  if (free_.empty()) {
    events_.push_back(MakeEvent(true));
    free_.push_back(events_.size() - 1);
  }
  const size_t mark = free_.back();
  ZEROPLAN_CUDA(cudaEventRecord(events_[mark].get(), stream));
  free_.pop_back();
  return mark;
}

double StepClock::Between(size_t begin, size_t end) const {
  return Elapsed(events_[begin].get(), events_[end].get());
}

void StepClock::BeginWait(cudaStream_t stream, Cause cause) {
  const size_t begin = Mark(stream);
  waits_.push_back({begin, begin, cause});
}

void StepClock::EndWait(cudaStream_t stream) { waits_.back().end = Mark(stream); }

void StepClock::BeginIssue(cudaStream_t stream) {
  if (issue_begin_) return;
  issue_begin_ = Mark(stream);
  issue_host_begin_ = Host::now();
}

void StepClock::EndIssue(cudaStream_t stream) {
  if (!issue_begin_) return;
  const size_t begin = *std::exchange(issue_begin_, std::nullopt);
  if (Host::now() - issue_host_begin_ < kWorthAMark) {
    free_.push_back(begin);
    return;
  }
  waits_.push_back({begin, Mark(stream), Cause::kOffload});
}

void StepClock::BeginSpan(cudaStream_t stream, Section section, int32_t index) {
  const size_t begin = Mark(stream);
  pending_.push_back({begin, begin, section, index});
}

void StepClock::EndSpan(cudaStream_t stream) { pending_.back().end = Mark(stream); }

double StepClock::HostSeconds() const {
  return std::chrono::duration<double>(Host::now() - host_origin_).count();
}

void StepClock::AddHostSpan(const TraceSpan& span) {
  const std::lock_guard lock(mutex_);
  spans_.push_back(span);
}

StepTimes StepClock::Settle() {
  double comm = 0, offload = 0;
  for (const Wait& wait : waits_) {
    (wait.cause == Cause::kCommunication ? comm : offload) += Between(wait.begin, wait.end);
    free_.insert(free_.end(), {wait.begin, wait.end});
  }
  waits_.clear();
  std::vector<Span> unfinished;
  std::optional<std::pair<size_t, double>> last;  // an event that is over, and its time
  for (const Span& span : pending_) {
    const cudaError_t over = cudaEventQuery(events_[span.end].get());
    if (over == cudaErrorNotReady) {
      unfinished.push_back(span);
      continue;
    }
    ZEROPLAN_CUDA(over);
    const double begin = origin_seconds_ + Elapsed(origin_.get(), events_[span.begin].get());
    const double end = begin + Between(span.begin, span.end);
    AddHostSpan({span.section, span.index, begin, end});
    last = {span.end, end};
    free_.insert(free_.end(), {span.begin, span.end});
  }
  pending_ = std::move(unfinished);
  if (last) {  // its old event is free like any other
    origin_.swap(events_[last->first]);
    origin_seconds_ = last->second;
  }
  return {.exposed_comm_seconds = comm, .exposed_offload_seconds = offload};
}

}  // namespace zeroplan
