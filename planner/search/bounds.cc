#include "planner/search/bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/config/setup_facts.h"
#include "core/lowering/passes.h"
#include "core/program/bucket_sizes.h"
#include "cost_models/closed_form.h"

namespace zeroplan {
namespace {

// Forward, backward and recompute of `layers` layers on one rank, nothing of ZeRO.
ComputeBound LowerSkeleton(ModelSpec model, TrainSetup setup, int64_t layers,
                           const LowerOptions& options, const CostModel& costs) {
  model.layers = layers;
  setup.zero = ZeroConfig{};
  setup.batch.world_size = 1;
  setup.batch.grad_accum = 1;
  setup.precision.grad_accum_dtype = setup.precision.dtype;
  Program program;
  program.model = model;
  program.setup = setup;
  program.backend = options.backend;
  program.layout = BuildParamLayout(
      std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model)), setup.zero, 1);
  program = BuildCompute(std::move(program), options);
  program.section(Section::kEval).clear();
  program = PlaceArenas(InsertLifetimes(InsertRecompute(std::move(program))));
  ComputeBound skeleton;
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    if (instruction.stream != Stream::kCompute) continue;
    const bool forward = instruction.phase == Phase::kForward || instruction.layer >= layers;
    (forward ? skeleton.forward_seconds : skeleton.backward_seconds) +=
        costs.Seconds(program, instruction);
  }
  // The step's workspace and tokens persist, but belong to every choice alike.
  uint64_t states = 0;
  for (const Buffer& buffer : program.buffers) {
    const bool of_unit = buffer.role == Role::kParamFull || buffer.role == Role::kGradFull;
    if (of_unit && buffer.space == Space::kDevice) states += buffer.bytes;
  }
  skeleton.transient_bytes = program.live_peak_bytes[static_cast<size_t>(Space::kDevice)] - states;
  return skeleton;
}

// A collective's seconds per byte fall as it grows, so cutting `bytes` into the largest pieces
// there are costs least.
double PiecesSeconds(const CostModel& costs, CollectiveOp op, double bytes, double piece) {
  piece = std::min(piece, bytes);
  return piece <= 0 ? 0 : bytes / piece * costs.CollectiveSeconds(op, piece);
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

}  // namespace

Bounds::Bounds(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
               const TrainSetup& base, const LowerOptions& options)
    : model_(model), tensors_(std::move(tensors)), base_(base), options_(options) {}

const ComputeBound& Bounds::Compute(int64_t micro_batch, RecomputeConfig recompute,
                                    const CostModel& costs) {
  const auto [entry, fresh] = compute_.try_emplace({micro_batch, recompute});
  if (!fresh) return entry->second;
  // All segments are alike, so two sizes tell every size: each further segment adds the same
  // seconds, and at the peak (in the backward pass of the last one) the same saved bytes. A model
  // of whole segments has no more layers than the real one.
  TrainSetup setup = base_;
  setup.batch.micro_batch = micro_batch;
  recompute.every = static_cast<int>(std::min<int64_t>(recompute.every, model_.layers));
  setup.recompute = recompute;
  const int64_t every = std::max(1, recompute.every);
  const int64_t segments = model_.layers / every;
  const ComputeBound one = LowerSkeleton(model_, setup, every, options_, costs);
  const ComputeBound two =
      segments == 1 ? one : LowerSkeleton(model_, setup, 2 * every, options_, costs);
  const auto more = static_cast<double>(segments - 1);
  ComputeBound& bound = entry->second;
  bound.forward_seconds = one.forward_seconds + more * (two.forward_seconds - one.forward_seconds);
  bound.backward_seconds =
      one.backward_seconds + more * (two.backward_seconds - one.backward_seconds);
  bound.transient_bytes = one.transient_bytes + static_cast<uint64_t>(segments - 1) *
                                                    (two.transient_bytes - one.transient_bytes);
  return bound;
}

