#include "cost_models/traffic.h"

#include <algorithm>

#include "cost_models/walk_order.h"

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
    const uint64_t full_bytes = CollectiveFullBytes(program_, collective);
    (collective.scalar ? traffic_.scalar_bytes : traffic_.collective_bytes) +=
        times * RingSentBytes(collective.kind, full_bytes, program_.setup.batch.world_size);
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

uint64_t RingSentBytes(CollectiveKind kind, uint64_t full_bytes, int world_size) {
  const uint64_t sent = full_bytes - full_bytes / static_cast<uint64_t>(world_size);
  return kind == CollectiveKind::kAllReduce ? 2 * sent : sent;
}

uint64_t CollectiveFullBytes(const Program& program, const Collective& collective) {
  uint64_t full_bytes = 0;
  for (const Segment& segment : program.segs(collective)) {
    // A reduction to owners names the whole shard as its target, but sends only its range.
    full_bytes += collective.kind == CollectiveKind::kReduceToOwners
                      ? segment.src.bytes
                      : std::max(segment.src.bytes, segment.dst.bytes);
  }
  return full_bytes;
}

StepTraffic WalkTraffic(const Program& program) {
  TrafficVisitor visitor(program);
  for (const SectionRun& run : WalkOrder(program)) {
    if (run.times == 0) continue;
    for (const Instruction& instruction : program.section(run.section)) {
      const bool runs = run.section != Section::kMicroStep || (instruction.when & run.kinds) != 0;
      if (runs) visitor.Run(instruction, static_cast<uint64_t>(run.times));
    }
  }
  return visitor.traffic();
}

}  // namespace zeroplan
