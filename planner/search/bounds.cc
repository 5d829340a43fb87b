#include "planner/search/bounds.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <variant>

#include "core/lowering/kept_activations.h"
#include "cost_models/collective_cost.h"

namespace zeroplan {
namespace {

constexpr size_t kTransposed = 2;  // of Quantize's arguments

// A kernel that finds a weight's largest magnitude, or rounds it to eight bits.
bool RoundsWeight(const Program& program, const LaunchKernel& launch) {
  if (launch.kernel != KernelId::kLargestMagnitude && launch.kernel != KernelId::kQuantize) {
    return false;
  }
  return program.buffers[program.args(launch)[0].buffer].role == Role::kParamFull;
}

// Of the copies that Quantize makes, with their scales.
uint64_t CopyBytes(const Program& program, const LaunchKernel& quantize) {
  uint64_t bytes = 0;
  const std::span<const Ref> args = program.args(quantize);
  for (size_t arg = kTransposed; arg < args.size(); ++arg) bytes += args[arg].bytes;
  return bytes;
}

// What is left of rounding a weight where it is gathered in eight bits: its transposed copy, of
// what was gathered. None for a copy as it lies.
std::optional<Instruction> FromGathered(Program& program, const Instruction& quantize) {
  Instruction instruction = quantize;
  auto& launch = std::get<LaunchKernel>(instruction.op);
  const std::span<const Ref> args = program.args(launch);
  if (args.size() <= kTransposed || args[kTransposed].null()) return std::nullopt;
  Ref codes = args[0];
  codes.bytes /= DtypeBytes(program.setup.precision.dtype);
  const Ref transposed = args[kTransposed];
  launch.first_arg = static_cast<uint32_t>(program.refs.size());
  launch.arg_count = 3;
  program.refs.insert(program.refs.end(), {codes, Ref{}, transposed});
  return instruction;
}

}  // namespace

Bounds::Bounds(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
               const TrainSetup& base, const LowerOptions& options)
    : model_(model),
      tensors_(std::move(tensors)),
      base_(base),
      options_(options),
      assumed_(AssumptionsOf(*tensors_, model.layers)) {}

Bounds::LoweredCompute Bounds::LowerCompute(const TrainSetup& setup, int64_t layers,
                                            const CostModel& costs) const {
  const bool whole = layers == model_.layers;
  ModelSpec model = model_;
  model.layers = layers;
  Program program = LowerMicroStep(
      model,
      whole ? tensors_ : std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model)),
      setup, options_);
  LoweredCompute bound;
  // All ranks of the program share a sequence; a run has them as one group of the cluster's.
  const RankAxes axes(1, costs.shape().gpus, setup.batch.sequence_ranks);
  const CollectiveCost exchange = costs.CollectivesOver(axes, RankAxis::kSequence);
  const std::vector<Instruction>& list = program.section(Section::kMicroStep);
  const auto of_loss = std::find_if(list.rbegin(), list.rend(), [layers](const Instruction& i) {
    return i.phase == Phase::kForward && i.layer >= layers;
  });
  std::set<std::pair<BufferId, uint64_t>> used;  // parameters
  for (auto i = list.begin(); i != list.end(); ++i) {
    const Instruction& instruction = *i;
    if (const auto* collective = std::get_if<Collective>(&instruction.op)) {
      const bool forward = instruction.phase == Phase::kForward;
      (forward ? bound.exchange.forward : bound.exchange.backward) +=
          exchange.Seconds(program, *collective);
    }
    if (instruction.stream != Stream::kCompute) continue;
    // Zeroes a gradient that is added to, which micro-steps that add to the one before's do not.
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch != nullptr && launch->kernel == KernelId::kFill) continue;
    const bool behind = instruction.layer >= layers;
    const bool forward = instruction.phase == Phase::kForward || (behind && i < of_loss.base());
    ForEachAccess(program, instruction, [&](const Ref& ref, ArgMode) {
      if (!forward || program.buffers[ref.buffer].role != Role::kParamFull) return;
      if (used.emplace(ref.buffer, ref.offset).second)
        bound.work.loss = bound.gathered_work.loss = {};
    });
    const auto add = [&](Work& work, const Instruction& timed) {
      (forward ? work.forward : work.backward) += costs.CostOf(program, timed).work;
      if (forward) work.loss += costs.CostOf(program, timed).work;
    };
    if (behind) add(bound.behind, instruction);
    if (launch == nullptr || !RoundsWeight(program, *launch)) {
      add(bound.work, instruction);
      add(bound.gathered_work, instruction);
      continue;
    }
    // A step's first micro-step finds it for all.
    if (launch->kernel == KernelId::kLargestMagnitude) continue;
    add(bound.work, instruction);
    bound.weight_copy_bytes = std::max(bound.weight_copy_bytes, CopyBytes(program, *launch));
    if (const std::optional<Instruction> left = FromGathered(program, instruction)) {
      add(bound.gathered_work, *left);
    }
  }
  SetLive(program, layers, bound);
  SetKept(program, costs, bound);
  return bound;
}

