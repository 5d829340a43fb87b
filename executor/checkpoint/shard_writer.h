// Writes one owner's file of a checkpoint: its parts of master weights and Adam states, cut at the
// boundaries of tensors.
#pragma once

#include <cstddef>
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
#include "executor/checkpoint/stored_state.h"

namespace zeroplan {

// The states that a checkpoint holds for a tensor; for a tensor that is not trained, only its
// values. `adapted`: the table has adapters. Tensors that are not trained are then in the files of
// the base, or of the adapter that a run continues from, and a checkpoint holds nothing of them.
std::span<const StateKind> SavedStates(const ParamTensor& tensor, bool adapted);
bool HoldsAdapters(std::span<const ParamTensor> table);

// Bytes of each shard file of a checkpoint, by owner.
std::vector<uint64_t> ShardFileBytes(const ParamLayout& layout);

// The elements of one entry that were written so far; ranges may be added in any order.
class WrittenRanges {
 public:
  // Adds a range. Returns false if part of it was added before.
  bool Add(uint64_t begin, uint64_t count);
  // True if [begin, begin + count) is exactly the range that was added.
  bool Are(uint64_t begin, uint64_t count) const;

 private:
  std::vector<std::pair<uint64_t, uint64_t>> ranges_;  // [begin, end), sorted, merged
};

// Layout and owner alone determine the position of each value, so values are written in place, in
// any order and in pieces of any size. Only 8-bit moments must be written in whole groups.
class ShardWriter : public StateSink {
 public:
  // Writes FOLDER/rank-0000.safetensors of that owner (ParamLayout::OwnerOf). The header contains
  // the folder's name, which differs for every save, so that files of two saves cannot be confused.
  // Throws Error(kRuntime) if the disk has no room. REQUIRES: `layout` outlives the writer, 0 <=
  // owner < layout.owners().
  ShardWriter(const std::filesystem::path& folder, const ParamLayout& layout, int owner,
              IoHook* hook = nullptr);

  // Stores `values` in the layout's dtype (stored_state.h), without loss if the run keeps states in
  // that dtype. REQUIRES: the range lies within the owner's part and has not been written before;
  // for 8-bit states it begins and ends at a multiple of kDynamic8Group or at an end of the owner's
  // part.
  void Write(const TensorRange& range, std::span<const float> values) override;
  // Syncs and closes the file. REQUIRES: everything was written.
  void Finish();

  // The file's entry in meta.json.
  CheckpointFile Describe() const;

 private:
  struct Entry {
    uint64_t begin = 0;
    uint64_t count = 0;  // 0: the owner has no part of the tensor
    Dtype dtype = Dtype::kF32;
    size_t index = 0;  // the entry's place in the file; its scales have the next place
    WrittenRanges written;
  };
  Entry& EntryOf(int tensor, StateKind state);
  void Store(size_t index, uint64_t begin, std::span<const std::byte> stored);

  const ParamLayout& layout_;
  int owner_;
  std::vector<Entry> entries_;  // by tensor and state
  SafetensorsWriter file_;
  std::vector<std::vector<uint64_t>> checksums_;  // by entry of the file
};

// Below: the elements of tensors that an owner has.

// Elements [begin, begin + count) of a tensor, count > 0.
struct ShardRange {
  int tensor = 0;
  uint64_t begin = 0;
  uint64_t count = 0;
};

// The parts of tensors in the owner's part of every unit, without padding; at most one per tensor.
// The ranges of all owners cover every tensor once. REQUIRES: 0 <= owner < layout.owners().
std::vector<ShardRange> OwnerRanges(const ParamLayout& layout, int owner);

// Below: checksums that reveal changes to saved state.

// Elements of an entry that one checksum covers: 16 MiB of fp32.
inline constexpr uint64_t kChecksumElements = uint64_t{1} << 22;

inline uint64_t ChecksumCount(uint64_t elements) {
  return (elements + kChecksumElements - 1) / kChecksumElements;
}

// The checksum of `stored`, whose elements have `element_bytes` bytes each (1, 2 or 4) and begin at
// element `begin` of their entry:
//
//   sum over i of key(i) * bits(i)   modulo 2^64, every key odd and made from its index alone
//
// The checksums of parts can be added in any order. One changed element always changes the sum,
// because an odd key has an inverse; several changes cancel out once in 2^64. Protects against
// accidents, not malice.
uint64_t StateChecksum(uint64_t begin, std::span<const std::byte> stored, size_t element_bytes);

// Adds elements, the first being element `begin`, to the checksums of an entry's chunks.
void AddToChecksums(uint64_t begin, std::span<const std::byte> stored, size_t element_bytes,
                    std::span<uint64_t> sums);

}  // namespace zeroplan