const Bounds::Sharding& Bounds::ShardingOf(int gpus) {
  const auto [entry, fresh] = sharding_.try_emplace(gpus);
  if (fresh) {
    ZeroConfig zero = base_.zero;
    zero.stage = 3;
    const ParamLayout layout = BuildParamLayout(tensors_, zero, gpus);
    Sharding& sharding = entry->second;
    double smallest = std::numeric_limits<double>::infinity();
    for (const Unit& unit : layout.units) {
      const auto elements = static_cast<double>(unit.param_elements);
      if (!unit.persistent && unit.layer < model_.layers) smallest = std::min(smallest, elements);
      if (unit.layer == kEmbeddingLayer) {
        sharding.embedding += elements;
        if (!unit.persistent) sharding.embedding_gather += elements;
      }
      if (unit.layer != 0) continue;
      sharding.layer += elements;
      if (!unit.persistent) sharding.layer_gather += elements;
    }
    sharding.persistent = static_cast<double>(layout.persistent_elements());
    sharding.smallest_gather = std::isinf(smallest) ? 0 : smallest;
  }
  return entry->second;
}

GroupBound Bounds::Group(const Candidate& group, const Cluster& cluster, const CostModel& costs) {
  const Terms t = TermsOf(group);
  GroupBound bound;
  bound.memory = MemoryOf(t, group, cluster);
  if (!t.in_place && group.reduce_bucket_elements != kAuto) {
    // Filled by whole layers, so it may end up one short of its size.
    const double layer = ShardingOf(group.gpus).layer;
    const double room = static_cast<double>(group.reduce_bucket_elements) - layer;
    const double layers = static_cast<double>(model_.layers) * layer;
    bound.filled_bucket_bytes =
        static_cast<uint64_t>(std::max(0.0, std::min(room, layers - layer)) * t.param_bytes);
  }
  if (t.n > 1) AddCollectives(t, group, costs, bound);
  AddCopies(t, group, costs, bound);
  AddUpdate(t, group, costs, bound);
  // Updates and the next forward pass hide the gathers between them: what the updates do not, the
  // forward pass has beside it.
  if (base_.zero.overlap_comm) {
    bound.carried_comm_seconds =
        std::max(0.0, GatherSeconds(t, group, costs) - bound.update_seconds);
  }
  bound.rates = costs.overlap();
  return bound;
}

// Model states by the closed forms, without alignment, and what is certainly live beside them.
MemoryBound Bounds::MemoryOf(const Terms& t, const Candidate& group, const Cluster& cluster) {
  const PrecisionConfig& precision = base_.precision;
  const StateBytesPerParam bytes = StateBytes(precision);
  const ModelStates states = ModelStatesPerGpu(group.stage, t.psi, t.whole, t.n, precision);
  double gpu = (t.params_away ? t.whole * t.param_bytes : states.params) +
               (t.in_place ? states.grads : states.grads * (1 - t.away)) +
               states.optimizer * (1 - t.away);
  // The tied head's gradient is open from the loss to the embedding; something is gathered.
  if (!t.in_place) gpu += static_cast<double>(model_.padded_vocab * model_.hidden) * t.param_bytes;
  if (t.sharded) gpu += ShardingOf(group.gpus).smallest_gather * t.param_bytes;
  constexpr double kRounding = 4096;  // a ratio is rounded to the alignment of a shard
  gpu = std::max(0.0, gpu - kRounding);

  const bool states_on_disk = group.optimizer.device == OffloadDevice::kNvme;
  const bool params_on_disk = group.param == OffloadDevice::kNvme;
  const double own = t.psi / t.n;
  const double states_away = (precision.dtype == Dtype::kF32 ? 8.0 : 12.0) * t.away * own;
  const double grads_away = static_cast<double>(bytes.grads) * t.away * own;
  const double params_away = t.params_away ? (t.psi - t.whole) / t.n * t.param_bytes : 0;
  const double kept_in_host =
      static_cast<double>(base_.zero.offload_param.max_in_cpu_elements) * t.param_bytes;
  const double on_disk = (states_on_disk ? states_away : 0) +
                         (params_on_disk ? std::max(0.0, params_away - kept_in_host) : 0);
  const double in_host =
      (states_on_disk ? 0 : states_away) + grads_away + (params_on_disk ? 0 : params_away);
  const auto ranks = static_cast<double>(cluster.ranks_per_node());
  return {static_cast<uint64_t>(gpu) + cluster.runtime_bytes,
          static_cast<uint64_t>(ranks * in_host), static_cast<uint64_t>(ranks * on_disk)};
}