void Bounds::SetKept(const Program& program, const CostModel& costs, LoweredCompute& lowered) {
  const std::vector<Instruction>& list = program.section(Section::kMicroStep);
  lowered.kept.resize(static_cast<size_t>(program.model.layers));
  std::vector<uint32_t> last_read(lowered.kept.size(), 0);
  for (const KeptActivation& activation : KeptActivations(program)) {
    const Buffer& buffer = program.buffers[activation.buffer];
    const auto layer = static_cast<size_t>(buffer.layer);
    lowered.kept[layer].bytes += buffer.bytes;
    // What a layer above reads tells nothing of this one's turn.
    if (list[activation.first_backward].layer == buffer.layer) {
      last_read[layer] = activation.first_backward;
    }
    if (list[activation.last_forward].layer <= buffer.layer) {
      lowered.kept[layer].own_bytes += buffer.bytes;
    }
  }
  for (uint32_t i = 0; i < list.size(); ++i) {
    const auto layer = static_cast<size_t>(list[i].layer);
    const auto* launch = std::get_if<LaunchKernel>(&list[i].op);
    if (launch == nullptr || list[i].stream != Stream::kCompute || list[i].layer < 0 ||
        layer >= lowered.kept.size() || list[i].phase != Phase::kBackward || i < last_read[layer] ||
        lowered.kept[layer].bytes == 0 || launch->kernel == KernelId::kFill ||
        RoundsWeight(program, *launch)) {
      continue;
    }
    lowered.kept[layer].after += costs.CostOf(program, list[i]).work;
  }
}

void Bounds::SetLive(const Program& program, int64_t layers, LoweredCompute& lowered) const {
  uint64_t largest = 0;
  for (const ParamTensor& tensor : *tensors_) {
    if (tensor.layer == 0) largest = std::max(largest, tensor.elements());
  }
  const uint64_t least = largest * DtypeBytes(program.setup.precision.dtype);
  const auto of_step = [](const Buffer& buffer) {
    return buffer.space == Space::kDevice && buffer.role != Role::kParamFull &&
           buffer.role != Role::kGradFull;
  };
  const auto reads_largest = [&](const Ref& ref) {
    return !ref.null() && program.buffers[ref.buffer].role == Role::kParamFull &&
           ref.bytes >= least;
  };
  const auto is_gradient = [&](const Ref& ref) {
    return !ref.null() && program.buffers[ref.buffer].role == Role::kGradFull;
  };
  const int64_t first = std::max<int64_t>(1, layers - std::max(1, program.setup.recompute.every));
  uint64_t live = 0;
  const bool tied = assumed_.tied_head_elements > 0;
  bool backward = false;
  // The step's workspace and tokens persist, but belong to every choice alike.
  for (const Buffer& buffer : program.buffers) {
    if (buffer.persistent && of_step(buffer)) live += buffer.bytes;
  }
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    if (const auto* alloc = std::get_if<Alloc>(&instruction.op)) {
      const Buffer& buffer = program.buffers[alloc->buffer];
      if (of_step(buffer)) live += buffer.bytes;
    } else if (const auto* free = std::get_if<Free>(&instruction.op)) {
      const Buffer& buffer = program.buffers[free->buffer];
      if (of_step(buffer)) live -= buffer.bytes;
    } else if (const auto* launch = std::get_if<LaunchKernel>(&instruction.op)) {
      const std::span<const Ref> args = program.args(*launch);
      backward = backward || std::any_of(args.begin(), args.end(), is_gradient);
      const bool in_layers = instruction.phase == Phase::kBackward && instruction.layer < layers;
      if (in_layers && instruction.layer + 1 == layers) {
        lowered.last_layer_bytes = std::max(lowered.last_layer_bytes, live);
      }
      const bool in_segment = in_layers && instruction.layer >= first;
      if (in_segment && std::any_of(args.begin(), args.end(), reads_largest)) {
        lowered.gathered_transient_bytes = std::max(lowered.gathered_transient_bytes, live);
      }
    }
    lowered.transient_bytes = std::max(lowered.transient_bytes, live);
    if (backward && tied) lowered.backward_bytes = std::max(lowered.backward_bytes, live);
  }
}

