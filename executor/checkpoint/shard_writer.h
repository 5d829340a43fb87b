// One owner's file of a checkpoint: its parts of master weights and Adam states, cut at the borders
// of tensors.
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

// The states that a checkpoint holds of a tensor: of one that is not trained its values alone.
// `adapted`: the table has adapters; all that is not trained beside them is then in the files of
// the base, or of the adapter that a run goes on from, and a checkpoint holds nothing of it.
std::span<const StateKind> SavedStates(const ParamTensor& tensor, bool adapted);
bool HoldsAdapters(std::span<const ParamTensor> table);

// Bytes of each shard file of a checkpoint, by owner.
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

// What lies where follows from layout and owner alone, so values are written in place as they come,
// in any order and in pieces of any size, but for moments of eight bits in whole groups.
class ShardWriter : public StateSink {
 public:
  // Writes FOLDER/rank-0000.safetensors of that owner (ParamLayout::OwnerOf); the folder's name,
  // another one for every save, goes into its header, so that no two saves' files can stand for
  // each other. Throws Error(kRuntime) if the disk has no room. REQUIRES: `layout` outlives the
  // writer, 0 <= owner < layout.owners().
  ShardWriter(const std::filesystem::path& folder, const ParamLayout& layout, int owner,
              IoHook* hook = nullptr);

  // `values` are stored as the layout's dtype (stored_state.h), without a loss where the run keeps
  // that. REQUIRES: the range lies within what the owner has and has not been written before; of
  // eight bits it begins and ends at a multiple of kDynamic8Group, or with what the owner has.
  void Write(const TensorRange& range, std::span<const float> values) override;
  // Puts the file on disk. REQUIRES: everything was written.
  void Finish();

  // What meta.json says of the file.
  CheckpointFile Describe() const;

 private:
  struct Entry {
    uint64_t begin = 0;
    uint64_t count = 0;  // 0: the owner has no part of the tensor
    Dtype dtype = Dtype::kF32;
    size_t index = 0;  // in the file; scales come next
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

// Which elements of which tensors an owner has.

// Elements [begin, begin + count) of a tensor, count > 0.
struct ShardRange {
  int tensor = 0;
  uint64_t begin = 0;
  uint64_t count = 0;
};

// The parts of tensors in the owner's part of every unit, padding left out; at most one per tensor.
// The ranges of all owners cover every tensor once. REQUIRES: 0 <= owner < layout.owners().
std::vector<ShardRange> OwnerRanges(const ParamLayout& layout, int owner);

// Sums that tell saved state from what a disk or a hand has made of it.

// Elements of an entry that one sum stands for: 16 MiB of fp32.
inline constexpr uint64_t kChecksumElements = uint64_t{1} << 22;

inline uint64_t ChecksumCount(uint64_t elements) {
  return (elements + kChecksumElements - 1) / kChecksumElements;
}

// The checksum of `stored` elements of so many bytes each, 1, 2 or 4, that begin at element `begin`
// of their entry:
//
//   sum over i of key(i) * bits(i)   modulo 2^64, every key odd and made from its index alone
//
// so the sums of parts add up, in any order. One changed element always changes the sum, since an
// odd key has an inverse; several changes cancel out once in 2^64. Against accidents, not malice.
uint64_t StateChecksum(uint64_t begin, std::span<const std::byte> stored, size_t element_bytes);

// Adds elements that begin at element `begin` to the sums of an entry's chunks.
void AddToChecksums(uint64_t begin, std::span<const std::byte> stored, size_t element_bytes,
                    std::span<uint64_t> sums);

}  // namespace zeroplan
