#include "cost_models/collective_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/program/collectives.h"
#include "cost_models/calibration.h"
#include "cost_models/memory_cost.h"
#include "hwprofiles/guesses.h"
#include "hwprofiles/sanity.h"

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
    case CollectiveKind::kAllToAll:
      return CollectiveOp::kAllGather;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kReduceToOwners:
      return CollectiveOp::kReduceScatter;
  }
  return CollectiveOp::kAllReduce;
}

double StepSeconds(const Protocol& protocol, bool nvlink) {
  return nvlink ? protocol.nvlink_step_seconds : protocol.pcie_step_seconds;
}

double ProtocolSeconds(const RingConstants& rings, const Protocol& protocol, CollectiveOp op,
                       double full_bytes, int ranks) {
  const double part = full_bytes / ranks;
  const double base = protocol.base_seconds > 0 ? protocol.base_seconds : rings.base_seconds;
  const double step = StepSeconds(protocol, rings.nvlink) + rings.longer_step_seconds;
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
    if (rings.simple_only && &protocol != &kProtocols.front()) break;
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

// ---- constants from measured rows ----

constexpr double kSmallBytes = 512 * 1024;  // what takes about what a call costs
// Rows are kept within this share of what was measured.
constexpr double kKeptError = 0.10;
// A fit that is better than this (root mean square of the relative error) stays; another set of
// protocols has to halve a worse one's error.
constexpr double kGoodError = 0.05;
// Weight of a term's prior beside a measured row's. Rows of several group sizes and of three sizes
// and more fix every term, and the prior is there for the solver alone. Fewer leave terms open that
// noise would settle: what rows usually scatter by decides how far from the prior they may be.
constexpr double kFixedWeight = 1e-3, kOpenWeight = 0.05;
// The scale below which a step that is longer than NCCL's table has it means nothing.
constexpr double kStepScale = 10e-6;

enum Term : size_t { kBase, kLink, kCopy, kPipeline = kCopy + 3, kStep, kTerms };

// The formula is linear once it is known which protocol each row ran in.
FitRow LinearRow(const CollectiveTime& row, const Protocol& protocol, const RingConstants& rings) {
  const double part = row.bytes / row.world_size;
  const int steps = Rounds(row.op) * (row.world_size - 1);
  FitRow fit;
  fit.known_seconds = protocol.base_seconds + steps * StepSeconds(protocol, rings.nvlink);
  fit.terms.assign(kTerms, 0);
  fit.terms[kBase] = protocol.base_seconds > 0 ? 0 : 1;
  fit.terms[kLink] = Sent(row.op, row.bytes, row.world_size) / protocol.share;
  fit.terms[kCopy + Index(row.op)] = part / protocol.share;
  fit.terms[kPipeline] = std::sqrt(part);
  if (rings.simple_only) fit.terms[kStep] = steps;
  fit.seconds = row.seconds;
  return fit;
}

// A row that asks for c[term] = value.
FitRow PriorRow(double weight, size_t term, double value, double scale) {
  FitRow row;
  row.terms.assign(kTerms, 0);
  row.terms[term] = weight / scale;
  row.known_seconds = 1 - weight * value / scale;
  row.seconds = 1;
  return row;
}

using Rows = std::vector<CollectiveTime>;

// What a call costs, by operation: the geometric mean of its small rows that are near the fastest
// of them. A call of one operation costs about as many times what it costs elsewhere as a call of
// another does: so where an operation has no small rows, or slow ones alone, which the link may
// have made.
std::array<double, 3> FloorsOf(const Rows& rows, const std::array<double, 3>& elsewhere) {
  constexpr double kNear = 1.5;
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::array<double, 3> fastest{kNone, kNone, kNone}, floors = fastest;
  for (const CollectiveTime& row : rows) {
    const size_t op = Index(row.op);
    fastest[op] = std::min(fastest[op], row.seconds);
    if (row.bytes <= kSmallBytes) floors[op] = std::min(floors[op], row.seconds);
  }
  double times = kNone;
  for (size_t op = 0; op < 3; ++op) {
    double sum = 0, count = 0;
    for (const CollectiveTime& row : rows) {
      if (Index(row.op) != op || row.bytes > kSmallBytes) continue;
      if (row.seconds > kNear * floors[op]) continue;
      sum += std::log(row.seconds);
      ++count;
    }
    if (count > 0) floors[op] = std::exp(sum / count);
    times = std::min(times, floors[op] / elsewhere[op]);
  }
  if (times == kNone) times = 1;
  for (size_t op = 0; op < 3; ++op) {
    const double usual = times * elsewhere[op];
    if (floors[op] > kNear * usual) floors[op] = std::min(usual, fastest[op]);
  }
  return floors;
}

// The link as the rows show it, the own part as a GPU's memory moves it: the median over the
// largest row of each operation and group, of those that take longer than a call. 0: none does.
double LinkOfLargest(const Rows& rows, const RingConstants& rings) {
  constexpr double kLonger = 1.5, kLeastShare = 0.5;
  std::map<std::pair<CollectiveOp, int>, const CollectiveTime*> largest;
  for (const CollectiveTime& row : rows) {
    const CollectiveTime*& found = largest[{row.op, row.world_size}];
    if (found == nullptr || row.bytes > found->bytes) found = &row;
  }
  std::vector<double> links;
  for (const auto& [about, row] : largest) {
    const double floor = rings.floor_seconds[Index(row->op)];
    if (row->seconds < kLonger * floor) continue;
    const double own = row->bytes / row->world_size * rings.copy_seconds_per_byte[Index(row->op)];
    const double moving = std::max(row->seconds - own, kLeastShare * row->seconds);
    links.push_back(moving / Sent(row->op, row->bytes, row->world_size));
  }
  if (links.empty()) return 0;
  std::nth_element(links.begin(), links.begin() + static_cast<ptrdiff_t>(links.size() / 2),
                   links.end());
  return links[links.size() / 2];
}

double WithFloor(const RingConstants& rings, const CollectiveTime& row) {
  return std::max(RingSeconds(rings, row.op, row.bytes, row.world_size),
                  rings.floor_seconds[Index(row.op)]);
}

double RootMeanSquare(const RingConstants& rings, const Rows& rows) {
  double sum = 0;
  for (const CollectiveTime& row : rows) {
    const double error = std::log(WithFloor(rings, row) / row.seconds);
    sum += error * error;
  }
  return std::sqrt(sum / static_cast<double>(rows.size()));
}

// The constants decide the protocols and these the constants: four rounds settle it.
RingConstants FitConstants(const Rows& rows, RingConstants rings) {
  const RingConstants prior = rings;
  for (int round = 0; round < 4; ++round) {
    std::vector<FitRow> fit;
    std::set<double> sizes;
    std::set<int> groups;
    for (const CollectiveTime& row : rows) {
      if (row.seconds <= 1.15 * rings.floor_seconds[Index(row.op)]) continue;
      const Protocol& protocol = BestProtocol(rings, row.op, row.bytes, row.world_size);
      if (!protocol.pipelined) continue;  // LL's constants are not fitted
      fit.push_back(LinearRow(row, protocol, rings));
      sizes.insert(row.bytes);
      groups.insert(row.world_size);
    }
    const double weight = sizes.size() >= 3 && groups.size() >= 2 && fit.size() >= 2 * kTerms
                              ? kFixedWeight
                              : kOpenWeight;
    const double link = prior.link_seconds_per_byte;
    fit.push_back(PriorRow(weight, kBase, prior.base_seconds, prior.base_seconds));
    fit.push_back(PriorRow(weight, kLink, link, link));
    for (size_t i = 0; i < 3; ++i) {
      const double copy = prior.copy_seconds_per_byte[i];
      fit.push_back(PriorRow(weight, kCopy + i, copy, copy));
    }
    const double pipeline = prior.pipeline_seconds_per_root_byte;
    fit.push_back(PriorRow(weight, kPipeline, pipeline, pipeline));
    fit.push_back(PriorRow(weight, kStep, 0, kStepScale));
    const std::vector<double> fitted = FitRelative(fit);
    rings.base_seconds = fitted[kBase];
    rings.link_seconds_per_byte = fitted[kLink];
    for (size_t i = 0; i < 3; ++i) rings.copy_seconds_per_byte[i] = fitted[kCopy + i];
    rings.pipeline_seconds_per_root_byte = fitted[kPipeline];
    rings.longer_step_seconds = fitted[kStep];
  }
  return rings;
}

// What the formula leaves over of the rows, beyond what is kept.
void AddCorrections(const Rows& rows, RingFit& fit) {
  std::vector<double> errors;
  for (const CollectiveTime& row : rows) {
    const double error = std::log(row.seconds / WithFloor(fit, row));
    errors.push_back(std::abs(std::expm1(-error)));
    const double kept = std::log1p(kKeptError);
    const double over = std::copysign(std::max(0.0, std::abs(error) - kept), error);
    fit.corrections.push_back({row.op, row.world_size, std::log2(row.bytes), over});
  }
  std::sort(errors.begin(), errors.end());
  fit.median_error = errors[(errors.size() - 1) / 2];
  fit.worst_error = errors.back();
  if (fit.worst_error <= kKeptError) fit.corrections.clear();
  std::sort(fit.corrections.begin(), fit.corrections.end(), [](const auto& a, const auto& b) {
    return std::tie(a.op, a.world_size, a.log2_bytes) < std::tie(b.op, b.world_size, b.log2_bytes);
  });
}

// exp of the corrections of the rows next to `bytes`, linear in log2 of them in between; 1 for a
// group that no row is of. Past the largest row half is left of it for each doubling: what made a
// small row slow says little of large ones.
double CorrectionFactor(const std::vector<RowCorrection>& corrections, CollectiveOp op, int ranks,
                        double bytes) {
  const RowCorrection* below = nullptr;
  const double at = std::log2(bytes);
  for (const RowCorrection& row : corrections) {
    if (row.op != op || row.world_size != ranks) continue;
    if (row.log2_bytes < at) {
      below = &row;
      continue;
    }
    if (below == nullptr) return std::exp(row.log_factor);
    const double share = (at - below->log2_bytes) / (row.log2_bytes - below->log2_bytes);
    return std::exp(below->log_factor + share * (row.log_factor - below->log_factor));
  }
  return below == nullptr ? 1 : std::exp(below->log_factor * std::exp2(below->log2_bytes - at));
}

// The least factor that any size has; at most 1.
double LeastFactor(const std::vector<RowCorrection>& corrections) {
  double least = 0;
  for (const RowCorrection& row : corrections) least = std::min(least, row.log_factor);
  return std::exp(least);
}

}  // namespace