KernelTime Bounds::AtItsClock(const Work& work, const CostModel& costs) {
  // The step's own clock is no lower where compute waits, but then the step is no shorter: it
  // draws no less, and no more than the limit.
  GpuWork all = work.forward;
  all += work.backward;
  const double clock = costs.Clock(all);
  // A part alone may draw less than the whole.
  return {work.forward.SecondsAt(clock), work.loss.SecondsAt(1), work.backward.SecondsAt(clock)};
}

// All segments are alike, so two sizes tell every size: each further segment adds the same seconds,
// and at the peak (in the backward pass of the last one) the same saved bytes. A model of whole
// segments has no more layers than the real one. Where anything is frozen the lowest segment has
// less of a backward pass, so that the smaller size has another one besides.
const Bounds::Uniform& Bounds::UniformOf(const TrainSetup& setup, const CostModel& costs,
                                         const ProductsKind& products) {
  const int sequence_ranks = setup.batch.sequence_ranks;
  const auto [entry, fresh] =
      uniform_.try_emplace({sequence_ranks > 1 ? costs.shape().gpus : 0,
                            {setup.batch.micro_batch, setup.recompute, products, sequence_ranks}});
  Uniform& uniform = entry->second;
  if (!fresh) return uniform;
  const int64_t every = std::max(1, setup.recompute.every);
  const int64_t segments = model_.layers / every;
  const bool frozen = std::any_of(tensors_->begin(), tensors_->end(),
                                  [](const ParamTensor& tensor) { return !tensor.trainable; });
  const int64_t fewer = frozen && segments > 2 ? 2 : 1;
  LoweredCompute& lowered = uniform.whole;
  lowered = LowerCompute(setup, fewer * every, costs);
  if (segments == 1) return uniform;
  const LoweredCompute one_more = LowerCompute(setup, (fewer + 1) * every, costs);
  const auto add_segments = [&](Work LoweredCompute::*work, Work& of_layer) {
    for (GpuWork Work::*half : {&Work::forward, &Work::backward}) {
      GpuWork& of_segment = of_layer.*half;
      of_segment = (lowered.*work).*half * -1;
      of_segment += (one_more.*work).*half;
      (lowered.*work).*half += of_segment * static_cast<double>(segments - fewer);
      of_segment = of_segment * (1 / static_cast<double>(every));
    }
  };
  add_segments(&LoweredCompute::work, uniform.of_layer);
  add_segments(&LoweredCompute::gathered_work, uniform.gathered_of_layer);
  for (double ExchangeSeconds::*half : {&ExchangeSeconds::forward, &ExchangeSeconds::backward}) {
    const double of_segment = one_more.exchange.*half - lowered.exchange.*half;
    lowered.exchange.*half += of_segment * static_cast<double>(segments - fewer);
    uniform.exchange_of_layer.*half = of_segment / static_cast<double>(every);
  }
  uniform.segments = segments;
  uniform.saved_bytes =
      std::max(one_more.transient_bytes, lowered.transient_bytes) - lowered.transient_bytes;
  uniform.kept_of_first = one_more.kept.front();
  uniform.kept_of_others = one_more.kept[static_cast<size_t>(fewer - 1)];
  lowered.transient_bytes += static_cast<uint64_t>(segments - fewer) * uniform.saved_bytes;
  lowered.last_layer_bytes += static_cast<uint64_t>(segments - fewer) * uniform.saved_bytes;
  lowered.backward_bytes +=
      static_cast<uint64_t>(segments - fewer) *
      (std::max(one_more.backward_bytes, lowered.backward_bytes) - lowered.backward_bytes);
  lowered.gathered_transient_bytes = one_more.gathered_transient_bytes;
  if (one_more.gathered_transient_bytes > 0) {
    lowered.gathered_transient_bytes +=
        static_cast<uint64_t>(segments - fewer - 1) * uniform.saved_bytes;
  }
  return uniform;
}

