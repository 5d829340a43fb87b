#include "executor/engine/cuda/host_streams.h"

#include <variant>

#include "core/base/error.h"
#include "executor/collectives/barrier.h"
#include "executor/device/cuda/patience.h"
#include "executor/kernels/copy_bytes.h"

namespace zeroplan {

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
  HostWorker& on = worker(instruction.stream);
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
  host_.RethrowFailure();
  storage_.RethrowFailure();
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
