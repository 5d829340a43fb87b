// One rank's file of a checkpoint: its shards of master weights and Adam states, cut at the borders
// of tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/program/layout.h"
#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/checkpoint/safetensors.h"
#include "executor/checkpoint/state_io.h"

namespace zeroplan {

// The states that a checkpoint holds of a tensor: of one that is not trained its values alone.
std::span<const StateKind> SavedStates(const ParamTensor& tensor);
// "transformer.wte.weight|adam_m|4096": elements from 4096 on. One-dimensional, F32.
std::string ShardEntryName(std::string_view tensor, StateKind state, uint64_t begin);

// Bytes of each shard file of a checkpoint, by rank.
std::vector<uint64_t> ShardFileBytes(const ParamLayout& layout);

// Elements seen so far of one entry; ranges may come in any order.
class WrittenRanges {
 public:
  // False if part of it was added before.
  bool Add(uint64_t begin, uint64_t count);
  // Whether [begin, begin + count) is all there is.
  bool Are(uint64_t begin, uint64_t count) const;

 private:
  std::vector<std::pair<uint64_t, uint64_t>> ranges_;  // [begin, end), sorted, merged
};

// What lies where follows from layout and rank alone, so values are written in place as they come,
// in any order and in pieces of any size.
class ShardWriter : public StateSink {
 public:
  // Writes FOLDER/rank-0000.safetensors of that rank; the folder's name, another one for every
  // save, goes into its header, so that no two saves' files can stand for each other. Throws
  // Error(kRuntime) if the disk has no room. REQUIRES: `layout` outlives the writer, 0 <= rank <
  // layout.shards.
  ShardWriter(const std::filesystem::path& folder, const ParamLayout& layout, int rank,
              IoHook* hook = nullptr);

  // REQUIRES: the range lies within the rank's shards and has not been written before.
  void Write(const TensorRange& range, std::span<const float> values) override;
  // Puts the file on disk. REQUIRES: everything was written.
  void Finish();

  // What meta.json says of the file.
  CheckpointFile Describe() const;

 private:
  struct Entry {
    uint64_t begin = 0;
    uint64_t count = 0;  // 0: the rank has no part of the tensor
    size_t index = 0;    // in the file
    WrittenRanges written;
    std::vector<uint64_t> checksums;
  };
  Entry& EntryOf(int tensor, StateKind state);

  const ParamLayout& layout_;
  int rank_;
  std::vector<Entry> entries_;  // by tensor and state
  SafetensorsWriter file_;
};

}  // namespace zeroplan
