#include "core/program/collectives.h"

#include <algorithm>
#include <array>

namespace zeroplan {

namespace {

// Those of the collectives for which `holds` is true, in ascending order.
template <typename Holds>
std::vector<CommunicatorKey> CommunicatorsWhere(const Program& program, const Holds& holds) {
  std::array<std::array<bool, kStreams>, kAxes> needed{};
  for (const std::vector<Instruction>& section : program.sections) {
    for (const Instruction& instruction : section) {
      const auto* collective = std::get_if<Collective>(&instruction.op);
      if (collective == nullptr || !holds(*collective)) continue;
      needed[static_cast<size_t>(collective->axis)][static_cast<size_t>(instruction.stream)] = true;
    }
  }
  std::vector<CommunicatorKey> keys;
  for (size_t axis = 0; axis < kAxes; ++axis) {
    for (size_t stream = 0; stream < kStreams; ++stream) {
      if (needed[axis][stream]) {
        keys.push_back({static_cast<RankAxis>(axis), static_cast<Stream>(stream)});
      }
    }
  }
  return keys;
}

}  // namespace

std::vector<CommunicatorKey> CommunicatorsOf(const Program& program) {
  return CommunicatorsWhere(program, [](const Collective&) { return true; });
}

std::vector<CommunicatorKey> ExchangingCommunicators(const Program& program) {
  return CommunicatorsWhere(
      program, [](const Collective& c) { return c.kind == CollectiveKind::kAllToAll; });
}

uint64_t RingSentBytes(CollectiveKind kind, uint64_t full_bytes, int ranks) {
  const uint64_t sent = full_bytes - full_bytes / static_cast<uint64_t>(ranks);
  return static_cast<uint64_t>(RingRounds(kind)) * sent;
}

double RingSentBytes(CollectiveKind kind, double full_bytes, int ranks) {
  return RingRounds(kind) * full_bytes * (ranks - 1) / ranks;
}

uint64_t SegmentFullBytes(CollectiveKind kind, const Segment& segment) {
  // A reduction to owners names the whole shard as its target, but sends only its range.
  return kind == CollectiveKind::kReduceToOwners ? segment.src.bytes
                                                 : std::max(segment.src.bytes, segment.dst.bytes);
}

uint64_t CollectiveFullBytes(const Program& program, const Collective& collective) {
  uint64_t full_bytes = 0;
  for (const Segment& segment : program.segs(collective)) {
    full_bytes += SegmentFullBytes(collective.kind, segment);
  }
  return full_bytes;
}

uint64_t RingSentBytes(const Program& program, const Collective& collective) {
  return RingSentBytes(collective.kind, CollectiveFullBytes(program, collective),
                       program.axes().Size(collective.axis));
}

}  // namespace zeroplan
