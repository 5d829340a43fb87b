// Which communicators a program's collectives need, and what they send.
#pragma once

#include <compare>
#include <cstdint>
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
// Those of them that have an all-to-all, whose ranks send to one another directly.
std::vector<CommunicatorKey> ExchangingCommunicators(const Program& program);

// ---- what a collective sends on a ring: the usual accounting of communication volume ----

// How often a ring passes everything on: an all-reduce is a reduce-scatter and an all-gather.
constexpr int RingRounds(CollectiveKind kind) { return kind == CollectiveKind::kAllReduce ? 2 : 1; }

// Bytes that one of `ranks` ranks sends on a ring for a collective over `full_bytes` (what all
// ranks hold together, or one rank's whole input of an all-reduce): n(N-1)/N, twice for an
// all-reduce. Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for
// clusters of workstations". A broadcast by each owner and a reduction to each owner count as the
// all-gather and the reduce-scatter that they spell out, the mean over ranks. In an all-to-all a
// rank sends all parts but its own, to whoever they are for: as many bytes.
uint64_t RingSentBytes(CollectiveKind kind, uint64_t full_bytes, int ranks);
// The same for estimates of bytes that need not divide into whole parts.
double RingSentBytes(CollectiveKind kind, double full_bytes, int ranks);

// What a collective is over: what all ranks hold together, or one rank's whole input of an
// all-reduce; of one segment, and of all of them.
uint64_t SegmentFullBytes(CollectiveKind kind, const Segment& segment);
uint64_t CollectiveFullBytes(const Program& program, const Collective& collective);
// What one rank sends for it on a ring of its axis.
uint64_t RingSentBytes(const Program& program, const Collective& collective);

}  // namespace zeroplan
