#include "hwprofiles/profile.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "hwprofiles/sanity.h"

namespace zeroplan {

std::string_view FigureSourceName(FigureSource source) {
  switch (source) {
    case FigureSource::kDatasheet:
      return "datasheet";
    case FigureSource::kMeasured:
      return "measured";
    case FigureSource::kDerived:
      return "derived";
    case FigureSource::kGiven:
      return "given";
  }
  return "?";
}

std::string_view LinkKindName(LinkKind kind) {
  switch (kind) {
    case LinkKind::kNvlink:
      return "nvlink";
    case LinkKind::kPcie:
      return "pcie";
  }
  return "?";
}

std::string_view GemmKindName(GemmKind kind) {
  switch (kind) {
    case GemmKind::kForward:
      return "forward";
    case GemmKind::kData:
      return "data";
    case GemmKind::kWeight:
      return "weight";
  }
  return "?";
}

std::string_view CollectiveOpName(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllReduce:
      return "all_reduce";
    case CollectiveOp::kAllGather:
      return "all_gather";
    case CollectiveOp::kReduceScatter:
      return "reduce_scatter";
  }
  return "?";
}

namespace {

// The entry for `world_size`, by the rule of RuntimeBytes.
template <typename Of>
uint64_t OfWorldSize(const std::vector<RuntimeOverhead>& entries, int world_size, Of of) {
  ZEROPLAN_CHECK(!entries.empty());
  const auto upper =
      std::find_if(entries.begin(), entries.end(),
                   [&](const RuntimeOverhead& entry) { return entry.world_size >= world_size; });
  if (upper == entries.begin()) return static_cast<uint64_t>(of(*upper));
  if (upper == entries.end()) return static_cast<uint64_t>(of(entries.back()));
  const auto lower = upper - 1;
  const double span = std::log2(upper->world_size) - std::log2(lower->world_size);
  const double t = (std::log2(world_size) - std::log2(lower->world_size)) / span;
  return static_cast<uint64_t>(of(*lower) + t * (of(*upper) - of(*lower)));
}

}  // namespace

uint64_t RuntimeBytes(const HardwareProfile& profile, int world_size) {
  return OfWorldSize(profile.runtime, world_size,
                     [](const RuntimeOverhead& entry) { return entry.bytes.value; });
}

uint64_t CommunicatorBytes(const HardwareProfile& profile, int world_size) {
  return OfWorldSize(profile.runtime, world_size, [](const RuntimeOverhead& entry) {
    return entry.communicator ? entry.communicator->value : 0.0;
  });
}

Dtype DefaultDtype(const HardwareProfile& profile) {
  if (profile.gpu.architecture == kCpuArchitecture) return Dtype::kF32;
  return profile.gpu.bf16 ? Dtype::kBF16 : Dtype::kF16;
}

}  // namespace zeroplan