Bounds::Terms Bounds::TermsOf(const Candidate& group) {
  Terms t;
  t.n = group.gpus;
  t.stage = group.stage;
  t.psi = static_cast<double>(model_.ParamCount());
  t.param_bytes = static_cast<double>(DtypeBytes(base_.precision.dtype));
  t.params_away = group.param != OffloadDevice::kNone;
  const TrainSetup setup = SetupOf(group, base_);
  t.sharded = ParamsSharded(setup);
  t.whole = t.sharded ? ShardingOf(group.gpus).persistent : 0;
  t.away = group.optimizer.device == OffloadDevice::kNone ? 0 : group.optimizer.ratio;
  t.in_place = GradsInPlace(setup);
  const Sharding& sharding = ShardingOf(group.gpus);
  // Units of stages below 3 hold a whole layer, and a rank's padding.
  t.largest_unit = 1.01 * std::max(sharding.layer, sharding.embedding);
  t.reused = base_.zero.max_reuse_distance > 0 ? t.psi - t.whole : 0;
  t.gathered_after = group.stage == 0 ? 0 : (t.sharded ? t.whole : t.psi) * t.param_bytes;
  return t;
}

void Bounds::AddCollectives(const Terms& t, const Candidate& group, const CostModel& costs,
                            GroupBound& bound) {
  const Sharding& sharding = ShardingOf(group.gpus);
  const auto layers = static_cast<double>(model_.layers);
  const double layer = sharding.layer * t.param_bytes;
  const double bucket =
      group.reduce_bucket_elements == kAuto
          ? layer
          : std::max(layer, static_cast<double>(group.reduce_bucket_elements) * t.param_bytes);
  const bool all = group.stage == 0 || !base_.zero.reduce_scatter;
  const CollectiveOp op = all ? CollectiveOp::kAllReduce : CollectiveOp::kReduceScatter;
  (t.stage <= 1 ? bound.last_comm_seconds : bound.backward_comm_seconds) +=
      PiecesSeconds(costs, op, layers * layer, bucket);
  if (!t.sharded || sharding.layer_gather <= 0) return;
  const double gathered = sharding.layer_gather * t.param_bytes;
  const double gather = costs.CollectiveSeconds(CollectiveOp::kAllGather, gathered);
  // Gathers ahead of their use may cross from one half into the other.
  const double ahead = group.prefetch_bucket_elements == kAuto
                           ? 2
                           : 2 + std::ceil(static_cast<double>(group.prefetch_bucket_elements) *
                                           t.param_bytes / gathered);
  const double half = std::max(0.0, layers - ahead) * gather;
  bound.forward_comm_seconds += half;
  if (t.reused > 0) return;
  bound.backward_comm_seconds += half;
  if (sharding.embedding_gather <= 0) return;
  // The head gathers the embedding again.
  bound.forward_comm_seconds +=
      costs.CollectiveSeconds(CollectiveOp::kAllGather, sharding.embedding_gather * t.param_bytes);
}

void Bounds::AddCopies(const Terms& t, const Candidate& group, const CostModel& costs,
                       GroupBound& bound) const {
  const double pcie = costs.PcieBytesPerSecond();
  const double own = t.psi / t.n;
  if (!t.in_place) bound.gradient_copy_seconds = t.away * own * t.param_bytes / pcie;
  if (!t.params_away) return;
  const double shards = (t.psi - t.whole) / t.n;
  const double passes = t.reused > 0 ? 1 : 2;
  bound.fetch_seconds = passes * shards * t.param_bytes / pcie;
  if (group.param != OffloadDevice::kNvme) return;
  const double in_cpu = static_cast<double>(base_.zero.offload_param.max_in_cpu_elements);
  bound.fetch_seconds =
      std::max(bound.fetch_seconds, passes * std::max(0.0, shards - in_cpu) * t.param_bytes /
                                        costs.StorageReadBytesPerSecond());
}

