// Moves a rank's shards between checkpoints, which know tensors, and memory, which knows units.
#pragma once

#include <cstdint>
#include <span>

#include "core/program/program.h"
#include "executor/checkpoint/state_io.h"

namespace zeroplan {

// Elements [begin, begin + count) of rank `rank`'s shard of a unit; padding reads as 0. `source`
// null: fresh states, all 0. REQUIRES: out.size() >= count.
void ReadShard(const ParamLayout& layout, const FileIo& io, int rank, const StateSource* source,
               std::span<float> out);

// Hands the tensors' part of the same range to `sink`.
void WriteShard(const ParamLayout& layout, const FileIo& io, int rank,
                std::span<const float> values, StateSink& sink);

// Where the checkpoint reads and writes of a section go.
struct CheckpointBinding {
  const StateSource* source = nullptr;
  bool with_optimizer = true;  // false: Adam states read as 0
  StateSink* sink = nullptr;
  bool later = false;  // nothing is written: RankRunner::WriteSaveCopy does
};

// Runs a checkpoint's FileIo on its staging memory, io.count floats. REQUIRES: `binding` has the
// source or sink that it needs.
void RunCheckpointIo(const Program& program, const FileIo& io, int rank,
                     const CheckpointBinding& binding, std::span<float> host);

}  // namespace zeroplan
