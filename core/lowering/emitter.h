// Appends instructions to a list and buffers to its program. Used by the lowering passes only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

// `space` and `memory_class` default to a transient device buffer.
BufferId AddBuffer(Program& program, const char* label, Role role, Dtype dtype, uint64_t bytes);

// The first buffer of that role, by unit, or kNoBuffer.
std::vector<BufferId> UnitBuffers(const Program& program, Role role);

inline Ref Whole(const Program& program, BufferId id) {
  return {id, 0, program.buffers[id].bytes, 0};
}

class Emitter {
 public:
  // `out` may be a section of `program` or a list that replaces one later. Keeps both references.
  Emitter(Program& program, std::vector<Instruction>& out) : program_(program), out_(out) {}

  // Tags that the next instructions carry.
  Emitter& Tag(Phase phase, int layer, uint8_t when = kEvery) {
    phase_ = phase;
    layer_ = static_cast<int16_t>(layer);
    when_ = when;
    return *this;
  }
  Emitter& When(uint8_t when) {
    when_ = when;
    return *this;
  }

  // Adds the workspace argument if the backend's library needs one, and the row's `starts` argument
  // if `starts` is not null.
  void Launch(KernelId kernel, const KernelDims& dims, uint8_t flags,
              std::initializer_list<Ref> args, Stream stream = Stream::kCompute,
              const KernelScalars& scalars = {}, const Ref& starts = {});
  void Collect(CollectiveKind kind, RankAxis axis, Dtype dtype, std::span<const Segment> segments,
               Stream stream);
  // Sums a block of scalars over all ranks, in place.
  void SumScalars(const Ref& scalars);
  // Copies on the stream that connects the two spaces.
  void CopyTo(const Ref& src, const Ref& dst);
  void CopyTo(const Ref& src, const Ref& dst, Stream stream);
  void Swap(bool write, const Ref& host, const Ref& file);
  void Checkpoint(bool write, const Ref& host, int unit, StateKind state, uint64_t begin,
                  uint64_t count);
  void Release(BufferId buffer);  // an explicit Free (insert_lifetimes adds the others)

 private:
  template <typename OneOp>
  void Push(const OneOp& op, Stream stream);
  Collective Group(CollectiveKind kind, RankAxis axis, Dtype dtype,
                   std::span<const Segment> segments);
  Program& program_;
  std::vector<Instruction>& out_;
  Phase phase_ = Phase::kInit;
  int16_t layer_ = -2;
  uint8_t when_ = kEvery;
};

// Replaces each activation buffer among the arguments of `instruction` by its entry in `renamed`.
// An entry kNoBuffer, or none, keeps the buffer. In a collective only the buffers that it reads are
// replaced.
void RenameActivations(Program& program, const Instruction& instruction,
                       const std::vector<BufferId>& renamed);

// ---- slots in host memory that transfers use in turn ----

// The space of host buffers: page-locked or not.
inline Space HostSpace(bool pinned) { return pinned ? Space::kPinned : Space::kPageable; }

// The properties shared by the slots of one ring.
struct SlotKind {
  const char* label;
  Role role;
  Dtype dtype;
  Space space;
  bool persistent;
};

// A ring of at most `count` slots. Each is added to the program at its first use, with the size of
// its largest use.
class SlotRing {
 public:
  // Keeps the reference.
  SlotRing(Program& program, const SlotKind& kind, int count)
      : program_(program), kind_(kind), count_(static_cast<size_t>(count)) {}

  // The first `bytes` bytes of the next slot of the ring.
  Ref Next(uint64_t bytes);

 private:
  Program& program_;
  const SlotKind kind_;
  const size_t count_;
  size_t turn_ = 0;
  std::vector<BufferId> slots_;
};

}  // namespace zeroplan
