#include "cost_models/traffic.h"

#include "core/program/collectives.h"
#include "core/program/step_order.h"

namespace zeroplan {
namespace {

class TrafficVisitor {
 public:
  explicit TrafficVisitor(const Program& program) : program_(program) {}

  void Run(const Instruction& instruction, uint64_t times) {
    std::visit(Overload{[&](const Collective& collective) { Add(collective, times); },
                        [&](const Copy& copy) { Add(copy, times); },
                        [&](const FileIo& io) {
                          (io.write ? traffic_.file_write_bytes : traffic_.file_read_bytes) +=
                              times * io.host.bytes;
                        },
                        [](const LaunchKernel&) {}, [](const Alloc&) {}, [](const Free&) {},
                        [](const RecordEvent&) {}, [](const WaitEvent&) {}},
               instruction.op);
  }

  const StepTraffic& traffic() const { return traffic_; }

 private:
  void Add(const Collective& collective, uint64_t times) {
    const uint64_t sent = times * RingSentBytes(program_, collective);
    if (collective.scalar) {
      traffic_.scalar_bytes += sent;
      return;
    }
    traffic_.collective_bytes += sent;
    traffic_.axis_bytes[static_cast<size_t>(collective.axis)] += sent;
  }

  void Add(const Copy& copy, uint64_t times) {
    const bool from_device = program_.buffers[copy.src.buffer].space == Space::kDevice;
    const bool to_device = program_.buffers[copy.dst.buffer].space == Space::kDevice;
    if (to_device && !from_device) traffic_.host_to_device_bytes += times * copy.src.bytes;
    if (from_device && !to_device) traffic_.device_to_host_bytes += times * copy.src.bytes;
  }

  const Program& program_;
  StepTraffic traffic_;
};

}  // namespace

StepTraffic WalkTraffic(const Program& program) {
  TrafficVisitor visitor(program);
  for (const SectionRun& run : WalkOrder(program)) {
    if (run.times == 0) continue;
    for (const Instruction& instruction : program.section(run.section)) {
      if (!RunsIn(instruction, run.section, run.kinds)) continue;
      visitor.Run(instruction, static_cast<uint64_t>(run.times));
    }
  }
  return visitor.traffic();
}

}  // namespace zeroplan
