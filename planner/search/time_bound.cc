#include "planner/search/time_bound.h"

#include <algorithm>
#include <cmath>

#include "core/program/bucket_sizes.h"
#include "core/settings/setup_facts.h"
#include "cost_models/closed_form.h"

namespace zeroplan {
namespace {

// A collective's seconds per byte fall as it grows, so cutting `bytes` into the largest pieces
// there are costs least.
double PiecesSeconds(const CollectiveCost& costs, CollectiveOp op, double bytes, double piece) {
  piece = std::min(piece, bytes);
  return piece <= 0 ? 0 : bytes / piece * costs.LeastSeconds(op, piece);
}

// Compute c and communication m, each alone, side by side: they slow each other, so that every
// second of m costs something even where it hides.
double SideBySide(double c, double m, const OverlapRates& rates) {
  const double gain = rates.compute_beside_collective + rates.collective_beside_compute - 1;
  if (gain <= 0) return c + m;
  const double together =
      std::min(c / rates.compute_beside_collective, m / rates.collective_beside_compute);
  return c + m - gain * together;
}

class GroupTimer {
 public:
  GroupTimer(const GroupTerms& terms, const Candidate& group, const TrainSetup& base,
             const LayoutFacts& facts, const CostModel& costs)
      : t_(terms),
        group_(group),
        zero_(base.zero),
        precision_(base.precision),
        facts_(facts),
        costs_(costs),
        axes_(terms.groups.shards, terms.ranks),
        over_all_(costs.CollectivesOver(axes_, RankAxis::kAll)),
        within_(costs.CollectivesOver(axes_, axes_.Named(RankAxis::kShard))) {}

  GroupTime Time() {
    if (t_.ranks > 1) {
      AddReductions();
      time_.within.gather = GatherSeconds();
      if (t_.groups.replicas() > 1) AddAcross();
      AddGathers();
    }
    AddCopies();
    AddUpdate();
    time_.overlap = zero_.overlap_comm;
    time_.gathers_fp8 = t_.gathers_fp8;
    time_.rates = costs_.overlap();
    time_.slowest_rank = costs_.SlowestRank();
    return time_;
  }

 private:
  // Of a unit, at most.
  double Padding() const { return t_.shard_align * (t_.ranks + 1); }

  // Elements of the layers that one collective reduces at most.
  double ReducePiece() const {
    const bool open = group_.buckets.reduce == kAuto;
    if (open && facts_.assumed.uniform_layers) {
      return facts_.auto_reduce_layers * facts_.largest_trained_layer;
    }
    const uint64_t bucket = open ? facts_.auto_reduce_bucket : group_.buckets.reduce;
    // A larger tensor goes alone, with the padding before and behind it.
    return std::max(facts_.largest_tensor + Padding(), static_cast<double>(bucket));
  }

  // What gathers of shards send of a parameter, of the layers at least, and reductions of a
  // gradient.
  double GatheredBytes() const {
    return zero_.quantized_weights ? BlockBytes(Dtype::kInt8Blocks) : t_.gathered_bytes;
  }
  static double BlockBytes(Dtype kind) {
    return static_cast<double>(DtypeBytes(kind)) / static_cast<double>(DtypeElements(kind));
  }
  // Of reductions that are all-to-alls, which take what gathers do at least; of whole units.
  double QuantizedReductions(const CollectiveCost& ranks, double elements) const {
    return ranks.LeastSeconds(CollectiveOp::kAllGather, elements * BlockBytes(Dtype::kInt4Blocks));
  }

  void AddReductions() {
    if (zero_.quantized_gradients) {
      time_.within.backward += QuantizedReductions(within_, facts_.trained_layers);
      return;
    }
    const bool all = t_.stage == 0 || !zero_.reduce_scatter;
    const CollectiveOp op = all ? CollectiveOp::kAllReduce : CollectiveOp::kReduceScatter;
    const CollectiveCost& ranks = all ? over_all_ : within_;
    const auto seconds = [&](double elements, double piece) {
      return PiecesSeconds(ranks, op, elements * t_.sent_grad_bytes, piece * t_.sent_grad_bytes);
    };
    const bool last = t_.stage <= 1;
    (last ? time_.within.last : time_.within.backward) +=
        seconds(facts_.trained_layers, ReducePiece());
    if (!t_.all_trained()) return;
    time_.within.behind_last = seconds(facts_.embedding, std::max(ReducePiece(), facts_.embedding));
    time_.within.behind = last ? 0 : time_.within.behind_last;
  }