// What is offloaded is not on the GPU, but for the tensors of the layer below the last one, which
// are on their way back while the last one's backward pass runs.
void Bounds::SetOffloaded(const RecomputeConfig& recompute, const std::vector<KeptOfLayer>& kept,
                          uint64_t last_layer_bytes, ComputeBound& bound) const {
  const ActivationHome& offload = recompute.offload;
  if (offload.device == OffloadDevice::kNone) return;
  uint64_t near = 0;
  for (int64_t layer = 0; layer < model_.layers; ++layer) {
    if (!offload.Takes(layer, model_.layers)) continue;
    const uint64_t bytes = kept[static_cast<size_t>(layer)].bytes;
    bound.offloaded_bytes += bytes;
    if (layer + 2 == model_.layers && recompute.every <= 1) near = bytes;
  }
  bound.moves.bytes = static_cast<double>(bound.offloaded_bytes);
  const auto without = [](uint64_t live, uint64_t away) { return live - std::min(live, away); };
  const uint64_t away = bound.offloaded_bytes - near;
  bound.transient_bytes = std::max(without(bound.transient_bytes, bound.offloaded_bytes),
                                   without(last_layer_bytes, away));
  bound.backward_bytes = without(bound.backward_bytes, bound.offloaded_bytes);
  bound.gathered_transient_bytes = without(bound.gathered_transient_bytes, away);
}