// The gathers of updated parameters, one after the other.
double Bounds::GatherSeconds(const Terms& t, const Candidate& group, const CostModel& costs) const {
  if (t.n <= 1) return 0;
  const uint64_t reduced = group.reduce_bucket_elements;
  const uint64_t elements =
      GatherBucketElements(base_.zero, reduced == kAuto ? kLeastAutoBucket : reduced);
  const double bucket = t.param_bytes * std::max(static_cast<double>(elements), t.largest_unit);
  return PiecesSeconds(costs, CollectiveOp::kAllGather, t.gathered_after, bucket);
}

void Bounds::AddUpdate(const Terms& t, const Candidate& group, const CostModel& costs,
                       GroupBound& bound) const {
  // Master and moments are read and written; at fp32 the master may be the parameter itself.
  const bool fp32 = base_.precision.dtype == Dtype::kF32;
  const double bytes = 24 + (fp32 ? 0 : 2 * t.param_bytes);
  const double here = (1 - t.away) * t.psi / (t.stage == 0 ? 1 : t.n);
  const double there = t.away * t.psi / t.n;
  bound.update_seconds = here * bytes / costs.HbmBytesPerSecond();
  if (!base_.zero.overlap_comm) {
    bound.update_seconds = std::max(bound.update_seconds, GatherSeconds(t, group, costs));
  }
  double& away = bound.host_update_seconds;
  away = there * bytes / costs.HostBytesPerSecond();
  if (!t.params_away) {
    away = std::max(away, there * t.param_bytes / costs.PcieBytesPerSecond());
  }
  if (group.optimizer.device == OffloadDevice::kNvme) {
    // What is written of the last two pieces may still be under way in the backward half.
    const double state_bytes = fp32 ? 8 : 12;
    const double last = 2 * static_cast<double>(base_.zero.sub_group_elements);
    away = std::max({away, state_bytes * there / costs.StorageReadBytesPerSecond(),
                     state_bytes * (there - last) / costs.StorageWriteBytesPerSecond()});
  }
  const auto grad_bytes = static_cast<double>(StateBytes(base_.precision).grads);
  const double normed_here = t.in_place ? here + there : here;
  bound.norm_seconds = normed_here * grad_bytes / costs.HbmBytesPerSecond();
  if (!t.in_place) bound.host_norm_seconds = there * grad_bytes / costs.HostBytesPerSecond();
}

MemoryBound Bounds::Memory(const GroupBound& group, const ComputeBound& compute) {
  MemoryBound bound = group.memory;
  bound.gpu_bytes += std::max(compute.transient_bytes, group.filled_bucket_bytes);
  return bound;
}

double Bounds::StepSeconds(const GroupBound& group, const ComputeBound& compute,
                           int64_t grad_accum) {
  // A micro-step; the first one also ends the last update, the last one has its reductions.
  auto micro = [&](bool first, bool last) {
    double forward = SideBySide(
        compute.forward_seconds,
        group.forward_comm_seconds + (first ? group.carried_comm_seconds : 0), group.rates);
    double fetch = group.fetch_seconds;
    if (first) {
      // Every parameter is used before the loss.
      forward = std::max(group.update_seconds + forward, group.host_update_seconds);
      fetch += group.update_seconds;
    }
    const double backward =
        SideBySide(compute.backward_seconds,
                   group.backward_comm_seconds + (last ? group.last_comm_seconds : 0), group.rates);
    const double host = last ? group.host_norm_seconds : 0;
    return std::max(forward + std::max({backward, group.gradient_copy_seconds, host}), fetch);
  };
  if (grad_accum == 1) return micro(true, true) + group.norm_seconds;
  return micro(true, false) + static_cast<double>(grad_accum - 2) * micro(false, false) +
         micro(false, true) + group.norm_seconds;
}

}  // namespace zeroplan
