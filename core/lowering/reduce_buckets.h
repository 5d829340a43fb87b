// Which gradients are reduced together.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

// Elements [begin, end) of a unit's gradient.
struct GradPiece {
  int unit;
  uint64_t begin, end;
  bool last_of_unit = true;         // no other piece of the unit is reduced later
  BufferId own_buffer = kNoBuffer;  // holds this piece alone; else it lies in the unit's buffer
};

// The buffer that a piece lies in (`whole`: the units' buffers), and the unit's element it begins
// with.
inline BufferId PieceBuffer(const GradPiece& piece, const std::vector<BufferId>& whole) {
  return piece.own_buffer != kNoBuffer ? piece.own_buffer : whole[static_cast<size_t>(piece.unit)];
}
inline uint64_t PieceBase(const GradPiece& piece) {
  return piece.own_buffer != kNoBuffer ? piece.begin : 0;
}

struct ReduceBucket {
  std::vector<GradPiece> pieces;
  size_t first_write = 0, last_write = 0;  // micro_step instructions that write its gradients
};

// In order of completion in `list` (section micro_step before reductions are inserted). Whole units
// are put together while they fit ReduceBucketElements; a larger unit is cut at tensors (a tensor
// is never cut), and so is every unit without contiguous_gradients.
std::vector<ReduceBucket> PlanReduceBuckets(const Program& program,
                                            const std::vector<Instruction>& list);

// Gives each piece of a cut unit a buffer of its own, so that no more than the bucket is held, and
// points the kernels at it. Units that are all-reduced stay whole: a rank needs the part that is
// its shard.
void GiveOwnBuffers(Program& program, const std::vector<Instruction>& list,
                    std::vector<ReduceBucket>& buckets);

}  // namespace zeroplan
