#include "executor/engine/cuda/event_table.h"

#include <algorithm>
#include <variant>

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

}  // namespace zeroplan
