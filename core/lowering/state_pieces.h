// How a rank's optimizer states are cut into pieces, and where each of them lives. Follows from the
// layout and the setup alone.
//
// A rank's shard of a unit is cut into pieces: [0, h) offloaded (host or swap file), [h, shard) on
// the device. h follows offload_optimizer.ratio over the whole model, last units first, as the
// backward pass finishes them first.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

enum class Home : uint8_t { kDevice, kHost, kFile };

struct StatePiece {
  int unit;
  uint64_t begin, count;  // elements within the rank's shard
  Home home;
  // False: of a unit that is not trained, which has parameters alone. `home` says where these are.
  bool trainable = true;

  bool on_device() const { return home == Home::kDevice; }
};

// Elements of each unit's shard whose states are offloaded.
std::vector<uint64_t> OffloadedElements(const Program& program);

// In update order: the order in which the next forward pass uses the units, but persistent units
// first of all; pieces of at most sub_group_elements where offloaded. Last come those of units that
// are not trained, small enough to pass through memory in fp32. `offloaded` by unit.
std::vector<StatePiece> StatePieces(const Program& program, const std::vector<uint64_t>& offloaded);

// Whether the piece's states pass through a slot in host memory, and whether its new parameters do
// on their way to `params`, where the rank's parameters of the unit live.
bool TakesStateSlot(const StatePiece& piece);
bool TakesParamSlot(const StatePiece& piece, const Buffer& params);

// True where states on the device need no master of their own: `params`, in fp32 on the device, are
// the master.
bool ParamsAreMaster(const Buffer& params);

}  // namespace zeroplan
