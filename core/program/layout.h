// How parameters lie in memory: flat units, and each rank's shard of them.
//
// A unit is a run of tensors of one layer, flattened in table order; each tensor starts at a
// multiple of kShardAlignElements, and the unit is padded so that world_size equal shards of a
// multiple of kShardAlignElements cover it. Gradients, master weights and Adam states of a unit use
// the same element positions, whatever their dtype. Rank r owns elements [r * shard_elements, (r+1)
// * shard_elements).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/config/zero_config.h"
#include "core/model/param_table.h"

namespace zeroplan {

// 64 elements: 128 bytes in 16 bit, 256 in fp32.
inline constexpr uint64_t kShardAlignElements = 64;

struct TensorSlot {
  int tensor;       // index into ParamLayout::tensors
  uint64_t offset;  // first element within the unit
  uint64_t elements;
};

struct Unit {
  int layer;        // as ParamTensor::layer
  bool persistent;  // stage 3: kept whole on every rank (persistence threshold)
  std::vector<TensorSlot> slots;
  uint64_t elements = 0;  // up to the end of the last tensor, alignment between tensors included
  uint64_t param_elements = 0;  // sum of the tensors alone
  uint64_t shard_elements = 0;
  uint64_t padded_elements = 0;  // shard_elements * world size
};

struct ParamLayout {
  std::shared_ptr<const std::vector<ParamTensor>> tensors;
  std::vector<Unit>
      units;  // forward order: embeddings, layers, final norm; persistent part of a layer first
  struct Place {
    int unit;
    int slot;
  };
  std::vector<Place> place;  // by tensor index
  uint64_t world_size = 1;   // ranks that share a unit: 1 at stage 0

  uint64_t param_elements() const;
  uint64_t persistent_elements() const;  // the tensors' own elements in persistent units
  std::map<int, uint64_t> padded_elements_by_layer() const;  // of all units of a layer
};

// Stage 0: no sharding (shard == unit). Stage 3: tensors within the persistence limits form units
// of their own. Throws Error(kUsage) on overflow.
ParamLayout BuildParamLayout(std::shared_ptr<const std::vector<ParamTensor>> tensors,
                             const ZeroConfig& zero, int world_size);

}  // namespace zeroplan
