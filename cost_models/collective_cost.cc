#include "cost_models/collective_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/base/error.h"
#include "core/program/collectives.h"
#include "cost_models/calibration.h"
#include "cost_models/memory_cost.h"

namespace zeroplan {
namespace {

struct Protocol {
  double base_seconds;  // 0: the fitted one
  double nvlink_step_seconds, pcie_step_seconds;
  double share;    // of the link's bandwidth
  bool pipelined;  // in chunks large enough to matter
  bool on_pcie;    // NCCL uses LL128 on NVLink only
};
// Simple, LL128, LL. Steps and LL128's base: NCCL's tuning table. LL sends a flag with every 4
// bytes and synchronises by them: at most half of the link, 0.42 fitted on the H200.
constexpr std::array<Protocol, 3> kProtocols = {{{0, 3.4e-6, 5.7e-6, 1, true, true},
                                                 {14e-6, 1.9e-6, 2.5e-6, 120.0 / 128, true, false},
                                                 {6.6e-6, 0.6e-6, 1.0e-6, 0.42, false, true}}};

// For nodes without measurements, from the fit of the 8 x H200 node: its rings reach 0.83 of the
// link's datasheet bandwidth; the own part costs per byte so many times the HBM's time per byte
// (all-reduce, all-gather, reduce-scatter); a chunk costs 5.1 us; and the start and floors.
constexpr double kLinkShare = 0.83;
constexpr std::array<double, 3> kCopyPerHbm = {2.36, 3.50, 4.07};
constexpr double kChunkSeconds = 5.1e-6;
constexpr double kBaseSeconds = 2.8e-6;
constexpr std::array<double, 3> kFloorSeconds = {18.1e-6, 16.0e-6, 16.6e-6};
// Share of the adapters' bandwidth: 4096 bytes of payload a packet with some 70 of headers
// (InfiniBand architecture specification, volume 1) and the ring's own steps. Assumed, not measured
// here.
constexpr double kNetworkShare = 0.92;
// The host's part of a further segment of a group. On 2 H200 (NCCL 2.28, PyTorch's coalescing)
// groups of 1 to 64 segments over 256 MiB took the same time within 12 %, over 4 MiB 2.9 us
// (all-gather) and 3.6 us (reduce-scatter) more a segment: the segments share the links, but the
// host issues them one by one.
constexpr double kSegmentSeconds = 3.3e-6;

size_t Index(CollectiveOp op) { return static_cast<size_t>(op); }
CollectiveKind KindOf(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllReduce:
      return CollectiveKind::kAllReduce;
    case CollectiveOp::kAllGather:
      return CollectiveKind::kAllGather;
    case CollectiveOp::kReduceScatter:
      return CollectiveKind::kReduceScatter;
  }
  return CollectiveKind::kAllReduce;
}
int Rounds(CollectiveOp op) { return RingRounds(KindOf(op)); }
double Sent(CollectiveOp op, double full_bytes, int ranks) {
  return RingSentBytes(KindOf(op), full_bytes, ranks);
}

CollectiveOp OpOf(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return CollectiveOp::kAllReduce;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kBroadcast:
      return CollectiveOp::kAllGather;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kReduceToOwners:
      return CollectiveOp::kReduceScatter;
  }
  return CollectiveOp::kAllReduce;
}

double ProtocolSeconds(const RingConstants& rings, const Protocol& protocol, CollectiveOp op,
                       double full_bytes, int ranks) {
  const double part = full_bytes / ranks;
  const double base = protocol.base_seconds > 0 ? protocol.base_seconds : rings.base_seconds;
  const double step = rings.nvlink ? protocol.nvlink_step_seconds : protocol.pcie_step_seconds;
  const double moved = Sent(op, full_bytes, ranks) * rings.link_seconds_per_byte +
                       part * rings.copy_seconds_per_byte[Index(op)];
  return base + Rounds(op) * (ranks - 1) * step + moved / protocol.share +
         (protocol.pipelined ? rings.pipeline_seconds_per_root_byte * std::sqrt(part) : 0);
}

const Protocol& BestProtocol(const RingConstants& rings, CollectiveOp op, double full_bytes,
                             int ranks) {
  const Protocol* best = &kProtocols.front();
  double least = std::numeric_limits<double>::infinity();
  for (const Protocol& protocol : kProtocols) {
    if (!rings.nvlink && !protocol.on_pcie) continue;
    const double seconds = ProtocolSeconds(rings, protocol, op, full_bytes, ranks);
    if (seconds < least) least = seconds, best = &protocol;
  }
  return *best;
}