const ComputeBound& Bounds::Compute(int64_t micro_batch, RecomputeConfig recompute,
                                    const CostModel& costs, const ProductsKind& products,
                                    int sequence_ranks) {
  recompute = OfModel(recompute, model_.layers);
  const bool offloads = recompute.offload.device != OffloadDevice::kNone;
  const auto [entry, fresh] =
      compute_.try_emplace({offloads || sequence_ranks > 1 ? costs.shape().gpus : 0,
                            {micro_batch, recompute, products, sequence_ranks}});
  ComputeBound& bound = entry->second;
  if (!fresh) return bound;
  TrainSetup setup = base_;
  setup.batch.micro_batch = micro_batch;
  setup.batch.sequence_ranks = sequence_ranks;
  setup.recompute = recompute;
  setup.recompute.offload = {};
  SetProducts(products, setup.precision);
  const auto set = [&](const LoweredCompute& lowered) {
    bound.kernels = AtItsClock(lowered.work, costs);
    bound.gathered_kernels = AtItsClock(lowered.gathered_work, costs);
    bound.exchange = lowered.exchange;
    bound.weight_copy_bytes = lowered.weight_copy_bytes;
    bound.transient_bytes = lowered.transient_bytes;
    bound.backward_bytes = lowered.backward_bytes;
    bound.gathered_transient_bytes = lowered.gathered_transient_bytes;
  };
  const bool mixed = recompute.layers > 0;
  if (!assumed_.uniform_layers || (recompute.every > 1 && (mixed || offloads))) {
    const LoweredCompute lowered = LowerCompute(setup, model_.layers, costs);
    set(lowered);
    SetOffloaded(recompute, lowered.kept, lowered.last_layer_bytes, bound);
    return bound;
  }
  setup.recompute = {recompute.kind, recompute.every};
  const Uniform& lower = UniformOf(setup, costs, products);
  setup.recompute = {mixed ? recompute.above : recompute.kind, mixed ? 0 : recompute.every};
  const Uniform& upper = UniformOf(setup, costs, products);
  LoweredCompute lowered = upper.whole;
  bound.segments = upper.segments;
  bound.saved_bytes = upper.saved_bytes;
  std::vector<KeptOfLayer> kept(static_cast<size_t>(model_.layers), upper.kept_of_others);
  kept.front() = lower.kept_of_first;
  if (mixed) {
    // The last layers compute less again than those of a model whose layers are all like the first
    // one. And at the peak of one whose layers are all like the last one, which is in the last
    // layer's backward pass or before it, the first layers have saved less.
    const auto above = static_cast<double>(model_.layers - recompute.layers);  // layers
    const auto set_layers = [&](Work LoweredCompute::*work, Work Uniform::*of_layer) {
      lowered.*work = lower.whole.*work;
      for (GpuWork Work::*half : {&Work::forward, &Work::backward}) {
        (lowered.*work).*half += (lower.*of_layer).*half * -above;
        (lowered.*work).*half += (upper.*of_layer).*half * above;
      }
    };
    set_layers(&LoweredCompute::work, &Uniform::of_layer);
    set_layers(&LoweredCompute::gathered_work, &Uniform::gathered_of_layer);
    for (double ExchangeSeconds::*half : {&ExchangeSeconds::forward, &ExchangeSeconds::backward}) {
      lowered.exchange.*half = lower.whole.exchange.*half + above * (upper.exchange_of_layer.*half -
                                                                     lower.exchange_of_layer.*half);
    }
    lowered.weight_copy_bytes = std::max(lowered.weight_copy_bytes, lower.whole.weight_copy_bytes);
    const uint64_t less = static_cast<uint64_t>(recompute.layers) *
                          (upper.saved_bytes - std::min(upper.saved_bytes, lower.saved_bytes));
    for (uint64_t* live : {&lowered.transient_bytes, &lowered.backward_bytes,
                           &lowered.gathered_transient_bytes, &lowered.last_layer_bytes}) {
      *live -= std::min(*live, less);
    }
    bound.lower_segments = recompute.layers;
    bound.lower_saved_bytes = std::min(lower.saved_bytes, upper.saved_bytes);
    std::fill_n(kept.begin() + 1, recompute.layers - 1, lower.kept_of_others);
  }
  set(lowered);
  SetOffloaded(recompute, kept, lowered.last_layer_bytes, bound);
  if (offloads && recompute.every <= 1) {
    bound.moves.seconds = MovesOf(recompute, kept, lower, upper, lowered.gathered_work, costs);
  }
  return bound;
}

