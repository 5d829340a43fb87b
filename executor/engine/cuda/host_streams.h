// The program's streams of the host: a thread each runs what is issued to it, in order, beside the
// GPU's streams and ordered with them by the events.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/program/program.h"
#include "executor/engine/cuda/event_table.h"
#include "executor/engine/cuda/host_worker.h"
#include "executor/engine/cuda/step_clock.h"
#include "executor/engine/rank_files.h"
#include "executor/engine/rank_place.h"
#include "executor/engine/resolve.h"
#include "executor/kernels/kernel_call.h"

namespace zeroplan {

class HostStreams {
 public:
  // All of these outlive it. `context`: of the kernels that run on the host.
  HostStreams(const Program& program, const ResolvedProgram& resolved, const KernelContext& context,
              EventTable& events, StepClock& clock, RankFiles& files);
  ~HostStreams() { Abort(); }
  HostStreams(const HostStreams&) = delete;
  HostStreams& operator=(const HostStreams&) = delete;

  // Hands an instruction of the host's streams to its thread.
  void Issue(Section section, size_t index);

  bool failed() const { return host_.failed() || storage_.failed(); }
  // Rethrows what an instruction threw, if one did: nothing runs on its stream after that.
  void RethrowFailure() const;
  // Threads that wait for an event fail, now and later.
  void Abort() noexcept { aborted_.store(true); }

  // Where its threads are; any thread may ask.
  const RankPlace& place(Stream stream) const {
    return stream == Stream::kHost ? host_place_ : storage_place_;
  }

 private:
  HostWorker& worker(Stream stream) { return stream == Stream::kHost ? host_ : storage_; }
  void Run(Section section, size_t index);
  void Dispatch(const Instruction& instruction, const ResolvedInstruction& resolved);
  void WaitFor(EventId event, uint32_t number) const;
  RankPlace& own_place(Stream stream) {
    return stream == Stream::kHost ? host_place_ : storage_place_;
  }

  const Program& program_;
  const ResolvedProgram& resolved_;
  const KernelContext& context_;
  EventTable& events_;
  StepClock& clock_;
  RankFiles& files_;
  std::atomic<bool> aborted_{false};
  RankPlace host_place_, storage_place_;
  HostWorker host_, storage_;  // last: their threads use the rest
};

}  // namespace zeroplan