// One rank's link. Over PCIe every byte passes through host memory: each GPU sends and receives at
// once, all GPUs of the host share what it can copy both ways.
double LinkBytesPerSecond(const NodeProfile& node, int ranks_per_node) {
  const double link = kLinkShare * node.gpu_link.value;
  if (node.link_kind == LinkKind::kNvlink) return link;
  const double both = node.pcie.both_all ? std::min(node.pcie.both_single.value,
                                                    node.pcie.both_all->value / ranks_per_node)
                                         : node.pcie.both_single.value;
  return both > 0 ? std::min(link, both / 2) : link;
}

RingConstants DerivedRings(const HardwareProfile& profile, int ranks_per_node) {
  RingConstants rings;
  rings.nvlink = profile.node.link_kind == LinkKind::kNvlink;
  rings.base_seconds = kBaseSeconds;
  rings.link_seconds_per_byte = 1 / LinkBytesPerSecond(profile.node, ranks_per_node);
  for (size_t i = 0; i < 3; ++i) {
    rings.copy_seconds_per_byte[i] = kCopyPerHbm[i] / profile.gpu.hbm_bandwidth.value / kCopyShare;
  }
  rings.pipeline_seconds_per_root_byte = 2 * std::sqrt(kChunkSeconds * rings.link_seconds_per_byte);
  rings.floor_seconds = kFloorSeconds;
  return rings;
}

// The formula is linear once it is known which protocol each row ran in.
FitRow LinearRow(const CollectiveTime& row, const Protocol& protocol, bool nvlink) {
  const double part = row.bytes / row.world_size;
  const double step = nvlink ? protocol.nvlink_step_seconds : protocol.pcie_step_seconds;
  FitRow fit;
  fit.known_seconds = protocol.base_seconds + Rounds(row.op) * (row.world_size - 1) * step;
  fit.terms = {protocol.base_seconds > 0 ? 0.0 : 1.0,
               Sent(row.op, row.bytes, row.world_size) / protocol.share,
               0,
               0,
               0,
               std::sqrt(part)};
  fit.terms[2 + Index(row.op)] = part / protocol.share;
  fit.seconds = row.seconds;
  return fit;
}

void Solve(const std::vector<FitRow>& rows, RingConstants& rings) {
  const std::vector<double> fitted = FitRelative(rows);
  if (fitted[1] <= 0) return;  // rows too few to tell
  rings.base_seconds = fitted[0];
  rings.link_seconds_per_byte = fitted[1];
  for (size_t i = 0; i < 3; ++i) rings.copy_seconds_per_byte[i] = fitted[2 + i];
  rings.pipeline_seconds_per_root_byte = fitted[5];
}

}  // namespace

RingConstants FitRings(const HardwareProfile& profile, int ranks_per_node) {
  RingConstants rings = DerivedRings(profile, ranks_per_node);
  if (!profile.node.collectives || profile.node.collectives->rows.empty()) return rings;
  const std::vector<CollectiveTime>& rows = profile.node.collectives->rows;
  // Small ones cost what a call costs: the geometric mean of those up to 512 KiB.
  for (size_t op = 0; op < 3; ++op) {
    double sum = 0, count = 0;
    for (const CollectiveTime& row : rows) {
      if (Index(row.op) != op || row.bytes > 512 * 1024) continue;
      sum += std::log(row.seconds);
      ++count;
    }
    if (count > 0) rings.floor_seconds[op] = std::exp(sum / count);
  }
  // The constants decide the protocols and these the constants: four rounds settle it.
  for (int round = 0; round < 4; ++round) {
    std::vector<FitRow> fit;
    for (const CollectiveTime& row : rows) {
      if (row.seconds <= 1.15 * rings.floor_seconds[Index(row.op)]) continue;
      const Protocol& protocol = BestProtocol(rings, row.op, row.bytes, row.world_size);
      if (!protocol.pipelined) continue;  // LL's constants are not fitted
      fit.push_back(LinearRow(row, protocol, rings.nvlink));
    }
    if (fit.size() < 6) break;
    Solve(fit, rings);
  }
  return rings;
}

double RingSeconds(const RingConstants& rings, CollectiveOp op, double full_bytes, int ranks) {
  if (ranks < 2) return 0;
  return ProtocolSeconds(rings, BestProtocol(rings, op, full_bytes, ranks), op, full_bytes, ranks);
}

CollectiveCost::CollectiveCost(const HardwareProfile& profile, const ClusterShape& shape,
                               double gpu_link_scale)
    : rings_(FitRings(profile, shape.ranks_per_node())),
      ranks_(shape.gpus),
      ranks_per_node_(shape.ranks_per_node()),
      nodes_(shape.nodes()) {
  rings_.link_seconds_per_byte /= gpu_link_scale;
  if (nodes_ == 1) return;
  if (!profile.network || profile.network->bandwidth_per_node.value <= 0) {
    ThrowUsage(
        "{}: network.bandwidth_per_node is missing, so {} GPUs on {} nodes cannot be timed; "
        "add the network between nodes, or plan for at most {} GPUs",
        profile.source.empty() ? profile.name : profile.source, ranks_, nodes_, ranks_per_node_);
  }
  network_seconds_per_byte_ = 1 / (kNetworkShare * profile.network->bandwidth_per_node.value);
  message_seconds_ = profile.network->latency.value;
}

