// Step programs of a few instructions, put together by hand: what the engine does with each of them
// can be worked out on paper.
//
// Values enter through the token batch, whose 32-bit words hold the bits of floats, so that every
// rank and micro-step can have its own.
#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "core/base/units.h"
#include "core/program/program.h"
#include "core/program/step_state.h"
#include "executor/engine/engine.h"

namespace zeroplan {

class TinyProgram {
 public:
  // A batch is one sequence of `seq_len` words and as many targets.
  explicit TinyProgram(int world_size, int64_t seq_len = 4, int64_t grad_accum = 1) {
    program_.setup.batch = {1, grad_accum, world_size, seq_len};
    program_.layout.shards = static_cast<uint64_t>(world_size);
    program_.state_buffer = Add(Space::kDevice, sizeof(StepState), Dtype::kU8);
    program_.state_host_buffer = Add(Space::kPinned, sizeof(StepState), Dtype::kU8);
    program_.tokens_host_buffer =
        Add(Space::kPinned, static_cast<uint64_t>(seq_len) * 8, Dtype::kI32);
  }

  const Program& program() const { return program_; }
  Program& program() { return program_; }

  // Buffers follow each other at multiples of 128 bytes.
  BufferId Add(Space space, uint64_t bytes, Dtype dtype = Dtype::kF32, bool persistent = true) {
    uint64_t& end = program_.arena_bytes[static_cast<size_t>(space)];
    Buffer buffer;
    buffer.bytes = bytes;
    buffer.offset = AlignUp(end, 128);
    buffer.label = "tiny";
    buffer.space = space;
    buffer.dtype = dtype;
    buffer.persistent = persistent;
    end = buffer.offset + bytes;
    program_.buffers.push_back(buffer);
    return static_cast<BufferId>(program_.buffers.size() - 1);
  }
  // A second buffer at the place of another.
  BufferId AddAt(BufferId other, Dtype dtype, bool persistent = false) {
    Buffer buffer = program_.buffers[other];
    buffer.dtype = dtype;
    buffer.persistent = persistent;
    program_.buffers.push_back(buffer);
    return static_cast<BufferId>(program_.buffers.size() - 1);
  }
  BufferId Floats(uint64_t elements, Space space = Space::kDevice) {
    return Add(space, elements * 4);
  }

  Ref All(BufferId id) const { return {id, 0, program_.buffers[id].bytes, 0}; }
  // The first micro-step input words.
  Ref Inputs(uint64_t words) const { return {program_.tokens_host_buffer, 0, words * 4, 0}; }

  // Instructions go to the end of the current section.
  TinyProgram& In(Section section) {
    section_ = section;
    return *this;
  }
  TinyProgram& When(uint8_t when) {
    when_ = when;
    return *this;
  }
  TinyProgram& On(Stream stream) {
    stream_ = stream;
    return *this;
  }
  TinyProgram& Emit(Op op) {
    program_.section(section_).push_back({op, stream_, when_});
    return *this;
  }
  TinyProgram& Launch(KernelId kernel, std::initializer_list<Ref> args, KernelDims dims,
                      uint8_t flags = kNoFlags) {
    const auto first = static_cast<uint32_t>(program_.refs.size());
    program_.refs.insert(program_.refs.end(), args);
    return Emit(LaunchKernel{kernel, flags, static_cast<uint16_t>(args.size()), first, dims});
  }
  TinyProgram& Fill(Ref dst) {
    return Launch(KernelId::kFill, {dst}, {static_cast<int64_t>(dst.bytes)});
  }
  TinyProgram& AddTo(Ref src, Ref dst) {
    return Launch(KernelId::kConvert, {src, dst}, {static_cast<int64_t>(src.bytes / 4)},
                  kAccumulate);
  }
  TinyProgram& CopyTo(Ref src, Ref dst) { return Emit(Copy{src, dst}); }
  TinyProgram& Communicate(CollectiveKind kind, Segment segment, bool scalar = false,
                           Dtype dtype = Dtype::kF32) {
    const auto first = static_cast<uint32_t>(program_.segments.size());
    program_.segments.push_back(segment);
    return Emit(Collective{kind, dtype, first, 1, scalar});
  }
  EventId NewEvent() { return program_.event_count++; }

 private:
  Program program_;
  Section section_ = Section::kMicroStep;
  uint8_t when_ = kEvery;
  Stream stream_ = Stream::kCompute;
};

inline int32_t FloatWord(float value) { return std::bit_cast<int32_t>(value); }

// Input word i of rank r and micro-step m is 100 r + 10 m + i + 1.
inline void FillCounting(int rank, int64_t micro_step, std::span<int32_t> inputs,
                         std::span<int32_t> targets) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] = FloatWord(static_cast<float>(100 * rank) + static_cast<float>(10 * micro_step) +
                          static_cast<float>(i + 1));
    targets[i] = static_cast<int32_t>(i);
  }
}

inline std::vector<float> PeekFloats(const Engine& engine, int rank, BufferId buffer) {
  const std::span<const std::byte> bytes = engine.Peek(rank, buffer);
  const auto* values = reinterpret_cast<const float*>(bytes.data());
  return {values, values + bytes.size() / 4};
}

}  // namespace zeroplan
