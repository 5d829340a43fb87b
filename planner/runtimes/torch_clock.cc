#include "planner/runtimes/torch_clock.h"

#include <algorithm>
#include <cmath>

namespace zeroplan {
namespace {

// Spans of the host that are older than this many are no longer asked for.
constexpr size_t kMostSpans = 4096;

}  // namespace

void TorchClock::HostSpan(double end, TimeCause cause) {
  if (end <= host_) return;
  if (!host_spans_.empty() && host_spans_.back().cause == cause) {
    host_spans_.back().end = end;
  } else {
    if (host_spans_.size() >= kMostSpans) {
      host_spans_.erase(host_spans_.begin(), host_spans_.begin() + kMostSpans / 2);
    }
    host_spans_.push_back({host_, end, cause});
  }
  host_ = end;
}

void TorchClock::Host(double seconds, TimeCause cause) { HostSpan(host_ + seconds, cause); }

void TorchClock::Idle(double end, double waits_from, TimeCause cause) {
  const double begin = reading_.seconds;
  if (end <= begin) return;
  const double from = std::clamp(waits_from, begin, end);
  Note(cause, end - from);
  double left = from - begin;
  for (auto span = host_spans_.rbegin(); span != host_spans_.rend() && span->end > begin; ++span) {
    const double overlap = std::min(span->end, from) - std::max(span->begin, begin);
    if (overlap <= 0) continue;
    Note(span->cause, overlap);
    left -= overlap;
  }
  if (left > 0) Note(TimeCause::kHostOverhead, left);
  reading_.seconds = end;
}

void TorchClock::Kernels(const GpuWork& work, int count, double launch_seconds) {
  const double start = std::max(host_, wait_until_);
  Idle(start, host_, wait_cause_);
  double seconds = work.SecondsAt(gpu_clock_);
  const double link = resource_free_[static_cast<size_t>(SharedResource::kLink)];
  if (link > reading_.seconds) {
    const double one = seconds / count;
    double beside = std::min<double>(count, std::ceil((link - reading_.seconds) / one));
    if (met_ < collectives_) {
      met_ = collectives_;
      seconds += one * (1 / overlap_.first_kernel - 1);
      beside -= 1;
    }
    seconds += beside * one * (1 / overlap_.kernels - 1);
  }
  HostSpan(host_ + launch_seconds, TimeCause::kHostOverhead);
  // The last of several kernels starts when it has been launched.
  const double launched = std::max(0.0, host_ - reading_.seconds - seconds);
  Note(TimeCause::kCompute, seconds);
  Note(TimeCause::kHostOverhead, launched);
  reading_.seconds += seconds + launched;
  reading_.work += work;
}

void TorchClock::Issue(int stream, double seconds, TimeCause cause, SharedResource resource) {
  double& shared = resource_free_[static_cast<size_t>(resource)];
  double start = std::max(free_at(stream), host_);
  if (resource != SharedResource::kNone) start = std::max(start, shared);
  if (stream == kComputeStream) {
    start = std::max(start, wait_until_);
    Idle(start, host_, start > wait_until_ ? cause : wait_cause_);
    Note(cause, seconds);
  } else if (resource == SharedResource::kLink) {
    ++collectives_;
    // While kernels run that the stream does not wait for.
    const double share = overlap_.collective;
    const double beside = std::clamp(reading_.seconds - start, 0.0, seconds / share);
    seconds += beside * (1 - share);
  }
  free_at(stream) = start + seconds;
  last_cause_[static_cast<size_t>(stream)] = cause;
  if (resource != SharedResource::kNone) shared = start + seconds;
}

void TorchClock::StreamWaits(int stream, int other) {
  const double until = free_at(other);
  if (stream != kComputeStream) {
    free_at(stream) = std::max(free_at(stream), until);
  } else if (until > wait_until_) {
    wait_until_ = until;
    wait_cause_ = last_cause_[static_cast<size_t>(other)];
  }
}

void TorchClock::HostWaits(int stream) {
  HostSpan(free_at(stream), stream == kComputeStream ? TimeCause::kHostOverhead
                                                     : last_cause_[static_cast<size_t>(stream)]);
}

void TorchClock::HostWaitsForAll() {
  for (int stream = 0; stream < kStreams; ++stream) HostWaits(stream);
  Idle(host_, host_, TimeCause::kHostOverhead);
}

RuntimeTime TimeBetween(const TorchClock::Reading& begin, const TorchClock::Reading& end) {
  const auto part = [&](TimeCause cause) {
    const auto i = static_cast<size_t>(cause);
    return end.by_cause[i] - begin.by_cause[i];
  };
  RuntimeTime time;
  time.compute = part(TimeCause::kCompute);
  time.exposed_communication = part(TimeCause::kCommunication);
  time.transfers = part(TimeCause::kTransfer);
  time.host_update = part(TimeCause::kHostUpdate);
  time.host_overhead = part(TimeCause::kHostOverhead);
  time.step_seconds = time.compute + time.exposed_communication + time.transfers +
                      time.host_update + time.host_overhead;
  return time;
}

}  // namespace zeroplan