RingFit FitRings(const HardwareProfile& profile, int ranks_per_node) {
  RingFit fit;
  static_cast<RingConstants&>(fit) = DerivedRings(profile, ranks_per_node);
  if (!profile.node.collectives || profile.node.collectives->rows.empty()) return fit;
  const Rows& rows = profile.node.collectives->rows;
  RingConstants prior = fit;
  prior.floor_seconds = FloorsOf(rows, prior.floor_seconds);
  const double link = LinkOfLargest(rows, prior);
  if (link == 0) {
    ThrowUsage(
        "{}: link.collectives: no row takes longer than what a call costs, so the link's rate is "
        "not known; add rows of 64 MiB and more ('zeroplan hw measure' makes them), or remove the "
        "table",
        profile.source.empty() ? profile.name : profile.source);
  }
  prior.link_seconds_per_byte = link;
  prior.pipeline_seconds_per_root_byte = 2 * std::sqrt(kChunkSeconds * link);
  double longer_call = std::numeric_limits<double>::infinity();
  for (size_t op = 0; op < 3; ++op) {
    longer_call = std::min(longer_call, prior.floor_seconds[op] - fit.floor_seconds[op]);
  }
  prior.base_seconds += std::max(0.0, longer_call);

  static_cast<RingConstants&>(fit) = FitConstants(rows, prior);
  const double error = RootMeanSquare(fit, rows);
  if (error > kGoodError) {
    // Other protocols than the kind of link has: sockets know neither LL128 nor its steps.
    double least = error / 2;
    for (const bool simple_only : {false, true}) {
      RingConstants other = prior;
      other.nvlink = false;
      other.simple_only = simple_only;
      other = FitConstants(rows, other);
      const double found = RootMeanSquare(other, rows);
      if (found >= least) continue;
      least = found;
      static_cast<RingConstants&>(fit) = other;
    }
  }
  AddCorrections(rows, fit);
  return fit;
}

