// The communicators that a program needs.
#pragma once

#include <compare>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

// Ranks of one group of `axis` issue the collectives of `stream` through one communicator, in one
// order.
struct CommunicatorKey {
  RankAxis axis = RankAxis::kAll;
  Stream stream = Stream::kGather;

  friend auto operator<=>(const CommunicatorKey&, const CommunicatorKey&) = default;
};

// The communicators of the collectives in all sections, in ascending order. None for one rank; at
// stage 0, which gathers nothing, that of `reduce`; else of pure ZeRO those of `gather` and
// `reduce` over all ranks.
std::vector<CommunicatorKey> CommunicatorsOf(const Program& program);

}  // namespace zeroplan
