// Step programs small enough to add up by hand.
#pragma once

#include <initializer_list>

#include "core/program/program.h"

namespace zeroplan {

class TinyProgram {
 public:
  explicit TinyProgram(int world_size, int64_t grad_accum) {
    program.setup.batch.world_size = world_size;
    program.setup.batch.grad_accum = grad_accum;
  }

  BufferId Add(const char* label, uint64_t bytes, MemoryClass memory_class,
               Space space = Space::kDevice) {
    Buffer buffer;
    buffer.label = label;
    buffer.bytes = bytes;
    buffer.memory_class = memory_class;
    buffer.space = space;
    program.buffers.push_back(buffer);
    return static_cast<BufferId>(program.buffers.size() - 1);
  }
  void Do(Section section, Phase phase, Op op, uint8_t when = kEvery) {
    Instruction instruction;
    instruction.op = op;
    instruction.phase = phase;
    instruction.when = when;
    program.section(section).push_back(instruction);
  }
  Collective MakeCollective(CollectiveKind kind, uint64_t src_bytes, uint64_t dst_bytes) {
    Segment segment;
    segment.src = {0, 0, src_bytes, 0};
    segment.dst = {0, 0, dst_bytes, 0};
    program.segments.push_back(segment);
    Collective collective;
    collective.kind = kind;
    collective.dtype = Dtype::kBF16;
    collective.first_segment = static_cast<uint32_t>(program.segments.size() - 1);
    collective.segment_count = 1;
    return collective;
  }

  LaunchKernel MakeLaunch(KernelId kernel, const KernelDims& dims, std::initializer_list<Ref> args,
                          uint8_t flags = kNoFlags) {
    LaunchKernel launch;
    launch.kernel = kernel;
    launch.flags = flags;
    launch.dims = dims;
    launch.first_arg = static_cast<uint32_t>(program.refs.size());
    launch.arg_count = static_cast<uint16_t>(args.size());
    program.refs.insert(program.refs.end(), args);
    return launch;
  }

  Program program;
};

}  // namespace zeroplan
