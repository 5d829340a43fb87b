// Builds small programs by hand, for tests of what reads programs.
#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include "core/base/units.h"
#include "core/program/program.h"

namespace zeroplan {

class ProgramBuilder {
 public:
  explicit ProgramBuilder(int world_size = 1, int64_t grad_accum = 1) {
    program.setup.batch.world_size = world_size;
    program.layout.shards = static_cast<uint64_t>(world_size);
    program.setup.batch.grad_accum = grad_accum;
  }

  // Behind the buffers of that space so far. Persistent buffers first.
  BufferId Add(const char* label, uint64_t bytes, bool persistent, Space space = Space::kDevice,
               Dtype dtype = Dtype::kF32) {
    const auto s = static_cast<size_t>(space);
    Buffer buffer;
    buffer.label = label;
    buffer.bytes = bytes;
    buffer.offset = program.arena_bytes[s];
    buffer.space = space;
    buffer.dtype = dtype;
    buffer.persistent = persistent;
    program.arena_bytes[s] += AlignUp(bytes, space == Space::kFile ? 4096 : 256);
    if (persistent) program.persistent_bytes[s] = program.arena_bytes[s];
    program.buffers.push_back(buffer);
    return static_cast<BufferId>(program.buffers.size() - 1);
  }
  EventId Event() { return program.event_count++; }
  Ref All(BufferId id) const { return {id, 0, program.buffers[id].bytes, 0}; }

  ProgramBuilder& In(Section section) {
    section_ = section;
    return *this;
  }
  ProgramBuilder& On(Stream stream) {
    stream_ = stream;
    return *this;
  }
  ProgramBuilder& When(uint8_t when) {
    when_ = when;
    return *this;
  }

  ProgramBuilder& Launch(KernelId kernel, KernelDims dims, std::initializer_list<Ref> args,
                         uint8_t flags = kNoFlags) {
    LaunchKernel launch{kernel, flags, static_cast<uint16_t>(args.size()),
                        static_cast<uint32_t>(program.refs.size()), dims};
    program.refs.insert(program.refs.end(), args.begin(), args.end());
    return Push(launch);
  }
  ProgramBuilder& Fill(BufferId id) {
    return Launch(KernelId::kFill, {static_cast<int64_t>(program.buffers[id].bytes)}, {All(id)});
  }
  ProgramBuilder& Gelu(Ref from, Ref to) {
    return Launch(KernelId::kGeluForward, {static_cast<int64_t>(from.bytes / 4)}, {from, to});
  }
  ProgramBuilder& Collect(CollectiveKind kind, Segment segment, RankAxis axis = RankAxis::kAll) {
    Collective collective{kind, Dtype::kF32, static_cast<uint32_t>(program.segments.size()), 1};
    collective.axis = axis;
    program.segments.push_back(segment);
    return Push(collective);
  }
  ProgramBuilder& Move(Ref from, Ref to) { return Push(Copy{from, to}); }
  ProgramBuilder& File(bool write, Ref host, Ref file) {
    FileIo io{write};
    io.host = host;
    io.file = file;
    return Push(io);
  }
  ProgramBuilder& WriteMaster(Ref host, int unit) {
    FileIo io{true, FileTarget::kCheckpoint, host};
    io.unit = unit;
    io.count = host.bytes / 4;
    return Push(io);
  }
  ProgramBuilder& Make(BufferId id) { return Push(Alloc{id}); }
  ProgramBuilder& Drop(BufferId id) { return Push(Free{id}); }
  ProgramBuilder& Record(EventId event) { return Push(RecordEvent{event}); }
  ProgramBuilder& Wait(EventId event) { return Push(WaitEvent{event}); }

  Program program;

 private:
  ProgramBuilder& Push(Op op) {
    Instruction instruction{std::move(op)};
    instruction.stream = stream_;
    instruction.when = when_;
    program.section(section_).push_back(std::move(instruction));
    return *this;
  }

  Section section_ = Section::kInit;
  Stream stream_ = Stream::kCompute;
  uint8_t when_ = kEvery;
};

}  // namespace zeroplan