namespace {

// Expected maximum of so many standard normal values: the quantile of the largest one's median-like
// rank (Chen and Tyler 1999), by bisection.
double ExpectedMaximum(int count) {
  if (count < 2) return 0;
  const double wanted = std::pow(0.5264, 1.0 / count);
  double low = 0, high = 8;
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < wanted ? low : high) = middle;
  }
  return low;
}

}  // namespace

double SlowestRank(const ClusterShape& shape) {
  if (shape.nodes() == 1) return 1;
  return 1 + kGpuSpread * (ExpectedMaximum(shape.gpus) - ExpectedMaximum(shape.ranks_per_node()));
}

double RingSeconds(const RingConstants& rings, CollectiveOp op, double full_bytes, int ranks) {
  if (ranks < 2) return 0;
  return ProtocolSeconds(rings, BestProtocol(rings, op, full_bytes, ranks), op, full_bytes, ranks);
}

CollectiveCost::CollectiveCost(const HardwareProfile& profile, const ClusterShape& shape,
                               double gpu_link_scale)
    : ranks_(shape.gpus),
      ranks_per_node_(shape.ranks_per_node()),
      nodes_(shape.nodes()),
      cpu_(profile.gpu.architecture == kCpuArchitecture) {
  RingFit fit = FitRings(profile, shape.ranks_per_node());
  rings_ = fit;
  rings_.link_seconds_per_byte /= gpu_link_scale;
  corrections_ = std::move(fit.corrections);
  if (nodes_ == 1) return;
  if (!profile.network || profile.network->bandwidth_per_node.value <= 0) {
    ThrowUsage(
        "{}: network.bandwidth_per_node is missing, so {} GPUs on {} nodes cannot be timed; "
        "add the network between nodes, or plan for at most {} GPUs",
        profile.source.empty() ? profile.name : profile.source, ranks_, nodes_, ranks_per_node_);
  }
  const std::optional<Figure>& reached = profile.network->reached;
  const double share = reached ? reached->value : kAssumedNetworkShare;
  network_seconds_per_byte_ = 1 / (share * profile.network->bandwidth_per_node.value);
  if (const auto& by_groups = profile.network->reached_by_groups) {
    by_groups_ = share / by_groups->value;
  }
  if (const auto& all_reduces = profile.network->reached_by_all_reduces) {
    by_all_reduces_ = share / all_reduces->value;
  }
  message_seconds_ = profile.network->latency.value;
}

