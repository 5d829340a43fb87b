// The program's streams of the host: one thread each runs its instructions in order, concurrently
// with the GPU's streams; events order the two.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "core/program/program.h"
#include "core/program/replay.h"
#include "executor/device/cuda/cuda_handles.h"
#include "executor/device/cuda/stream_flags.h"
#include "executor/engine/cuda/step_clock.h"
#include "executor/engine/rank_runner.h"
#include "executor/engine/resolve.h"
#include "executor/engine/watch.h"
#include "executor/kernels/kernel_call.h"

namespace zeroplan {

// The events of a program: a cudaEvent_t between streams of the GPU, and a flag if either side is a
// host stream.
class EventTable {
 public:
  explicit EventTable(const Program& program);

  Stream recorder(EventId event) const { return entries_[event].recorder; }

  // A record and a wait on the GPU's streams, in the order of issue.
  void RecordOn(cudaStream_t stream, EventId event);
  void WaitOn(cudaStream_t stream, EventId event);

  // A record or wait that a host thread will execute later. The returned number identifies the
  // record; call in the order of issue.
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
    uint32_t issued = 0;  // records issued so far
    CudaEvent event;      // recorded and waited for on the GPU
  };

  std::vector<Entry> entries_;
  StreamFlags flags_;
};

// A thread that runs the instructions of one host stream, in order, concurrently with the GPU's
// streams.
class HostWorker {
 public:
  HostWorker();
  // Lets the running task end and drops the tasks after it.
  ~HostWorker();
  HostWorker(const HostWorker&) = delete;
  HostWorker& operator=(const HostWorker&) = delete;

  void Post(std::function<void()> task);
  // True once all posted tasks have run, or a task has thrown: nothing runs after that.
  bool Idle() const { return pending_.load(std::memory_order_acquire) == 0 || failed(); }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Rethrows a task's exception, if one threw.
  void RethrowFailure() const;

 private:
  void Serve();

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::atomic<int64_t> pending_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;  // set before failed_
  std::jthread thread_;         // last, because it uses the other members
};

class HostStreams {
 public:
  // All arguments must outlive it. `context`: for the kernels that run on the host.
  HostStreams(const Program& program, const ResolvedProgram& resolved, const KernelContext& context,
              EventTable& events, StepClock& clock, RankFiles& files);
  ~HostStreams() { Abort(); }
  HostStreams(const HostStreams&) = delete;
  HostStreams& operator=(const HostStreams&) = delete;

  // Passes an instruction of a host stream to its thread.
  void Issue(Section section, size_t index);

  bool failed() const {
    return std::any_of(workers_.begin(), workers_.end(),
                       [](const HostWorker& worker) { return worker.failed(); });
  }
  // Rethrows an instruction's exception, if one threw: nothing runs on its stream after that.
  void RethrowFailure() const;
  // Makes threads that wait for an event fail, now and later.
  void Abort() noexcept { aborted_.store(true); }

  // The place of a stream's thread; any thread may call.
  const RankPlace& place(Stream stream) const { return places_[IndexOf(stream)]; }

 private:
  // Index into kHostStreams. REQUIRES: OnHost(stream).
  static size_t IndexOf(Stream stream) {
    return static_cast<size_t>(std::find(kHostStreams.begin(), kHostStreams.end(), stream) -
                               kHostStreams.begin());
  }
  void Run(Section section, size_t index);
  void Dispatch(const Instruction& instruction, const ResolvedInstruction& resolved);
  void WaitFor(EventId event, uint32_t number) const;
  RankPlace& own_place(Stream stream) { return places_[IndexOf(stream)]; }

  const Program& program_;
  const ResolvedProgram& resolved_;
  const KernelContext& context_;
  EventTable& events_;
  StepClock& clock_;
  RankFiles& files_;
  std::atomic<bool> aborted_{false};
  std::array<RankPlace, kHostStreams.size()> places_;
  // last, because their threads use the other members
  std::array<HostWorker, kHostStreams.size()> workers_;
};

}  // namespace zeroplan
