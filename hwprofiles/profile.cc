#include "hwprofiles/profile.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace zeroplan {

std::string_view FigureSourceName(FigureSource source) {
  switch (source) {
    case FigureSource::kDatasheet:
      return "datasheet";
    case FigureSource::kMeasured:
      return "measured";
    case FigureSource::kDerived:
      return "derived";
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

uint64_t RuntimeBytes(const HardwareProfile& profile, int world_size) {
  const auto& entries = profile.runtime;
  ZEROPLAN_CHECK(!entries.empty());
  const auto upper =
      std::find_if(entries.begin(), entries.end(),
                   [&](const RuntimeOverhead& entry) { return entry.world_size >= world_size; });
  if (upper == entries.begin()) return static_cast<uint64_t>(upper->bytes.value);
  if (upper == entries.end()) return static_cast<uint64_t>(entries.back().bytes.value);
  const auto lower = upper - 1;
  const double span = std::log2(upper->world_size) - std::log2(lower->world_size);
  const double t = (std::log2(world_size) - std::log2(lower->world_size)) / span;
  return static_cast<uint64_t>(lower->bytes.value + t * (upper->bytes.value - lower->bytes.value));
}

Dtype DefaultDtype(const HardwareProfile& profile) {
  return profile.gpu.bf16 ? Dtype::kBF16 : Dtype::kF16;
}

}  // namespace zeroplan
