// Seconds of a collective, alone on its links.
//
// One node: rings, in the cheapest of NCCL's three protocols (share of the link, seconds a step):
//
//   t = max(floor, base + steps * step + (sent / link + part * copy) / share + pipeline *
//   sqrt(part))
//
// steps N-1, for an all-reduce 2(N-1); sent S(N-1)/N, for an all-reduce twice that; part S/N. copy:
// the rank's own part, which is copied or summed in its own memory, by operation. pipeline: a part
// is sent in chunks; few chunks fill the pipe slowly, many cost a step each, and the best count
// leaves 2*sqrt(step * part / link). floor: the cost of one call.
//
// Several nodes of n ranks (M of them), as NCCL runs them without reductions in switches:
//   ring          every byte of a ring leaves and enters each node once: the larger of
//                 sent / link and sent / network; M-1 of the N-1 steps (of each half) cross to
//                 another node and add a message each
//   tree          all-reduce only, the cheaper of the two: 2S over each link, 2S(M-1)/M through
//                 each node's adapters, 2*log2(M) messages. With network.reached_by_all_reduces
//                 and n > 1 a ring's bytes at that rate in both, because that rate was measured
//                 with whichever of the two NCCL chose
//   of the CPU    (executor/collectives/gloo) gathers as a ring. Reductions use the cheaper of two:
//                 to the owners directly, n*S(N-n)/N through each node's adapters and one message,
//                 or along the chain of ranks and back from the last, S and M messages. An
//                 all-reduce is a reduction and a gather
//   all-to-all    as a ring within nodes, and n*S(N-n)/N through each node's adapters: every rank
//                 sends its parts to their owners itself. Uses an all-gather's figures.
//
// Sources: Hockney 1994 (alpha + beta); Thakur, Rabenseifner and Gropp 2005, sections 4.1 to 4.5
// (ring and tree costs); Patarasuk and Yuan 2009 (the ring's bytes are least); Sanders, Speck and
// Traeff 2009 (pipelined chunks, double binary trees); NCCL's src/graph/tuning.cc (seconds a step
// by protocol, LL128's share of 120/128).
#pragma once

#include <array>
#include <vector>

#include "core/program/program.h"
#include "cost_models/cluster_shape.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

// Constants of a node's rings; fitted, or derived from the link.
struct RingConstants {
  double base_seconds = 0;
  double link_seconds_per_byte = 0;               // from one rank to the next
  std::array<double, 3> copy_seconds_per_byte{};  // by CollectiveOp, for the rank's own part
  double pipeline_seconds_per_root_byte = 0;
  std::array<double, 3> floor_seconds{};  // by CollectiveOp
  // NCCL's protocols in use: those of NVLink, those of PCIe, or Simple alone, whose steps may then
  // be longer than in NCCL's table.
  bool nvlink = true, simple_only = false;
  double longer_step_seconds = 0;
};

// The deviation of a measured row from the formula beyond 10 %, as a factor.
struct RowCorrection {
  CollectiveOp op;
  int world_size;
  double log2_bytes, log_factor;
};

// Without rows: derived from the link, no corrections, errors 0. The errors are relative errors of
// the formula alone; with corrections every row is met within 10 %.
struct RingFit : RingConstants {
  std::vector<RowCorrection> corrections;  // empty if all rows are within 10 %
  double median_error = 0, worst_error = 0;
};
// Constants that the rows do not determine (links and own parts of one group size, operations
// without rows) stay near the values derived from the rows' own link rate. Throws Error(kUsage) if
// no row determines that rate.
RingFit FitRings(const HardwareProfile& profile, int ranks_per_node);
// Seconds without the floor.
double RingSeconds(const RingConstants& rings, CollectiveOp op, double full_bytes, int ranks);

// The time of kernels on the slowest rank of several nodes over that on the slowest of one node,
// the basis of a node's figures: GPUs of one kind differ in speed, and every collective waits for
// the slowest. 1 on one node.
double SlowestRank(const ClusterShape& shape);

class CollectiveCost {
 public:
  // Throws Error(kUsage) if the shape has several nodes and the profile no network.
  // `gpu_link_scale`: multiplies the speed of the node's links.
  CollectiveCost(const HardwareProfile& profile, const ClusterShape& shape,
                 double gpu_link_scale = 1);

  // `full_bytes` as in CollectiveTime; `segments` of one group: the host issues them one by one
  // while the links work, so the longer of the two counts.
  double Seconds(CollectiveOp op, double full_bytes, size_t segments = 1) const;
  // Over the ranks of its axis, while all groups of the axis run it concurrently.
  double Seconds(const Program& program, const Collective& collective) const;
  // The costs of one group of `axis`, with its share of the resources that groups have in common.
  CollectiveCost Over(const RankAxes& axes, RankAxis axis) const;
  // The costs of an all-to-all, returned by Seconds for an all-gather.
  CollectiveCost ForAllToAll() const;

  // A lower bound on Seconds() whose seconds per byte never rise with the bytes, as corrections by
  // measured rows may.
  double LeastSeconds(CollectiveOp op, double full_bytes) const;

  // Upper limit of bytes sent by one rank (RingSentBytes) over Seconds().
  double BytesPerSecond() const;

 private:
  double WithinNode(CollectiveOp op, double full_bytes) const;
  double FlatSeconds(CollectiveOp op, double full_bytes) const;
  double CpuReductionSeconds(double full_bytes) const;
  double TreeSeconds(double full_bytes) const;
  bool AllReducesMeasured() const { return by_all_reduces_ > 0 && ranks_per_node_ > 1; }

  RingConstants rings_;
  std::vector<RowCorrection> corrections_;
  int ranks_ = 1, ranks_per_node_ = 1, nodes_ = 1;
  bool cpu_ = false;
  double network_seconds_per_byte_ = 0;  // all adapters of a node, each direction
  double by_groups_ = 1;                 // slowdown if several groups share them
  // Factor on a ring's bytes in all-reduces of nodes with several ranks; 0: not measured.
  double by_all_reduces_ = 0;
  double message_seconds_ = 0;  // between two nodes
};

// Standard deviation of the speed of GPUs of one kind, as a share: fitted to the slowdown of
// published runs from one node to 128 (docs/cost-model.md). Sinha et al., "Not All GPUs Are Created
// Equal", SC 2022, measured a spread of 8 % on average between a cluster's fast and slow GPUs.
inline constexpr double kGpuSpread = 0.025;

}  // namespace zeroplan
