// How parameters lie in memory: flat units, and each rank's shard of them.
//
// A unit is a run of tensors of one layer, flattened in table order; each tensor starts at a
// multiple of kShardAlignElements, and the unit is padded so that as many equal shards as the shard
// axis has ranks cover it, of a multiple of kShardAlignElements. Gradients, master weights and Adam
// states of a unit use the same element positions, whatever their dtype. A rank's shard is elements
// [s * shard_elements, (s+1) * shard_elements), s its coordinate along the shard axis. Where shard
// groups partition states among one another (ZeroConfig::across_stage), a shard is cut once more
// into as many slices as the replica axis has ranks, and a rank owns the states of slice r of its
// shard, r its coordinate along the replica axis; else those of its shard.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/dynamic8.h"
#include "core/config/zero_config.h"
#include "core/model/param_table.h"

namespace zeroplan {

// 64 elements: 128 bytes in 16 bit, 256 in fp32.
inline constexpr uint64_t kShardAlignElements = 64;
// The same of units in NF4: tensors start with a block, and 8 blocks are a multiple of 128 bytes.
inline constexpr uint64_t kNf4AlignElements = DtypeElements(Dtype::kNf4);
inline constexpr uint64_t kNf4ShardAlignElements = 8 * kNf4AlignElements;
// What parts of a unit are multiples of where collectives send them as blocks of integers.
inline constexpr uint64_t kSentBlockElements = DtypeElements(Dtype::kInt8Blocks);

struct TensorSlot {
  int tensor;       // index into ParamLayout::tensors
  uint64_t offset;  // first element within the unit
  uint64_t elements;
};

struct Unit {
  int layer;               // as ParamTensor::layer
  bool persistent;         // stage 3: kept whole on every rank (persistence threshold)
  bool trainable = true;   // its tensors are; else there are parameters alone
  bool quantized = false;  // its parameters are kept in NF4 (ParamRow::quantized)
  bool in_blocks = false;  // its moments are kept in blocks of eight bits
  std::vector<TensorSlot> slots;
  uint64_t elements = 0;  // up to the end of the last tensor, alignment between tensors included
  uint64_t param_elements = 0;  // sum of the tensors alone
  uint64_t shard_elements = 0;
  uint64_t padded_elements = 0;  // shard_elements * shards
  uint64_t slices = 1;           // as ParamLayout::slices

  // Of what a rank owns the states of.
  uint64_t owned_elements() const { return shard_elements / slices; }
  // What its parameters are kept in, where `compute` is the dtype of the others.
  Dtype ParamDtype(Dtype compute) const { return quantized ? Dtype::kNf4 : compute; }
  // What its tensors start at multiples of.
  uint64_t align_elements() const {
    return quantized ? kNf4AlignElements : in_blocks ? kDynamic8Group : kShardAlignElements;
  }
};

struct ParamLayout {
  std::shared_ptr<const std::vector<ParamTensor>> tensors;
  // Forward order: embeddings, layers, final norm; of a layer what is persistent first, and of that
  // what is trained; last what is quantized.
  std::vector<Unit> units;
  struct Place {
    int unit;
    int slot;
  };
  std::vector<Place> place;  // by tensor index
  // What is kept of each state that is trained, by StateKind; moments in blocks (kDynamic8) make
  // tensors start at multiples of a group's elements, and what a rank owns a multiple of a block's.
  std::array<Dtype, 3> states = {Dtype::kF32, Dtype::kF32, Dtype::kF32};
  uint64_t shards = 1;  // ranks of the shard axis, which share a unit: 1 at stage 0
  uint64_t slices = 1;  // parts of a shard by whose states they are; 1: every replica's

  // Parts of a unit by who owns their states, in order of elements, and the one that a rank owns.
  uint64_t owners() const { return shards * slices; }
  uint64_t OwnerOf(int rank) const {
    const uint64_t at = static_cast<uint64_t>(rank);
    return at % shards * slices + (slices > 1 ? at / shards : 0);
  }
  // False for the second and later replicas of an owner.
  bool FirstOwner(int rank) const { return slices > 1 || static_cast<uint64_t>(rank) < shards; }

  uint64_t param_elements() const;
  uint64_t persistent_elements() const;  // the tensors' own elements in persistent units
  std::map<int, uint64_t> grad_elements_by_layer() const;  // padded, of all that a layer trains
};

// Elements of a unit's gradient that persist on a rank at stages 2 and 3: its shard, or what it
// owns of that where every micro-step's are reduced over the shard groups.
uint64_t GradShardElements(const TrainSetup& setup, const Unit& unit);

// Stage 0: no sharding (shard == unit). Stage 3: tensors within the persistence limits form units
// of their own, and so do the frozen vectors of a model in NF4. So do, at any stage, those that are
// not trained, and of these those that are quantized. Throws Error(kUsage) on overflow.
ParamLayout BuildParamLayout(std::shared_ptr<const std::vector<ParamTensor>> tensors,
                             const ZeroConfig& zero, int world_size,
                             const PrecisionConfig& precision = {});

}  // namespace zeroplan