double CollectiveCost::FlatSeconds(CollectiveOp op, double full_bytes) const {
  RingConstants rings = rings_;
  rings.link_seconds_per_byte = std::max(rings.link_seconds_per_byte, network_seconds_per_byte_);
  const double crossings = Rounds(op) * (nodes_ - 1);
  return RingSeconds(rings, op, full_bytes, ranks_) + crossings * message_seconds_;
}

double CollectiveCost::HierarchicalSeconds(CollectiveOp op, double full_bytes) const {
  const double between =
      Rounds(op) * (full_bytes * (nodes_ - 1) / nodes_ * network_seconds_per_byte_ +
                    (nodes_ - 1) * (message_seconds_ + kProtocols[0].nvlink_step_seconds));
  if (op != CollectiveOp::kAllReduce) {
    return between + RingSeconds(rings_, op, full_bytes, ranks_per_node_);
  }
  return between + RingSeconds(rings_, CollectiveOp::kReduceScatter, full_bytes, ranks_per_node_) +
         RingSeconds(rings_, CollectiveOp::kAllGather, full_bytes, ranks_per_node_);
}

double CollectiveCost::TreeSeconds(double full_bytes) const {
  const double per_byte = std::max(rings_.link_seconds_per_byte, network_seconds_per_byte_);
  const double levels = std::ceil(std::log2(static_cast<double>(nodes_)));
  const Protocol& simple = kProtocols[0];
  return rings_.base_seconds + 2 * full_bytes * per_byte +
         2 * (ranks_per_node_ - 1 + levels) * simple.nvlink_step_seconds +
         2 * levels * message_seconds_ +
         rings_.pipeline_seconds_per_root_byte * std::sqrt(full_bytes / ranks_);
}

double CollectiveCost::Seconds(CollectiveOp op, double full_bytes, size_t segments) const {
  if (ranks_ < 2 || segments == 0) return 0;
  double seconds = nodes_ == 1
                       ? RingSeconds(rings_, op, full_bytes, ranks_)
                       : std::min(FlatSeconds(op, full_bytes), HierarchicalSeconds(op, full_bytes));
  if (nodes_ > 1 && op == CollectiveOp::kAllReduce) {
    seconds = std::min(seconds, TreeSeconds(full_bytes));
  }
  return std::max(seconds, rings_.floor_seconds[Index(op)] +
                               kSegmentSeconds * static_cast<double>(segments - 1));
}

// Ranks of a shard group follow one another, those of a replica group are a shard group apart.
// Links between a node's GPUs are each GPU's own; the node's adapters serve all groups that it has
// part of.
CollectiveCost CollectiveCost::Over(const RankAxes& axes, RankAxis axis) const {
  if (axis == RankAxis::kAll) return *this;
  CollectiveCost group = *this;
  const int apart = axis == RankAxis::kReplica ? axes.Size(RankAxis::kShard) : 1;
  const ClusterShape shape{axes.Size(axis), std::max(1, ranks_per_node_ / apart)};
  group.ranks_ = shape.gpus;
  group.ranks_per_node_ = shape.ranks_per_node();
  group.nodes_ = shape.nodes();
  const int groups_on_a_node = ranks_per_node_ / group.ranks_per_node_;
  group.network_seconds_per_byte_ *= groups_on_a_node;
  return group;
}

double CollectiveCost::Seconds(const Program& program, const Collective& collective) const {
  const auto bytes = static_cast<double>(CollectiveFullBytes(program, collective));
  const CollectiveOp op = OpOf(collective.kind);
  if (collective.axis == RankAxis::kAll) return Seconds(op, bytes, collective.segment_count);
  return Over(program.axes(), collective.axis).Seconds(op, bytes, collective.segment_count);
}

double CollectiveCost::BytesPerSecond() const {
  if (ranks_ < 2) return std::numeric_limits<double>::infinity();
  // A size at which everything but the bytes is below a millionth. The roots only add time.
  constexpr double kBytes = 1e18;
  RingConstants linear = rings_;
  linear.pipeline_seconds_per_root_byte = 0;
  CollectiveCost model = *this;
  model.rings_ = linear;
  double best = 0;
  for (const auto op :
       {CollectiveOp::kAllReduce, CollectiveOp::kAllGather, CollectiveOp::kReduceScatter}) {
    best = std::max(best, Sent(op, kBytes, ranks_) / model.Seconds(op, kBytes));
  }
  return best * (1 + 1e-6);
}

}  // namespace zeroplan
