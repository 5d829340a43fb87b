#include "executor/engine/cuda/host_streams.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "core/base/error.h"
#include "core/base/thread.h"
#include "executor/collectives/in_process.h"
#include "executor/device/cuda/cuda_handles.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan {

EventTable::EventTable(const Program& program)
    : entries_(program.event_count), flags_(std::max<uint32_t>(1, program.event_count)) {
  for (const std::vector<Instruction>& section : program.sections) {
    for (const Instruction& instruction : section) {
      if (const auto* record = std::get_if<RecordEvent>(&instruction.op)) {
        entries_[record->event].recorder = instruction.stream;
      } else if (const auto* wait = std::get_if<WaitEvent>(&instruction.op)) {
        Entry& entry = entries_[wait->event];
        (OnHost(instruction.stream) ? entry.host_waits : entry.gpu_waits) = true;
      }
    }
  }
  for (Entry& entry : entries_) {
    if (entry.gpu_waits && !OnHost(entry.recorder)) entry.event = MakeEvent(false);
  }
}

void EventTable::RecordOn(cudaStream_t stream, EventId event) {
  Entry& entry = entries_[event];
  ++entry.issued;
  if (entry.event != nullptr) ZEROPLAN_CUDA(cudaEventRecord(entry.event.get(), stream));
  if (entry.host_waits) flags_.WriteOn(stream, event, entry.issued);
}

void EventTable::WaitOn(cudaStream_t stream, EventId event) {
  const Entry& entry = entries_[event];
  if (entry.issued == 0) return;  // carried over, and nothing was carried yet
  if (OnHost(entry.recorder)) {
    flags_.WaitOn(stream, event, entry.issued);
  } else {
    ZEROPLAN_CUDA(cudaStreamWaitEvent(stream, entry.event.get(), 0));
  }
}

HostWorker::HostWorker() : thread_(StartThread("a stream of the host", [this] { Serve(); })) {}

HostWorker::~HostWorker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  posted_.notify_one();
  thread_.join();
}

void HostWorker::Post(std::function<void()> task) {
  pending_.fetch_add(1, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  posted_.notify_one();
}

void HostWorker::RethrowFailure() const {
  if (failed()) std::rethrow_exception(failure_);
}

void HostWorker::Serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    posted_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (stopping_) return;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    if (!failed()) {
      try {
        task();
      } catch (...) {
        failure_ = std::current_exception();
        failed_.store(true, std::memory_order_release);
      }
    }
    pending_.fetch_sub(1, std::memory_order_release);
    lock.lock();
  }
}

HostStreams::HostStreams(const Program& program, const ResolvedProgram& resolved,
                         const KernelContext& context, EventTable& events, StepClock& clock,
                         RankFiles& files)
    : program_(program),
      resolved_(resolved),
      context_(context),
      events_(events),
      clock_(clock),
      files_(files) {}

void HostStreams::Issue(Section section, size_t index) {
  const Instruction& instruction = program_.section(section)[index];
  HostWorker& on = workers_[IndexOf(instruction.stream)];
  if (const auto* record = std::get_if<RecordEvent>(&instruction.op)) {
    const uint32_t number = events_.IssueRecord(record->event);
    on.Post([this, event = record->event, number] { events_.Signal(event, number); });
    return;
  }
  if (const auto* wait = std::get_if<WaitEvent>(&instruction.op)) {
    const uint32_t number = events_.IssuedSoFar(wait->event);
    on.Post([this, section, index, event = wait->event, number] {
      RankPlace& place = own_place(program_.section(section)[index].stream);
      place.Set(Doing::kAwaitsEvent, section, index, 0);
      WaitFor(event, number);
      place.Turn(Doing::kNothing);
    });
    return;
  }
  on.Post([this, section, index] { Run(section, index); });
}

void HostStreams::RethrowFailure() const {
  for (const HostWorker& worker : workers_) worker.RethrowFailure();
}

void HostStreams::Run(Section section, size_t index) {
  RankPlace& place = own_place(program_.section(section)[index].stream);
  place.Set(Doing::kRuns, section, index, 0);
  const bool traces = clock_.traces();
  const double begin = traces ? clock_.HostSeconds() : 0;
  Dispatch(program_.section(section)[index], resolved_.section(section)[index]);
  if (traces) {
    clock_.AddHostSpan({section, static_cast<int32_t>(index), begin, clock_.HostSeconds()});
  }
  place.Turn(Doing::kNothing);
}

void HostStreams::Dispatch(const Instruction& instruction, const ResolvedInstruction& resolved) {
  std::visit(Overload{
                 [&](const LaunchKernel& launch) {
                   CpuKernels().rows[static_cast<size_t>(launch.kernel)](
                       {launch.kernel, launch.flags, launch.dims, resolved_.args(resolved),
                        context_, launch.scalars});
                 },
                 [&](const Collective&) { ZEROPLAN_CHECK(false, "a collective on the host"); },
                 [&](const Copy&) {
                   CopyBytes(*context_.pool, resolved.dst, resolved.src, resolved.bytes);
                 },
                 [&](const FileIo& io) { files_.Run(io, resolved); },
                 [](const Alloc&) {},
                 [](const Free&) {},
                 [](const RecordEvent&) {},
                 [](const WaitEvent&) {},
             },
             instruction.op);
}

void HostStreams::WaitFor(EventId event, uint32_t number) const {
  Patience patience;
  while (!events_.Reached(event, number)) {
    if (aborted_.load(std::memory_order_relaxed)) throw GroupAborted();
    patience.Pause();
  }
  if (aborted_.load(std::memory_order_relaxed)) throw GroupAborted();
}

}  // namespace zeroplan
