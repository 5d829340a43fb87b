// The communicators of a program's collectives, and the bytes that the collectives send.
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

// The communicators of the collectives in all sections, in ascending order. One rank needs none;
// stage 0, which gathers nothing, needs that of `reduce`; otherwise pure ZeRO needs those of
// `gather` and `reduce` over all ranks.
std::vector<CommunicatorKey> CommunicatorsOf(const Program& program);
// The communicators that run an all-to-all: their ranks send to one another directly.
std::vector<CommunicatorKey> ExchangingCommunicators(const Program& program);

// ---- bytes sent on a ring: the usual accounting of communication volume ----

// The number of rounds on a ring: an all-reduce is a reduce-scatter and an all-gather.
constexpr int RingRounds(CollectiveKind kind) { return kind == CollectiveKind::kAllReduce ? 2 : 1; }

// Bytes that one of `ranks` ranks sends on a ring for a collective over `full_bytes` (the bytes
// that all ranks hold together, or one rank's whole input of an all-reduce): n(N-1)/N, twice for an
// all-reduce. Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for
// clusters of workstations". A broadcast by each owner counts as the all-gather that it is
// equivalent to, a reduction to each owner as the reduce-scatter, the mean over ranks. In an
// all-to-all a rank sends all parts but its own directly to their receivers: as many bytes.
uint64_t RingSentBytes(CollectiveKind kind, uint64_t full_bytes, int ranks);
// The same for estimates whose bytes need not divide into whole parts.
double RingSentBytes(CollectiveKind kind, double full_bytes, int ranks);

// Full bytes of a collective: the bytes that all ranks hold together, or one rank's whole input of
// an all-reduce; of one segment, and of all segments.
uint64_t SegmentFullBytes(CollectiveKind kind, const Segment& segment);
uint64_t CollectiveFullBytes(const Program& program, const Collective& collective);
// Bytes that one rank sends for the collective on a ring of its axis.
uint64_t RingSentBytes(const Program& program, const Collective& collective);

}  // namespace zeroplan