  // Gradients of a rank's shard over the groups, and the parameters that other groups have updated,
  // behind the reductions within.
  void AddAcross() {
    const CollectiveCost across = costs_.CollectivesOver(axes_, RankAxis::kReplica);
    const bool owns_slices = t_.groups.across_stage > 0;
    GroupComm over_groups;
    if (zero_.quantized_gradients && owns_slices) {
      (t_.crosses_each ? over_groups.backward : over_groups.last) =
          QuantizedReductions(across, facts_.trained_layers / t_.shards());
    } else if (zero_.reduce_scatter) {
      const CollectiveOp op = owns_slices ? CollectiveOp::kReduceScatter : CollectiveOp::kAllReduce;
      // The embedding's gradient is the last to be complete.
      const double elements = facts_.trained_layers + (t_.all_trained() ? facts_.embedding : 0);
      // A unit that is reduced in parts crosses as a whole, beside others of its last part's
      // bucket.
      const double piece = (ReducePiece() + UnitElements()) / t_.shards();
      (t_.crosses_each ? over_groups.backward : over_groups.last) = PiecesSeconds(
          across, op, elements / t_.shards() * t_.sent_grad_bytes, piece * t_.sent_grad_bytes);
    }
    if (owns_slices) {
      over_groups.gather =
          PiecesSeconds(across, CollectiveOp::kAllGather, t_.trained / t_.shards() * t_.param_bytes,
                        t_.param_bytes * GatherPiece() / t_.shards());
    }
    time_.several_groups = true;
    time_.reducing = time_.within;
    time_.reducing.gather = time_.reducing.behind = time_.reducing.behind_last = 0;
    time_.reducing += over_groups;
    // Of several nodes, and in one, all that a group does takes the links over groups too.
    const ClusterShape& shape = costs_.shape();
    const bool shares = t_.groups.shards > shape.ranks_per_node() || shape.nodes() == 1;
    if (shares) {
      time_.within += over_groups;
    } else if (!zero_.reduce_scatter) {  // gradients are all-reduced over all ranks, beside gathers
      time_.within.backward = time_.within.last = 0;
      time_.within.behind = time_.within.behind_last = 0;
    }
  }

  double Gather(double elements) const {
    return within_.LeastSeconds(CollectiveOp::kAllGather, elements * GatheredBytes());
  }

  // The sum of fn(elements of a layer's gathers) in one half of a micro-step, but for so many
  // layers, of which the longest ones are left out.
  template <typename Fn>
  double HalfSum(double but, Fn&& fn) const {
    double left = -but;
    for (const LayerGathers& gathers : facts_.layer_gathers) left += gathers.layers;
    double sum = 0;
    for (const LayerGathers& gathers : facts_.layer_gathers) {
      if (left <= 0) break;
      sum += std::min(left, gathers.layers) * fn(gathers.elements);
      left -= gathers.layers;
    }
    return sum;
  }
  double HalfGathers(double but) const {
    return HalfSum(but, [this](double elements) { return Gather(elements); });
  }

  // Layers of the backward half that may have been gathered ahead of it, at most.
  double GatheredAhead() const {
    if (group_.buckets.prefetch == kAuto) return 2;
    const double smallest = facts_.layer_gathers.front().elements;
    return 2 + std::ceil(static_cast<double>(group_.buckets.prefetch) / smallest);
  }

  // Stage 3: before use.
  void AddGathers() {
    if (!t_.sharded || facts_.layer_gathers.empty()) return;
    time_.within.before = Gather(facts_.embedding_gather);
    time_.within.forward += HalfGathers(0);
    if (facts_.assumed.tied_head_elements > 0) {  // gathers the embeddings again
      time_.within.forward += t_.reused > 0 ? 0 : time_.within.before;
    } else {
      time_.within.forward += Gather(std::max(0.0, facts_.gathered_once - facts_.embedding_gather));
    }
    if (t_.reused > 0) return;
    time_.within.backward += HalfGathers(GatheredAhead());
  }