double CollectiveCost::WithinNode(CollectiveOp op, double full_bytes) const {
  const double seconds =
      std::max(RingSeconds(rings_, op, full_bytes, ranks_), rings_.floor_seconds[Index(op)]);
  return corrections_.empty() ? seconds
                              : seconds * CorrectionFactor(corrections_, op, ranks_, full_bytes);
}

double CollectiveCost::FlatSeconds(CollectiveOp op, double full_bytes) const {
  if (cpu_ && op == CollectiveOp::kReduceScatter) return CpuReductionSeconds(full_bytes);
  if (cpu_ && op == CollectiveOp::kAllReduce) {
    return CpuReductionSeconds(full_bytes) + FlatSeconds(CollectiveOp::kAllGather, full_bytes);
  }
  RingConstants rings = rings_;
  const bool measured = op == CollectiveOp::kAllReduce && AllReducesMeasured();
  rings.link_seconds_per_byte = std::max(
      rings.link_seconds_per_byte, network_seconds_per_byte_ * (measured ? by_all_reduces_ : 1));
  const double crossings = Rounds(op) * (nodes_ - 1);
  return RingSeconds(rings, op, full_bytes, ranks_) + crossings * message_seconds_;
}

double CollectiveCost::CpuReductionSeconds(double full_bytes) const {
  // What a ring's factor for bytes between nodes has to be, and messages.
  const auto over = [&](double factor, int messages) {
    RingConstants rings = rings_;
    rings.link_seconds_per_byte =
        std::max(rings.link_seconds_per_byte, factor * network_seconds_per_byte_);
    return RingSeconds(rings, CollectiveOp::kReduceScatter, full_bytes, ranks_) +
           messages * message_seconds_;
  };
  const double others = ranks_ - 1;
  return std::min(over(ranks_per_node_ * (ranks_ - ranks_per_node_) / others, 1),
                  over(ranks_ / others, nodes_));
}

