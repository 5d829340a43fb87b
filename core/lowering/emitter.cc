#include "core/lowering/emitter.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/program/kernel.h"

namespace zeroplan {

BufferId AddBuffer(Program& program, const char* label, Role role, Dtype dtype, uint64_t bytes) {
  Buffer buffer;
  buffer.label = label;
  buffer.role = role;
  buffer.dtype = dtype;
  buffer.bytes = bytes;
  program.buffers.push_back(buffer);
  return static_cast<BufferId>(program.buffers.size() - 1);
}

std::vector<BufferId> UnitBuffers(const Program& program, Role role) {
  std::vector<BufferId> by_unit(program.layout.units.size(), kNoBuffer);
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (buffer.role != role || buffer.unit < 0) continue;
    BufferId& slot = by_unit[static_cast<size_t>(buffer.unit)];
    if (slot == kNoBuffer) slot = static_cast<BufferId>(i);
  }
  return by_unit;
}

template <typename OneOp>
void Emitter::Push(const OneOp& op, Stream stream) {
  out_.push_back({op, stream, when_, phase_, layer_});
}

void Emitter::Launch(KernelId kernel, const KernelDims& dims, uint8_t flags,
                     std::initializer_list<Ref> args, Stream stream, const KernelScalars& scalars,
                     const Ref& starts) {
  const KernelRow& row = KernelInfo(kernel);
  LaunchKernel launch{kernel};
  launch.flags = flags;
  launch.dims = dims;
  launch.scalars = scalars;
  launch.first_arg = static_cast<uint32_t>(program_.refs.size());
  program_.refs.insert(program_.refs.end(), args.begin(), args.end());
  launch.arg_count = static_cast<uint16_t>(args.size());
  // What the host runs is the CPU's kernel, whatever the program's backend.
  const Backend backend = stream == Stream::kHost ? Backend::kCpu : program_.backend;
  const uint64_t bytes = LaunchWorkspaceBytes(kernel, dims, backend, !starts.null(),
                                              program_.setup.deterministic, program_.own_documents);
  if (bytes > 0) {
    ZEROPLAN_CHECK(static_cast<int>(args.size()) < row.args.size() &&
                       row.args[args.size()] == ArgMode::kScratch,
                   "{}", row.name);
    BufferId id = kNoBuffer;
    if (row.shares_workspace && program_.matmul_workspace != kNoBuffer) {
      id = program_.matmul_workspace;
      program_.buffers[id].bytes = std::max(program_.buffers[id].bytes, bytes);
    } else {
      id = AddBuffer(program_, "workspace", Role::kWorkspace, Dtype::kU8, bytes);
      program_.buffers[id].layer = layer_;
      if (row.shares_workspace) {
        program_.buffers[id].layer = -2;
        program_.buffers[id].persistent = true;
        program_.matmul_workspace = id;
      }
    }
    program_.refs.push_back({id, 0, bytes, 0});
    ++launch.arg_count;
  }
  if (!starts.null()) {
    ZEROPLAN_CHECK(row.starts >= launch.arg_count, "{} knows no starts", row.name);
    for (; launch.arg_count < row.starts; ++launch.arg_count) program_.refs.push_back({});
    program_.refs.push_back(starts);
    ++launch.arg_count;
  }
  Push(launch, stream);
}

Collective Emitter::Group(CollectiveKind kind, RankAxis axis, Dtype dtype,
                          std::span<const Segment> segments) {
  Collective collective{kind, dtype};
  collective.first_segment = static_cast<uint32_t>(program_.segments.size());
  collective.segment_count = static_cast<uint32_t>(segments.size());
  collective.axis = program_.axes().Named(axis);
  program_.segments.insert(program_.segments.end(), segments.begin(), segments.end());
  return collective;
}

void Emitter::Collect(CollectiveKind kind, RankAxis axis, Dtype dtype,
                      std::span<const Segment> segments, Stream stream) {
  Push(Group(kind, axis, dtype, segments), stream);
}

void Emitter::SumScalars(const Ref& scalars) {
  const Segment segment{scalars, scalars};
  Collective sum = Group(CollectiveKind::kAllReduce, RankAxis::kAll, Dtype::kF64, {&segment, 1});
  sum.scalar = true;
  Push(sum, Stream::kReduce);
}

void Emitter::CopyTo(const Ref& src, const Ref& dst) {
  const bool from_device = program_.buffers[src.buffer].space == Space::kDevice;
  const bool to_device = program_.buffers[dst.buffer].space == Space::kDevice;
  CopyTo(src, dst,
         from_device && to_device ? Stream::kCompute
         : to_device              ? Stream::kHostToDevice
         : from_device            ? Stream::kDeviceToHost
                                  : Stream::kHost);
}

void Emitter::CopyTo(const Ref& src, const Ref& dst, Stream stream) {
  Push(Copy{src, dst}, stream);
}

void Emitter::Swap(bool write, const Ref& host, const Ref& file) {
  FileIo io{write};
  io.host = host;
  io.file = file;
  Push(io, io.stream());
}

void Emitter::Checkpoint(bool write, const Ref& host, int unit, StateKind state, uint64_t begin,
                         uint64_t count) {
  FileIo io{write, FileTarget::kCheckpoint};
  io.host = host;
  io.unit = unit;
  io.state = state;
  io.begin = begin;
  io.count = count;
  Push(io, io.stream());
}

void Emitter::Release(BufferId buffer) { Push(Free{buffer}, Stream::kCompute); }

void RenameActivations(Program& program, const Instruction& instruction,
                       const std::vector<BufferId>& renamed) {
  const auto rename = [&](Ref& ref) {
    if (!ref.null() && ref.buffer < renamed.size() && renamed[ref.buffer] != kNoBuffer &&
        program.buffers[ref.buffer].role == Role::kActivation) {
      ref.buffer = renamed[ref.buffer];
    }
  };
  if (const auto* launch = std::get_if<LaunchKernel>(&instruction.op)) {
    for (uint32_t a = 0; a < launch->arg_count; ++a) rename(program.refs[launch->first_arg + a]);
  } else if (const auto* collective = std::get_if<Collective>(&instruction.op)) {
    for (uint32_t s = 0; s < collective->segment_count; ++s) {
      rename(program.segments[collective->first_segment + s].src);
    }
  }
}

Ref SlotRing::Next(uint64_t bytes) {
  const size_t slot = turn_++ % count_;
  if (slot == slots_.size()) {
    const BufferId id = AddBuffer(program_, kind_.label, kind_.role, kind_.dtype, 0);
    program_.buffers[id].space = kind_.space;
    program_.buffers[id].persistent = kind_.persistent;
    slots_.push_back(id);
  }
  Buffer& buffer = program_.buffers[slots_[slot]];
  buffer.bytes = std::max(buffer.bytes, bytes);
  return {slots_[slot], 0, bytes, 0};
}

}  // namespace zeroplan
