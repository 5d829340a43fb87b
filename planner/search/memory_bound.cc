#include "planner/search/memory_bound.h"

#include <algorithm>

#include "cost_models/closed_form.h"

namespace zeroplan {
namespace {

double GpuBytes(const GroupTerms& t, const TrainSetup& base, const LayoutFacts& facts) {
  const ModelStates states = ModelStatesPerGpu(t.stage, t.psi, t.whole, t.ranks, base.precision);
  double gpu = (t.params_away ? t.whole * t.param_bytes : states.params) +
               (t.in_place ? states.grads : states.grads * (1 - t.away)) +
               states.optimizer * (1 - t.away);
  if (!t.in_place) gpu += facts.assumed.tied_head_elements * t.written_grad_bytes;
  // Where all is kept for the backward pass: every layer at its begin, and at the peak of the
  // activations, in one of the last two segments, all layers before these.
  if (t.keeps_all) {
    const double segments = 2 * std::max(1, base.recompute.every) * facts.largest_layer;
    gpu += std::max(0.0, facts.gathered_layers() - segments) * t.param_bytes;
  }
  constexpr double kRounding = 4096;  // a ratio is rounded to the alignment of a shard
  return std::max(0.0, gpu - kRounding);
}

}  // namespace

GroupMemory MemoryOfGroup(const GroupTerms& t, const Candidate& group, const TrainSetup& base,
                          const LayoutFacts& facts, const Cluster& cluster,
                          const LowerOptions& options) {
  const bool states_on_disk = group.optimizer.device == OffloadDevice::kNvme;
  const bool params_on_disk = group.param == OffloadDevice::kNvme;
  const double states_away = t.state_bytes * t.away * t.shard();
  const double grads_away = t.grad_bytes * t.away * t.shard();
  const double params_away = t.params_away ? (t.psi - t.whole) / t.ranks * t.param_bytes : 0;
  const double kept_in_host =
      static_cast<double>(base.zero.offload_param.max_in_cpu_elements) * t.param_bytes;
  const double on_disk = (states_on_disk ? states_away : 0) +
                         (params_on_disk ? std::max(0.0, params_away - kept_in_host) : 0);
  double in_host =
      (states_on_disk ? 0 : states_away) + grads_away + (params_on_disk ? 0 : params_away);
  if (options.checkpoints && t.away == 0) {
    // States on the GPU are saved in fp32 by chunks. The largest unit has most of a layer.
    const double piece = 0.9 * facts.largest_layer / (t.stage == 0 ? 1 : t.ranks);
    in_host += 4 * std::min(piece, static_cast<double>(options.checkpoint_chunk_elements));
  }
  if (options.checkpoints && options.async_save) in_host += 12 * t.shard();
  const auto node_ranks = static_cast<double>(cluster.ranks_per_node());
  GroupMemory memory;
  // Stage 0 gathers nothing.
  const int communicators = t.ranks == 1 ? 0 : t.stage == 0 ? 1 : kProfiledCommunicators;
  memory.states = {
      static_cast<uint64_t>(GpuBytes(t, base, facts)) + RuntimeBytes(cluster, {communicators, 0}),
      static_cast<uint64_t>(node_ranks * in_host), static_cast<uint64_t>(node_ranks * on_disk)};
  if (!t.in_place && group.buckets.reduce != kAuto) {
    // Filled by whole layers, so it may end up one short of its size.
    const double room = static_cast<double>(group.buckets.reduce) - facts.largest_layer;
    memory.filled_bucket_bytes = static_cast<uint64_t>(
        std::max(0.0, std::min(room, facts.layers - facts.largest_layer)) * t.written_grad_bytes);
  }
  return memory;
}

}  // namespace zeroplan
