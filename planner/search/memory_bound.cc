#include "planner/search/memory_bound.h"

#include <algorithm>
#include <cmath>

#include "core/program/bucket_sizes.h"
#include "cost_models/closed_form.h"

namespace zeroplan {
namespace {

double GpuBytes(const GroupTerms& t, const TrainSetup& base) {
  ModelStates states = ModelStatesPerGpu(t.stage, t.psi, t.whole, t.groups, base.precision);
  // Updates in the backward pass may leave none of them.
  states.grads *= base.zero.optimizer_in_backward ? 0 : t.trained / t.psi;
  states.optimizer *= t.trained / t.psi;
  double gpu = (t.params_away ? t.whole * t.param_bytes : states.params) +
               (t.in_place ? states.grads : states.grads * (1 - t.away)) +
               states.optimizer * (1 - t.away);
  constexpr double kRounding = 4096;  // a ratio is rounded to the alignment of a shard
  return std::max(0.0, gpu - kRounding);
}

// Units kept gathered for the backward pass are all there at its begin; and while one of the last
// two segments runs, those before these.
double KeptBytes(const GroupTerms& t, int every, const LayoutFacts& facts) {
  if (!facts.assumed.uniform_layers) return 0;
  const double segments = 2 * std::max(1, every) * facts.largest_layer;
  return std::max(0.0, t.kept - segments) * t.gathered_bytes;
}

// The moments of layers that all have the same tensors, with transient gradients. While a layer's
// backward runs, its unit is gathered, and with overlap_comm the next one too, if the live limit
// lets two be there. Its gradients are whole, and with overlap_comm those of the bucket before its
// own, which is being reduced. A layer may be several units, as its experts and the rest: then
// one of them may be gathered alone.
void SetMoments(const GroupTerms& t, const ZeroConfig& zero, int every, const LayoutFacts& facts,
                GroupMemory& memory) {
  std::array<BackwardMoment, 2>& moments = memory.moments;
  if (t.in_place || !facts.assumed.uniform_layers || facts.layer_gathers.size() != 1) return;
  const double unit = facts.layer_gathers.front().elements;
  const double of_layers = facts.layer_gathers.front().layers;
  const auto layers = std::llround(facts.layers / facts.largest_layer);
  if (std::llround(of_layers) != layers) return;
  const bool overlap = zero.overlap_comm;
  const bool room_for_two = zero.max_live_parameters == kAuto ||
                            static_cast<double>(zero.max_live_parameters) >= 2 * unit;
  // A layer of which a part is frozen is several units, too.
  const bool one_unit = t.all_trained() && !facts.split_layers;
  const bool two =
      overlap && one_unit && zero.prefetch_bucket_elements > 0 && room_for_two && t.reused == 0;
  const double at_once = one_unit ? unit : facts.largest_unit;
  const double gathered = t.sharded ? (two ? 2 : 1) * at_once * t.gathered_bytes : 0;
  memory.gathered_bytes = static_cast<uint64_t>(gathered);
  // With the gradients of so many layers, at most so many layers before the first one.
  const auto add_beside = [&](double bytes, BackwardMoment& moment, int64_t gradients,
                              int64_t behind) {
    if (behind + 2 > layers) return;
    moment.gpu_bytes =
        static_cast<uint64_t>(bytes + static_cast<double>(gradients) * unit * t.written_grad_bytes);
    moment.segments_done = (behind + std::max(1, every)) / std::max(1, every);
  };
  const auto add = [&](BackwardMoment& moment, int64_t gradients, int64_t behind) {
    add_beside(gathered, moment, gradients, behind);
  };
  // A layer that is larger than the bucket is cut.
  const bool open = zero.reduce_bucket_elements == kAuto;
  const bool whole = open || zero.reduce_bucket_elements >= facts.auto_reduce_bucket;
  if (!whole || !zero.contiguous_gradients || !t.all_trained() || t.grads_in_blocks) {
    add(moments[0], 0, 0);
    return;
  }
  if (facts.split_layers) {
    // While a layer's largest unit runs; and at the layer's end, whatever is gathered then.
    add(moments[1], overlap ? 1 : 0, overlap ? 1 : 0);
    add_beside(0, moments[0], overlap ? 2 : 1, overlap ? 1 : 0);
    return;
  }
  add(moments[0], overlap ? 2 : 1, overlap ? 1 : 0);
  // At the end of a bucket. The first one may also have what lies behind the layers.
  const bool padded_layer = t.stage == 3 && facts.auto_reduce_bucket > kLeastAutoBucket;
  if (open || !padded_layer || t.reused > 0) return;
  const auto filled = static_cast<int64_t>(zero.reduce_bucket_elements / facts.auto_reduce_bucket);
  add(moments[1], (overlap ? 2 : 1) * filled, (overlap ? 3 : 2) * filled - 1);
}

}  // namespace

GroupMemory MemoryOfGroup(const GroupTerms& t, const Candidate& group, const TrainSetup& base,
                          const LayoutFacts& facts, const Cluster& cluster,
                          const LowerOptions& options) {
  const bool states_on_disk = group.optimizer.device == OffloadDevice::kNvme;
  const bool params_on_disk = group.param == OffloadDevice::kNvme;
  const double states_away = t.state_bytes * t.away * t.trained_shard();
  const double grads_away = t.grad_bytes * t.away * t.trained_shard();
  const double params_away = t.params_away ? (t.psi - t.whole) / t.shards() * t.param_bytes : 0;
  const double kept_in_host =
      static_cast<double>(base.zero.offload_param.max_in_cpu_elements) * t.param_bytes;
  const double on_disk = (states_on_disk ? states_away : 0) +
                         (params_on_disk ? std::max(0.0, params_away - kept_in_host) : 0);
  double in_host =
      (states_on_disk ? 0 : states_away) + grads_away + (params_on_disk ? 0 : params_away);
  if (options.checkpoints && t.away == 0 && t.all_trained()) {
    // States on the GPU are saved in fp32 by chunks. The largest unit has most of a layer.
    const double piece = 0.9 * facts.largest_layer / (t.stage == 0 ? 1 : t.owners());
    in_host += 4 * std::min(piece, static_cast<double>(options.checkpoint_chunk_elements));
  }
  if (options.checkpoints && options.async_save) in_host += 12 * t.trained_shard();
  const auto node_ranks = static_cast<double>(cluster.ranks_per_node());
  GroupMemory memory;
  memory.node_ranks = static_cast<uint64_t>(cluster.ranks_per_node());
  // Stage 0 gathers nothing.
  const int communicators = t.ranks == 1 ? 0 : t.stage == 0 ? 1 : kProfiledCommunicators;
  memory.gathers_fp8 = t.gathers_fp8;
  memory.states = {static_cast<uint64_t>(GpuBytes(t, base)) +
                       RuntimeBytes(cluster, {.communicators = communicators}),
                   static_cast<uint64_t>(node_ranks * in_host),
                   static_cast<uint64_t>(node_ranks * on_disk)};
  memory.kept_bytes = static_cast<uint64_t>(KeptBytes(t, group.recompute.every, facts));
  if (!t.in_place) {
    memory.tied_head_bytes =
        static_cast<uint64_t>(facts.assumed.tied_head_elements * t.written_grad_bytes);
  }
  SetMoments(t, base.zero, group.recompute.every, facts, memory);
  if (!t.in_place && t.kept == 0 && base.zero.contiguous_gradients && !t.grads_in_blocks &&
      group.buckets.reduce != kAuto && t.all_trained()) {
    // Filled by whole layers, so it may end up one short of its size.
    const double room = static_cast<double>(group.buckets.reduce) - facts.largest_layer;
    memory.filled_bucket_bytes = static_cast<uint64_t>(
        std::max(0.0, std::min(room, facts.layers - facts.largest_layer)) * t.written_grad_bytes);
  }
  return memory;
}

}  // namespace zeroplan