  // Elements of offloaded gradients that are complete in the backward half.
  double GradsInBackward() const {
    return std::max(0.0, t_.away * t_.trained_shard() - facts_.own_head / t_.owners());
  }

  void AddCopies() {
    const double pcie = costs_.PcieBytesPerSecond();
    time_.pcie_bytes_per_second = pcie;
    if (!t_.in_place) time_.gradient_copy_seconds = GradsInBackward() * t_.host_grad_bytes / pcie;
    if (!t_.params_away) return;
    const double shards = (t_.psi - t_.whole) / t_.shards();
    const double passes = t_.reused > 0 ? 1 : 2;
    const double fetched = passes * shards - (passes - 1) * facts_.gathered_once / t_.shards();
    time_.fetch_seconds = time_.copied_fetch_seconds = fetched * t_.param_bytes / pcie;
    time_.embedding_fetch_seconds = facts_.embedding_gather / t_.shards() * t_.param_bytes / pcie;
    time_.forward_fetch_seconds = shards * t_.param_bytes / pcie;
    if (t_.reused == 0 && !facts_.layer_gathers.empty()) {
      const double layers = HalfSum(GatheredAhead(), [](double elements) { return elements; });
      time_.backward_fetch_seconds = layers / t_.shards() * t_.param_bytes / pcie;
    }
    if (group_.param != OffloadDevice::kNvme) return;
    const auto in_cpu = static_cast<double>(zero_.offload_param.max_in_cpu_elements);
    const double from_disk = std::max(0.0, fetched - passes * in_cpu) * t_.param_bytes /
                             costs_.StorageReadBytesPerSecond();
    time_.fetch_seconds = std::max(time_.fetch_seconds, from_disk);
  }

  // No unit has more elements: those of stages below 3 hold a whole layer, and a rank's padding.
  double UnitElements() const {
    const bool plain = t_.groups.replicas() == 1 && t_.shard_align == kShardAlignElements;
    return 1.01 * std::max(facts_.largest_layer, facts_.embedding) + (plain ? 0 : Padding());
  }

  // Nor has any piece of states on disk.
  double PieceElements() const {
    return std::min(static_cast<double>(zero_.sub_group_elements),
                    UnitElements() / t_.owners() + t_.shard_align);
  }

  // Elements that one gather of updated parameters has at most.
  double GatherPiece() const {
    const uint64_t reduced =
        group_.buckets.reduce == kAuto ? facts_.auto_reduce_bucket : group_.buckets.reduce;
    return std::max(static_cast<double>(GatherBucketElements(zero_, reduced)), UnitElements());
  }

  // The gathers of updated parameters, one after the other.
  double GatherSeconds() const {
    if (t_.ranks <= 1) return 0;
    const double elements = t_.stage == 0 ? 0
                            : t_.sharded  ? std::max(0.0, t_.trained - (t_.psi - t_.whole))
                                          : t_.trained;
    return PiecesSeconds(within_, CollectiveOp::kAllGather, elements * t_.param_bytes,
                         t_.param_bytes * GatherPiece());
  }

  // By how much arithmetic slows the host's update, at least.
  double HostUpdateWork() const {
    const std::array<Dtype, 3> states = StateDtypes(precision_);
    const double own = costs_.HostUpdateWork(states[0], states[1]);
    if (precision_.master_weights != MasterWeights::kSplit) return own;
    return std::min(own, costs_.HostUpdateWork(Dtype::kI16, states[1]));
  }

