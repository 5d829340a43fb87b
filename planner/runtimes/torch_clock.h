// The clocks of a PyTorch process: the Python thread, which issues all work, the GPU's streams, and
// what they share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cost_models/power_limit.h"
#include "planner/runtimes/runtime_time.h"

namespace zeroplan {

// What the time of a step is spent on (RuntimeTime).
enum class TimeCause : uint8_t { kCompute, kCommunication, kTransfer, kHostUpdate, kHostOverhead };
inline constexpr size_t kTimeCauses = 5;

// Work of which only one runs at a time.
enum class SharedResource : uint8_t { kNone, kLink, kToDevice, kFromDevice };
inline constexpr size_t kSharedResources = 4;

// Streams are numbered; 0 computes. Times are seconds since the clock was made.
class TorchClock {
 public:
  static constexpr int kComputeStream = 0;
  static constexpr int kStreams = 3;

  // The share of their speed, (0, 1], that kernels keep beside a collective: the first one that
  // starts beside it, whose blocks wait for one more wave since NCCL's hold multiprocessors; and
  // those that follow. `collective`: what a collective keeps while kernels run.
  struct Overlap {
    double first_kernel = 1, kernels = 1, collective = 1;
  };
  explicit TorchClock(const Overlap& overlap) : overlap_(overlap) {}

  // The host is busy.
  void Host(double seconds, TimeCause cause = TimeCause::kHostOverhead);
  // `count` kernels of the compute stream, that the host takes `launch_seconds` to launch.
  void Kernels(const GpuWork& work, int count, double launch_seconds);
  // Issued now to a stream; starts when that is free and the resource too.
  void Issue(int stream, double seconds, TimeCause cause,
             SharedResource resource = SharedResource::kNone);
  // cudaStreamWaitEvent of what the other stream has been given so far.
  void StreamWaits(int stream, int other);
  // cudaStreamSynchronize.
  void HostWaits(int stream);
  void HostWaitsForAll();
  // cudaEventRecord on a stream, and cudaEventSynchronize.
  struct Event {
    double seconds = 0;
    TimeCause cause = TimeCause::kCommunication;
  };
  Event Record(int stream) { return {free_at(stream), last_cause_[static_cast<size_t>(stream)]}; }
  void HostWaits(const Event& event) { HostSpan(event.seconds, event.cause); }

  // Kernels run at this share of the GPU's top clock from now on.
  void SetGpuClock(double share) { gpu_clock_ = share; }

  // Times of the compute stream since the clock was made.
  struct Reading {
    double seconds = 0;
    std::array<double, kTimeCauses> by_cause{};  // sums to `seconds`
    GpuWork work;
  };
  const Reading& reading() const { return reading_; }

 private:
  struct Span {
    double begin, end;
    TimeCause cause;
  };
  void Note(TimeCause cause, double seconds) {
    reading_.by_cause[static_cast<size_t>(cause)] += seconds;
  }
  void HostSpan(double end, TimeCause cause);
  // The compute stream is idle until `end`; from `waits_from` on since it waits for `cause`, and
  // before that for the host.
  void Idle(double end, double waits_from, TimeCause cause);
  double& free_at(int stream) {
    return stream == kComputeStream ? reading_.seconds : free_at_[static_cast<size_t>(stream)];
  }

  Overlap overlap_;
  double gpu_clock_ = 1;
  int64_t collectives_ = 0, met_ = 0;  // issued; the last that a kernel started beside
  double host_ = 0;
  std::vector<Span> host_spans_;  // of the last while
  std::array<double, kStreams> free_at_{};
  std::array<TimeCause, kStreams> last_cause_{};
  std::array<double, kSharedResources> resource_free_{};
  double wait_until_ = 0;  // of the compute stream's next work
  TimeCause wait_cause_ = TimeCause::kCommunication;
  Reading reading_;
};

// What passed between two readings.
RuntimeTime TimeBetween(const TorchClock::Reading& begin, const TorchClock::Reading& end);

}  // namespace zeroplan
