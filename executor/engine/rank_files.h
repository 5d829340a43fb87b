// A rank's accesses to files: its swap file, and the shards that checkpoints read and write.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "core/program/program.h"
#include "executor/checkpoint/state_io.h"
#include "executor/device/swap_file.h"
#include "executor/engine/resolve.h"

namespace zeroplan {

// ---- a rank's shards between checkpoints, which know tensors, and memory, which knows units ----

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

class RankFiles {
 public:
  // `program` and `swap` outlive it.
  RankFiles(const Program& program, int rank, const SwapFile& swap)
      : program_(program), rank_(rank), swap_(swap) {}

  // Where checkpoint accesses go from now on. REQUIRES: no access is under way.
  void Bind(const CheckpointBinding& binding) { binding_ = binding; }

  // Moves bytes between the file and the host memory that `io` names. Any thread, one at a time.
  void Run(const FileIo& io, const ResolvedInstruction& resolved);

  // Bytes of the swap file that were moved since the last call.
  uint64_t TakeReadBytes() { return read_bytes_.exchange(0); }
  uint64_t TakeWrittenBytes() { return written_bytes_.exchange(0); }

 private:
  void RunSwap(const FileIo& io, const ResolvedInstruction& resolved);

  const Program& program_;
  const int rank_;
  const SwapFile& swap_;
  CheckpointBinding binding_;
  // A thread of the host may count while another takes.
  std::atomic<uint64_t> read_bytes_{0}, written_bytes_{0};
};

}  // namespace zeroplan