  void AddUpdate() {
    if (zero_.optimizer_in_backward) return;  // beside the backward pass
    const double bytes = UpdateBytesPerParam(precision_);
    const double here = (1 - t_.away) * t_.trained / (t_.stage == 0 ? 1 : t_.owners());
    const double there = t_.away * t_.trained / t_.owners();
    const double slowest = costs_.SlowestRank();
    time_.update_seconds = slowest * here * bytes / costs_.HbmBytesPerSecond();
    const double host_rate = costs_.HostBytesPerSecond() / HostUpdateWork();
    double& away = time_.host_update_seconds;
    away = there * bytes / host_rate;
    const double pcie = costs_.PcieBytesPerSecond();
    if (t_.params_away) {  // what is updated here goes to the host, but what stays whole
      const double moved = std::max(0.0, here - t_.whole);
      time_.update_seconds = std::max(time_.update_seconds, moved * t_.param_bytes / pcie);
    }
    if (!t_.params_away) away = std::max(away, there * t_.param_bytes / pcie);
    // The embeddings' states are the last that a share of them leaves on the GPU.
    if (t_.away == 1 && t_.all_trained()) {
      const double embeddings = facts_.embedding / t_.owners();
      const double update = embeddings * bytes / host_rate;
      const double back = t_.params_away ? 0 : embeddings * t_.param_bytes / pcie;
      // Of several pieces each goes back beside the next one's update.
      const bool one_piece = embeddings <= static_cast<double>(zero_.sub_group_elements);
      time_.embedding_update_seconds = one_piece ? update + back : std::max(update, back);
    }
    if (group_.optimizer.device == OffloadDevice::kNvme) {
      // Reads and writes run side by side. The last piece is read into a slot that has been written
      // to disk; what the other slots hold may still be under way in the backward half.
      const double last = zero_.offload_optimizer.buffer_count * PieceElements();
      away = std::max({away, t_.state_bytes * there / costs_.StorageReadBytesPerSecond(),
                       t_.state_bytes * (there - last) / costs_.StorageWriteBytesPerSecond()});
    }
    const double normed_here = t_.in_place ? here + there : here;
    time_.norm_seconds = slowest * normed_here * t_.grad_bytes / costs_.HbmBytesPerSecond();
    if (!t_.in_place) {
      time_.host_norm_seconds = GradsInBackward() * t_.grad_bytes / costs_.HostBytesPerSecond();
    }
  }

