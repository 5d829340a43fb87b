#include "planner/search/bounds.h"

#include <algorithm>
#include <optional>
#include <span>
#include <variant>

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
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    if (instruction.stream != Stream::kCompute) continue;
    // Zeroes a gradient that is added to, which micro-steps that add to the one before's do not.
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch != nullptr && launch->kernel == KernelId::kFill) continue;
    const bool forward = instruction.phase == Phase::kForward || instruction.layer >= layers;
    const auto add = [&](Work& work, const Instruction& timed) {
      (forward ? work.forward : work.backward) += costs.CostOf(program, timed).work;
    };
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
  return bound;
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
      const bool in_segment = instruction.phase == Phase::kBackward && instruction.layer >= first &&
                              instruction.layer < layers;
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
  return {work.forward.SecondsAt(clock), work.backward.SecondsAt(clock)};
}

const ComputeBound& Bounds::Compute(int64_t micro_batch, RecomputeConfig recompute,
                                    const CostModel& costs, const ProductsKind& products) {
  const auto [entry, fresh] = compute_.try_emplace({micro_batch, recompute, products});
  ComputeBound& bound = entry->second;
  if (!fresh) return bound;
  TrainSetup setup = base_;
  setup.batch.micro_batch = micro_batch;
  recompute.every = static_cast<int>(std::min<int64_t>(recompute.every, model_.layers));
  setup.recompute = recompute;
  SetProducts(products, setup.precision);
  const auto set = [&](const LoweredCompute& lowered) {
    bound.kernels = AtItsClock(lowered.work, costs);
    bound.gathered_kernels = AtItsClock(lowered.gathered_work, costs);
    bound.weight_copy_bytes = lowered.weight_copy_bytes;
    bound.transient_bytes = lowered.transient_bytes;
    bound.backward_bytes = lowered.backward_bytes;
    bound.gathered_transient_bytes = lowered.gathered_transient_bytes;
  };
  if (!assumed_.uniform_layers) {
    set(LowerCompute(setup, model_.layers, costs));
    return bound;
  }
  // All segments are alike, so two sizes tell every size: each further segment adds the same
  // seconds, and at the peak (in the backward pass of the last one) the same saved bytes. A model
  // of whole segments has no more layers than the real one. Where anything is frozen the lowest
  // segment has less of a backward pass, so that the smaller size has another one besides.
  const int64_t every = std::max(1, recompute.every);
  const int64_t segments = model_.layers / every;
  const bool frozen = std::any_of(tensors_->begin(), tensors_->end(),
                                  [](const ParamTensor& tensor) { return !tensor.trainable; });
  const int64_t fewer = frozen && segments > 2 ? 2 : 1;
  LoweredCompute lowered = LowerCompute(setup, fewer * every, costs);
  if (segments > 1) {
    const LoweredCompute one_more = LowerCompute(setup, (fewer + 1) * every, costs);
    const auto more = static_cast<double>(segments - fewer);
    const auto add_segments = [more](GpuWork& work, const GpuWork& of_one_more) {
      work = work * (1 - more);
      work += of_one_more * more;
    };
    for (Work LoweredCompute::*work : {&LoweredCompute::work, &LoweredCompute::gathered_work}) {
      add_segments((lowered.*work).forward, (one_more.*work).forward);
      add_segments((lowered.*work).backward, (one_more.*work).backward);
    }
    bound.segments = segments;
    bound.saved_bytes =
        std::max(one_more.transient_bytes, lowered.transient_bytes) - lowered.transient_bytes;
    lowered.transient_bytes += static_cast<uint64_t>(segments - fewer) * bound.saved_bytes;
    lowered.backward_bytes +=
        static_cast<uint64_t>(segments - fewer) *
        (std::max(one_more.backward_bytes, lowered.backward_bytes) - lowered.backward_bytes);
    lowered.gathered_transient_bytes = one_more.gathered_transient_bytes;
    if (one_more.gathered_transient_bytes > 0) {
      lowered.gathered_transient_bytes +=
          static_cast<uint64_t>(segments - fewer - 1) * bound.saved_bytes;
    }
  }
  set(lowered);
  return bound;
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
    most = std::max(most, moment.gpu_bytes + static_cast<uint64_t>(left) * compute.saved_bytes);
  }
  if (group.memory.gathered_bytes > 0 && compute.gathered_transient_bytes > 0) {
    most = std::max(most, group.memory.gathered_bytes + beside(compute.gathered_transient_bytes));
  }
  bound.gpu_bytes += std::max(most + group.memory.tied_head_bytes, beside(compute.transient_bytes));
  return bound;
}

double Bounds::StepSeconds(const GroupBound& group, const ComputeBound& compute,
                           int64_t grad_accum) {
  return StepSecondsAtLeast(
      group.time, group.time.gathers_fp8 ? compute.gathered_kernels : compute.kernels, grad_accum);
}

}  // namespace zeroplan
