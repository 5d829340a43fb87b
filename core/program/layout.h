// The layout of parameters in memory: flat units, and each rank's shard of them.
//
// A unit is a run of tensors of one layer, flattened in table order. Each tensor starts at a
// multiple of kShardAlignElements. The unit is padded to equal shards, one for each rank of the
// shard axis, of a multiple of kShardAlignElements. Gradients, master weights and Adam states of a
// unit use the same element positions, whatever their dtype. A rank's shard is elements [s *
// shard_elements, (s+1) * shard_elements), s its coordinate along the shard axis. Where shard
// groups partition states among one another (ZeroConfig::across_stage), a shard is split once more
// into as many slices as the replica axis has ranks. Then a rank owns the states of slice r of its
// shard, r its coordinate along the replica axis; otherwise those of its shard.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/dynamic8.h"
#include "core/model/param_table.h"
#include "core/settings/zero_config.h"

namespace zeroplan {

// The states that an optimizer keeps of each parameter: the master weight, which it updates, and
// its moments, which it carries from step to step (AdamW's m and v).
enum class StateKind : uint8_t { kMaster, kFirst, kSecond };
inline constexpr std::array kStateKinds = {StateKind::kMaster, StateKind::kFirst,
                                           StateKind::kSecond};
inline constexpr std::array kMomentKinds = {StateKind::kFirst, StateKind::kSecond};
// "master", "adam_m", "adam_v": AdamW's names, which entries of checkpoint files have.
std::string_view StateKindName(StateKind kind);

// 64 elements: 128 bytes in 16 bit, 256 in fp32.
inline constexpr uint64_t kShardAlignElements = 64;
// The same for units in NF4: tensors start with a block, and 8 blocks are a multiple of 128 bytes.
inline constexpr uint64_t kNf4AlignElements = DtypeElements(Dtype::kNf4);
inline constexpr uint64_t kNf4ShardAlignElements = 8 * kNf4AlignElements;
// Alignment, in elements, of parts of a unit that collectives send as blocks of integers.
inline constexpr uint64_t kSentBlockElements = DtypeElements(Dtype::kInt8Blocks);

struct TensorSlot {
  int tensor;       // index into ParamLayout::tensors
  uint64_t offset;  // first element within the unit
  uint64_t elements;
};

struct Unit {
  int layer;               // same meaning as in ParamTensor
  bool persistent;         // stage 3: kept whole on every rank (persistence threshold)
  bool trainable = true;   // its tensors are trained; else it has parameters alone
  bool quantized = false;  // its parameters are stored in NF4 (ParamRow::quantized)
  bool in_blocks = false;  // its moments are stored in blocks of eight bits
  std::vector<TensorSlot> slots;
  uint64_t elements = 0;  // up to the end of the last tensor, alignment between tensors included
  uint64_t param_elements = 0;  // sum of the tensors alone
  uint64_t shard_elements = 0;
  uint64_t padded_elements = 0;  // shard_elements * shards
  uint64_t slices = 1;           // equals ParamLayout::slices

  // Elements whose states a rank owns.
  uint64_t owned_elements() const { return shard_elements / slices; }
  // The dtype of its parameters, if `compute` is the dtype of unquantized ones.
  Dtype ParamDtype(Dtype compute) const { return quantized ? Dtype::kNf4 : compute; }
  // The alignment of its tensors.
  uint64_t align_elements() const {
    return quantized ? kNf4AlignElements : in_blocks ? kDynamic8Group : kShardAlignElements;
  }
};

struct ParamLayout {
  std::shared_ptr<const std::vector<ParamTensor>> tensors;
  // Forward order: embeddings, layers, final norm. Within a layer: persistent units first, among
  // them trained ones first; experts' units after the others; quantized units last.
  std::vector<Unit> units;
  struct Place {
    int unit;
    int slot;
  };
  std::vector<Place> place;  // by tensor index
  // The dtype of each trained state, by StateKind. Moments in blocks (kDynamic8) align tensors to a
  // group's elements, and a rank's owned part to a block's.
  std::array<Dtype, kStateKinds.size()> states = {Dtype::kF32, Dtype::kF32, Dtype::kF32};
  uint64_t shards = 1;  // ranks of the shard axis, which share a unit: 1 at stage 0
  // parts of a shard, each with its own owner; 1: every replica owns the shard
  uint64_t slices = 1;

  // The number of parts of a unit with different owners, in order of elements, and the index of the
  // part that a rank owns.
  uint64_t owners() const { return shards * slices; }
  uint64_t OwnerOf(int rank) const {
    const uint64_t at = static_cast<uint64_t>(rank);
    return at % shards * slices + (slices > 1 ? at / shards : 0);
  }
  // False for the second and later replicas of an owner.
  bool FirstOwner(int rank) const { return slices > 1 || static_cast<uint64_t>(rank) < shards; }

  Dtype StateDtype(StateKind kind) const { return states[static_cast<size_t>(kind)]; }

  uint64_t param_elements() const;
  uint64_t persistent_elements() const;  // in persistent units, alignment excluded
  // padded elements of all that a layer trains
  std::map<int, uint64_t> grad_elements_by_layer() const;
};

// Elements of a unit's gradient that persist on a rank at stages 2 and 3: its shard, or the part of
// the shard that it owns, if every micro-step's gradients are reduced over the shard groups.
uint64_t GradShardElements(const TrainSetup& setup, const Unit& unit);

// Stage 0: no sharding (shard == unit). Separate units are made of tensors within the persistence
// limits at stage 3, of the frozen vectors of a model in NF4 at stage 3, and at any stage of the
// experts, of tensors that are not trained, and among them of quantized ones. Throws Error(kUsage)
// on overflow.
ParamLayout BuildParamLayout(std::shared_ptr<const std::vector<ParamTensor>> tensors,
                             const ZeroConfig& zero, int world_size,
                             const PrecisionConfig& precision = {});

}  // namespace zeroplan