double CollectiveCost::TreeSeconds(double full_bytes) const {
  // Two trees of half of the bytes, each a chain within a node: a GPU sends all bytes up and all
  // down. Between nodes each of the trees' 2(M-1) edges carries a half up and a half down.
  const double crossing = AllReducesMeasured() ? by_all_reduces_ * (ranks_ - 1) / ranks_
                                               : static_cast<double>(nodes_ - 1) / nodes_;
  const double moved =
      2 * full_bytes * std::max(rings_.link_seconds_per_byte, network_seconds_per_byte_ * crossing);
  const double levels = std::ceil(std::log2(static_cast<double>(nodes_)));
  const Protocol& simple = kProtocols[0];
  return rings_.base_seconds + moved +
         2 * (ranks_per_node_ - 1 + levels) * simple.nvlink_step_seconds +
         2 * levels * message_seconds_ +
         rings_.pipeline_seconds_per_root_byte * std::sqrt(full_bytes / ranks_);
}

double CollectiveCost::Seconds(CollectiveOp op, double full_bytes, size_t segments) const {
  if (ranks_ < 2 || segments == 0) return 0;
  double seconds = nodes_ == 1 ? WithinNode(op, full_bytes) : FlatSeconds(op, full_bytes);
  if (nodes_ > 1 && !cpu_ && op == CollectiveOp::kAllReduce) {
    seconds = std::min(seconds, TreeSeconds(full_bytes));
  }
  const double issuing = kSegmentSeconds * static_cast<double>(segments - 1);
  if (nodes_ == 1 && segments == 1) return seconds;  // a row may lie below its operation's floor
  return std::max(seconds, rings_.floor_seconds[Index(op)] + issuing);
}

// Links between a node's GPUs are each GPU's own; the node's adapters serve all groups that it has
// part of.
CollectiveCost CollectiveCost::Over(const RankAxes& axes, RankAxis axis) const {
  if (axis == RankAxis::kAll) return *this;
  CollectiveCost group = *this;
  const ClusterShape shape =
      ClusterShape{ranks_, ranks_per_node_}.OfGroup(axes.Size(axis), axes.Apart(axis));
  group.ranks_ = shape.gpus;
  group.ranks_per_node_ = shape.ranks_per_node();
  group.nodes_ = shape.nodes();
  const int groups_on_a_node = ranks_per_node_ / group.ranks_per_node_;
  group.network_seconds_per_byte_ *= groups_on_a_node;
  if (groups_on_a_node > 1) group.network_seconds_per_byte_ *= by_groups_;
  return group;
}

// What a ring's factor for bytes between nodes has to be for an all-to-all: of a rank's N parts N-n
// go to other nodes, from each of a node's n ranks.
CollectiveCost CollectiveCost::ForAllToAll() const {
  CollectiveCost direct = *this;
  if (nodes_ > 1) {
    direct.network_seconds_per_byte_ *=
        static_cast<double>(ranks_per_node_) * (ranks_ - ranks_per_node_) / (ranks_ - 1);
  }
  return direct;
}

double CollectiveCost::Seconds(const Program& program, const Collective& collective) const {
  const auto bytes = static_cast<double>(CollectiveFullBytes(program, collective));
  const CollectiveOp op = OpOf(collective.kind);
  const size_t segments = collective.segment_count;
  if (collective.kind == CollectiveKind::kAllToAll) {
    return Over(program.axes(), collective.axis).ForAllToAll().Seconds(op, bytes, segments);
  }
  if (collective.axis == RankAxis::kAll) return Seconds(op, bytes, segments);
  return Over(program.axes(), collective.axis).Seconds(op, bytes, segments);
}

double CollectiveCost::LeastSeconds(CollectiveOp op, double full_bytes) const {
  if (corrections_.empty() || nodes_ > 1) return Seconds(op, full_bytes);
  CollectiveCost formula = *this;
  formula.corrections_.clear();
  return LeastFactor(corrections_) * formula.Seconds(op, full_bytes);
}

double CollectiveCost::BytesPerSecond() const {
  if (ranks_ < 2) return std::numeric_limits<double>::infinity();
  // A size at which everything but the bytes is below a millionth. The roots only add time.
  constexpr double kBytes = 1e18;
  RingConstants linear = rings_;
  linear.pipeline_seconds_per_root_byte = 0;
  CollectiveCost model = *this;
  model.rings_ = linear;
  model.corrections_.clear();
  double best = 0;
  for (const auto op :
       {CollectiveOp::kAllReduce, CollectiveOp::kAllGather, CollectiveOp::kReduceScatter}) {
    best = std::max(best, Sent(op, kBytes, ranks_) / model.Seconds(op, kBytes));
  }
  return best / LeastFactor(corrections_) * (1 + 1e-6);
}

}  // namespace zeroplan