KernelTime Bounds::MovesOf(const RecomputeConfig& recompute, const std::vector<KeptOfLayer>& kept,
                           const Uniform& lower, const Uniform& upper, const Work& work,
                           const CostModel& costs) const {
  // At the highest clock: a part alone may draw less than the whole.
  const double slowest = costs.SlowestRank();
  const auto seconds = [&](const GpuWork& of) { return slowest * of.SecondsAt(1); };
  std::vector<MovedLayer> layers(kept.size());
  // What is not of layers above is the first one's: what runs in front of it, or below.
  const KernelTime behind = {seconds(upper.whole.behind.forward), 0,
                             seconds(upper.whole.behind.backward)};
  double forward = seconds(work.forward) - behind.forward_seconds;
  double backward = seconds(work.backward) - behind.backward_seconds;
  for (size_t l = layers.size(); l-- > 0;) {
    MovedLayer& layer = layers[l];
    const auto index = static_cast<int64_t>(l);
    const Work& of_layer = (index < recompute.layers ? lower : upper).gathered_of_layer;
    layer.forward_seconds = std::max(0.0, l == 0 ? forward : seconds(of_layer.forward));
    layer.backward_seconds = std::max(0.0, l == 0 ? backward : seconds(of_layer.backward));
    forward -= layer.forward_seconds;
    backward -= layer.backward_seconds;
    if (!recompute.offload.Takes(index, model_.layers)) continue;
    layer.after_seconds = std::min(seconds(kept[l].after), layer.backward_seconds);
    layer.bytes = static_cast<double>(kept[l].bytes);
    layer.room_bytes = static_cast<double>(kept[l].own_bytes);
  }
  return SecondsWithMoves(layers, behind, costs.PcieBytesPerSecond());
}

const LayoutFacts& Bounds::FactsFor(const TrainSetup& setup) {
  const int gpus = setup.batch.world_size;
  const Grouping grouping = {setup.zero.shard_group, setup.zero.across_stage};
  const auto [entry, fresh] =
      facts_.try_emplace({gpus, grouping, setup.zero.param_persistence_threshold,
                          IsDynamic8(setup.precision.moment_dtype)});
  if (fresh) {
    ZeroConfig zero = setup.zero;
    zero.stage = 3;
    entry->second = FactsOf(BuildParamLayout(tensors_, zero, gpus, setup.precision), model_.layers,
                            assumed_, setup.precision.dtype);
  }
  return entry->second;
}

GroupBound Bounds::Group(const Candidate& group, const Cluster& cluster, const CostModel& costs) {
  const TrainSetup setup = SetupOf(group, base_);
  const LayoutFacts& facts = FactsFor(setup);
  const GroupTerms terms(setup, facts);
  return {MemoryOfGroup(terms, group, setup, facts, cluster, options_),
          TimeOfGroup(terms, group, setup, facts, costs)};
}

MemoryBound Bounds::Memory(const GroupBound& group, const ComputeBound& compute) {
  MemoryBound bound = group.memory.states;
  const uint64_t no_copy = group.memory.gathers_fp8 ? compute.weight_copy_bytes : 0;
  const auto beside = [no_copy](uint64_t bytes) { return bytes - std::min(bytes, no_copy); };
  // Beside a tied head's gradient.
  uint64_t most = std::max(beside(compute.backward_bytes), group.memory.filled_bucket_bytes);
  for (const BackwardMoment& moment : group.memory.moments) {
    const int64_t left = std::max<int64_t>(0, compute.segments - moment.segments_done);
    most = std::max(most, moment.gpu_bytes + compute.SavedOf(left));
  }
  if (group.memory.gathered_bytes > 0 && compute.gathered_transient_bytes > 0) {
    most = std::max(most, group.memory.gathered_bytes + beside(compute.gathered_transient_bytes));
  }
  most = std::max(most + group.memory.tied_head_bytes, beside(compute.transient_bytes));
  // If some segments recompute more, or activations leave, the peak may lie further down, and less
  // is kept there.
  const uint64_t kept = group.memory.kept_bytes;
  const bool alike = compute.lower_segments == 0 && compute.offloaded_bytes == 0;
  const int64_t before_last = std::max<int64_t>(0, compute.segments - 2);
  bound.gpu_bytes += alike ? kept + most : std::max(most, kept + compute.SavedOf(before_last));
  bound.host_bytes += group.memory.node_ranks * compute.offloaded_bytes;
  return bound;
}

double Bounds::StepSeconds(const GroupBound& group, const ComputeBound& compute,
                           int64_t grad_accum) {
  return StepSecondsAtLeast(group.time,
                            group.time.gathers_fp8 ? compute.gathered_kernels : compute.kernels,
                            compute.moves, compute.exchange, grad_accum);
}

}  // namespace zeroplan
