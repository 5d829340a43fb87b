#include "core/lowering/state_pieces.h"

#include <algorithm>
#include <cmath>

#include "core/base/units.h"

namespace zeroplan {
namespace {

void AddFrozenPieces(const Program& p, std::vector<StatePiece>& pieces) {
  constexpr uint64_t kElementsAtOnce = 1 << 24;
  for (const Buffer& buffer : p.buffers) {
    const bool params = buffer.role == Role::kParamFull || buffer.role == Role::kParamShard;
    if (!params || !buffer.persistent) continue;
    const Unit& unit = p.layout.units[static_cast<size_t>(buffer.unit)];
    if (unit.trainable) continue;
    const Home home = buffer.space == Space::kDevice ? Home::kDevice : Home::kHost;
    for (uint64_t begin = 0; begin < unit.shard_elements; begin += kElementsAtOnce) {
      const uint64_t count = std::min(kElementsAtOnce, unit.shard_elements - begin);
      pieces.push_back({buffer.unit, begin, count, home, false});
    }
  }
}

}  // namespace

std::vector<uint64_t> OffloadedElements(const Program& p) {
  const auto& offload = p.setup.zero.offload_optimizer;
  std::vector<uint64_t> offloaded(p.layout.units.size(), 0);
  if (offload.device == OffloadDevice::kNone) return offloaded;
  uint64_t total = 0;
  for (const Unit& unit : p.layout.units) total += unit.trainable ? unit.shard_elements : 0;
  auto left = offload.ratio >= 1.0
                  ? total
                  : static_cast<uint64_t>(std::ceil(static_cast<double>(total) * offload.ratio));
  for (size_t u = offloaded.size(); u-- > 0;) {
    if (!p.layout.units[u].trainable) continue;
    const uint64_t shard = p.layout.units[u].shard_elements;
    offloaded[u] = std::min(shard, CeilDiv(left, kShardAlignElements) * kShardAlignElements);
    left -= std::min(left, shard);
  }
  return offloaded;
}

std::vector<StatePiece> StatePieces(const Program& p, const std::vector<uint64_t>& offloaded) {
  const ZeroConfig& zero = p.setup.zero;
  const Home away =
      zero.offload_optimizer.device == OffloadDevice::kNvme ? Home::kFile : Home::kHost;
  std::vector<StatePiece> pieces;
  // The many small persistent units come before all others: the next forward pass, which may begin
  // beside the update, wants some of them for its first layer; and staging slots, which are taken
  // in turn, all get pieces worth their size.
  for (const bool persistent : {true, false}) {
    for (size_t u = 0; u < offloaded.size(); ++u) {
      if (p.layout.units[u].persistent != persistent || !p.layout.units[u].trainable) continue;
      const int unit = static_cast<int>(u);
      const uint64_t shard = p.layout.units[u].shard_elements, h = offloaded[u];
      for (uint64_t begin = 0; begin < h; begin += zero.sub_group_elements) {
        pieces.push_back({unit, begin, std::min(zero.sub_group_elements, h - begin), away});
      }
      if (h < shard) pieces.push_back({unit, h, shard - h, Home::kDevice});
    }
  }
  AddFrozenPieces(p, pieces);
  return pieces;
}

bool TakesStateSlot(const StatePiece& piece) { return piece.home == Home::kFile; }

bool TakesParamSlot(const StatePiece& piece, const Buffer& params) {
  return params.space == Space::kFile || (!piece.on_device() && params.space == Space::kDevice);
}

bool ParamsAreMaster(const Buffer& params) {
  return params.dtype == Dtype::kF32 && params.space == Space::kDevice;
}

}  // namespace zeroplan