  const GroupTerms& t_;
  const Candidate& group_;
  const ZeroConfig& zero_;
  const PrecisionConfig& precision_;
  const LayoutFacts& facts_;
  const CostModel& costs_;
  const RankAxes axes_;
  const CollectiveCost over_all_, within_;
  GroupTime time_;
};

}  // namespace

GroupTime TimeOfGroup(const GroupTerms& terms, const Candidate& group, const TrainSetup& base,
                      const LayoutFacts& facts, const CostModel& costs) {
  return GroupTimer(terms, group, base, facts, costs).Time();
}

namespace {

double SecondsAtLeast(const GroupTime& group, const GroupComm& comm, const KernelTime& kernels,
                      const ActivationMoves& moves, const ExchangeSeconds& exchange,
                      int64_t grad_accum) {
  // Other collectives may run beside exchanges.
  const auto beside = [&](double compute, double collectives) {
    return SideBySide(compute, std::max(collectives, exchange.backward), group.rates);
  };
  const auto after_exchanges = [&](double compute, double collectives) {
    return exchange.forward +
           SideBySide(compute, std::max(0.0, collectives - exchange.forward), group.rates);
  };
  const double more = static_cast<double>(grad_accum - 1);
  const double forward = group.slowest_rank * kernels.forward_seconds;
  const double backward = group.slowest_rank * kernels.backward_seconds;
  // With waits for embeddings and activations.
  const double forward_alone = group.embedding_fetch_seconds + comm.before +
                               std::max(exchange.forward + forward, moves.seconds.forward_seconds);
  const double backward_alone = std::max(backward, moves.seconds.backward_seconds);
  // The head uses the last of the parameters that are fetched.
  const double fetch_forward =
      group.forward_fetch_seconds > 0
          ? group.forward_fetch_seconds + group.slowest_rank * kernels.loss_seconds
          : 0;
  const auto forward_half = [&](double collectives) {
    return std::max(
        {comm.before + after_exchanges(forward, collectives), forward_alone, fetch_forward});
  };
  // Of one direction of PCIe.
  const double moved = moves.bytes > 0 ? moves.bytes / group.pcie_bytes_per_second : 0;
  const double fetch = std::max(group.fetch_seconds, group.copied_fetch_seconds + moved);
  // Updates and the next forward pass hide the gathers between them: what the updates do not, the
  // forward pass has beside it.
  const double update =
      group.overlap ? group.update_seconds : std::max(group.update_seconds, comm.gather);
  const double carried = group.overlap ? std::max(0.0, comm.gather - update) : 0;
  // Every parameter is used in the first forward half, the last one by the head: only then the last
  // update is over.
  const double first_forward =
      std::max({update + forward_half(comm.forward + carried),
                group.embedding_update_seconds + forward_alone,
                group.host_update_seconds + group.slowest_rank * kernels.loss_seconds});
  // From the begin of a backward half to the next one's. What the former reduces may take until
  // then, beside the next forward half, and so may its way to the host, ahead of activations.
  const double between =
      std::max({comm.before +
                    after_exchanges(backward + forward, comm.backward + comm.behind + comm.forward),
                exchange.forward + beside(backward + forward, 0), backward_alone + forward_alone,
                group.gradient_copy_seconds + moved, group.backward_fetch_seconds + fetch_forward});
  // The update waits for the last micro-step's reductions.
  const double last_backward =
      std::max({comm.behind_last + beside(backward, comm.backward + comm.last),
                comm.behind_last + backward_alone, group.backward_fetch_seconds,
                group.gradient_copy_seconds, group.host_norm_seconds});
  const double halves = first_forward + more * between + last_backward;
  // What a micro-step fetches, it fetches between its own begin and end.
  const double fetching = std::max(first_forward + backward_alone, fetch + update) +
                          more * std::max(forward_half(comm.forward) + backward_alone, fetch);
  return std::max(halves, fetching) + group.norm_seconds;
}

// The turn, of those that copies leave behind the forward pass of a layer, at whose begin its room
// is free again: that of the next layer that moves, two turns later at least, or the head's.
size_t FreeTurn(const std::vector<MovedLayer>& layers, size_t layer) {
  size_t turn = layer + 2;
  while (turn < layers.size() && layers[turn].bytes <= 0) ++turn;
  return std::min(turn, layers.size());
}

}  // namespace

KernelTime SecondsWithMoves(const std::vector<MovedLayer>& layers, const KernelTime& behind,
                            double pcie_bytes_per_second) {
  const size_t count = layers.size();
  std::vector<double> room_free(count + 1, 0), begins(count + 1, 0);
  double now = 0, leaving = 0;
  for (size_t l = 0; l < count; ++l) {
    const MovedLayer& layer = layers[l];
    // Its input is there when the layer before has run.
    const double there = std::max(now, leaving);
    now = std::max(now, room_free[l]) + layer.forward_seconds;
    if (layer.bytes <= 0) continue;
    leaving = there + layer.bytes / pcie_bytes_per_second;
    double& free = room_free[FreeTurn(layers, l)];
    free = std::max(free, there + layer.room_bytes / pcie_bytes_per_second);
  }
  const double forward = std::max(now, room_free[count]) + behind.forward_seconds;
  // Copies back begin with the turn before, or two before where nothing comes back for that one.
  now = behind.backward_seconds;
  double coming = 0;
  for (size_t l = count; l-- > 0;) {
    const MovedLayer& layer = layers[l];
    begins[l] = now;
    now += layer.backward_seconds;
    if (layer.bytes <= 0) continue;
    const bool last_moves = l + 1 < count && layers[l + 1].bytes > 0;
    coming =
        std::max(coming, begins[last_moves ? l + 1 : l + 2]) + layer.bytes / pcie_bytes_per_second;
    now = std::max(now, coming + layer.after_seconds);
  }
  return {forward, 0, now};
}

double StepSecondsAtLeast(const GroupTime& group, const KernelTime& kernels,
                          const ActivationMoves& moves, const ExchangeSeconds& exchange,
                          int64_t grad_accum) {
  const auto of = [&](const GroupComm& comm) {
    return SecondsAtLeast(group, comm, kernels, moves, exchange, grad_accum);
  };
  const double within = of(group.within);
  return group.several_groups ? std::max(within, of(group.reducing)) : within;
}

}  // namespace zeroplan
