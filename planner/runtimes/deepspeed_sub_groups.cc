// What DeepSpeed's optimizers hold and update: the optimizer on the GPU, and stage 3's sub-groups
// (deepspeed/runtime/zero/stage3.py; runtime/swap_tensor/).
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/units.h"
#include "core/families/load_model.h"
#include "planner/runtimes/deepspeed_engine.h"

namespace zeroplan {
namespace {

// Sizes in files are multiples of this (AIO_ALIGNED_BYTES with one thread).
constexpr uint64_t kFileAlignment = 1024;

uint64_t FileBytes(uint64_t bytes) {
  return (bytes + kFileAlignment - 1) / kFileAlignment * kFileAlignment;
}

std::vector<UpdatedTensor> Flat(const std::vector<uint64_t>& sizes) {
  std::vector<UpdatedTensor> tensors;
  tensors.reserve(sizes.size());
  for (const uint64_t elements : sizes) tensors.push_back({elements, 0, false});
  return tensors;
}

Dtype MasterDtype(const PrecisionConfig& precision) {
  return precision.master_weights == MasterWeights::kParam ? precision.dtype : Dtype::kF32;
}

}  // namespace

ZeroOptimizer::ZeroOptimizer(const TorchPlay& play, const std::vector<uint64_t>& sizes,
                             TorchMemory* memory, TorchTimer* timer)
    : bytes_around_(play.recipe.optimizer ? 0 : HeldBytes(play.setup.precision).Update()),
      states_(play.recipe.UsedOptimizer(), MasterDtype(play.setup.precision), Flat(sizes), memory,
              play.recipe.optimizer ? timer : &no_timer_) {}

SubGroups::SubGroups(const TorchPlay& play, const std::vector<uint64_t>& shards,
                     TorchMemory* memory, TorchTimer* timer)
    : zero_(play.setup.zero),
      held_(play.setup.precision),
      sum_bytes_(GradBytes(play.setup.precision).sums),
      offload_(zero_.offload_optimizer.device != OffloadDevice::kNone),
      offload_param_(zero_.offload_param.device != OffloadDevice::kNone),
      optimizer_in_files_(zero_.offload_optimizer.device == OffloadDevice::kNvme),
      params_in_files_(zero_.offload_param.device == OffloadDevice::kNvme),
      shards_(shards),
      group_of_(shards.size()),
      memory_(memory),
      timer_(timer) {
  for (const uint64_t shard : shards) partition_ += shard;
  Make();
  if (params_in_files_) PlaceParams();
  std::vector<uint64_t> sizes;
  for (const SubGroup& group : groups_) sizes.push_back(group.elements);
  optimizer_ = std::make_unique<ZeroOptimizer>(play, sizes, memory, timer);
}

// _create_fp16_sub_groups
void SubGroups::Make() {
  const uint64_t size = zero_.sub_group_elements;
  SubGroup group;
  for (size_t i = 0; i < shards_.size(); ++i) {
    group.elements += shards_[i];
    group.params.push_back(i);
    group_of_[i] = groups_.size();
    if ((size < partition_ && group.elements >= size) || i + 1 == shards_.size()) {
      largest_ = std::max(largest_, group.elements);
      groups_.push_back(std::move(group));
      group = SubGroup{};
    }
  }
  if (!offload_) return;
  // _create_fp32_partitions: the last groups of all are the host's.
  const auto count = static_cast<double>(groups_.size());
  const auto on_gpu = static_cast<size_t>((1 - zero_.offload_optimizer.ratio) * count);
  for (size_t i = on_gpu; i < groups_.size(); ++i) {
    groups_[i].on_host = true;
    groups_[i].in_files =
        optimizer_in_files_ && held_.master * groups_[i].elements >= kLeastFileBytes;
  }
}

// _create_fp16_partitions_with_defragmentation: whole groups that max_in_cpu has room for stay in
// one buffer on the host.
void SubGroups::PlaceParams() {
  uint64_t offset = 0;
  for (SubGroup& group : groups_) {
    offset += group.elements;
    group.params_in_files = offset > params_on_host();
  }
}

// AsyncPartitionedParameterSwapper's buffers; reserve_partitioned_swap_space. zero.Init writes all
// that is large enough.
void SubGroups::LockParamBuffers() {
  if (!params_in_files_) return;
  const auto& files = zero_.offload_param;
  memory_->Lock(static_cast<uint64_t>(files.buffer_count) * FileBytes(2 * files.buffer_elements));
  const bool any = std::any_of(groups_.begin(), groups_.end(),
                               [](const SubGroup& group) { return group.params_in_files; });
  if (any) memory_->Lock(FileBytes(2 * largest_));
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (has_file(i)) memory_->AddFiles(FileBytes(2 * shards_[i]));
  }
}

void SubGroups::Init() {
  if (optimizer_in_files_) {
    // SwapBufferManager, page-locked by itself.
    const auto buffers = static_cast<uint64_t>(zero_.offload_optimizer.buffer_count);
    memory_->Lock(buffers * FileBytes(held_.master * largest_));
  }
  for (SubGroup& group : groups_) {
    if (group.on_host) {
      InitOnHost(group);
      continue;
    }
    // 16-bit masters are clones at once.
    Tensor converted;
    if (!held_.light()) converted = memory_->New(TorchClass::kOptimizer, 4 * group.elements);
    group.master = memory_->New(TorchClass::kOptimizer, held_.master * group.elements);
  }
  if (!offload_) {
    const Tensor zeros = memory_->New(TorchClass::kOptimizer, held_.master * largest_);
    return;
  }
  const bool pin = zero_.offload_optimizer.pin_memory;
  memory_->AddPageable(held_.master * largest_);
  for (SubGroup& group : groups_) {
    const uint64_t bytes = held_.master * group.elements;
    if (group.in_files) continue;
    memory_->AddPageable(bytes);
    if (pin) {
      memory_->Pin(bytes);
      memory_->DropPageable(bytes);
    }
    if (group.on_host) continue;
    group.grad = memory_->New(TorchClass::kOptimizer, bytes);
    if (pin) {
      memory_->Unpin(bytes);
    } else {
      memory_->DropPageable(bytes);
    }
  }
  memory_->DropPageable(held_.master * largest_);
}

void SubGroups::InitOnHost(SubGroup& group) {
  const uint64_t bytes = held_.master * group.elements;
  if (group.in_files) {
    // And the gradient.
    memory_->AddFiles(2 * FileBytes(bytes) + 2 * FileBytes(held_.host_state * group.elements));
    // Where parameters are in files too, masters are made of these by way of a copy.
    if (group.params_in_files) {
      memory_->AddPageable(bytes);
      memory_->DropPageable(bytes);
    }
    return;
  }
  const bool copied = !group.params_in_files && !(held_.light() && offload_param_);
  memory_->AddPageable(copied ? 2 * bytes : bytes);
  if (copied) memory_->DropPageable(bytes);
}

void SubGroups::Step() {
  unwritten_.clear();
  for (size_t i = 0; i < groups_.size(); ++i) {
    SubGroup& group = groups_[i];
    if (group.on_host) {
      const uint64_t states = 2 * held_.host_state * group.elements;
      if (!group.has_states) {
        memory_->AddPageable(states);
        if (group.in_files) memory_->DropPageable(states);
      }
      group.has_states = true;
      continue;
    }
    Tensor flat, cast;
    if (!offload_) {
      // _prepare_fp32_grad_for_sub_group
      flat = memory_->New(TorchClass::kGrads, sum_bytes_ * group.elements);
      if (sum_bytes_ != held_.master) {
        cast = memory_->New(TorchClass::kOptimizer, 4 * group.elements);
        flat.Reset();
      }
    }
    optimizer_->Step(i);
  }
}

// The update of each group, after clipping.
void SubGroups::TimeStep() {
  const auto master = static_cast<double>(held_.master);
  if (optimizer_in_files_) timer_->HostWaits(kWriteStream);  // _flush_gradient_swapper
  for (size_t i = 0; i < groups_.size(); ++i) {
    const SubGroup& group = groups_[i];
    const auto size = static_cast<double>(group.elements);
    if (!group.on_host) {
      const double around = optimizer_->BytesAround();
      const double cast = sum_bytes_ == held_.master ? 0 : 6;
      const auto flattened = static_cast<double>(2 * sum_bytes_);
      timer_->Memory((flattened + cast + 2 * master + around) * size, around > 0 ? 5 : 4);
      timer_->Memory((master + 2) * size);
      if (offload_param_) timer_->Copy(TorchClock::kComputeStream, /*to_device=*/false, 2 * size);
      continue;
    }
    if (group.in_files) TimeFiles(i);
    timer_->HostUpdate(2 * master * size);
    timer_->HostUpdate(held_.HostUpdate() * size / timer_->constants().cpu_adam);
    if (group.params_in_files) {
      timer_->HostUpdate((master + 2) * size);
      timer_->File(kWriteStream, /*write=*/true, 2 * size);
      timer_->HostWaits(kWriteStream);
    } else if (offload_param_) {
      timer_->HostUpdate((master + 2) * size);
    } else {
      timer_->Copy(TorchClock::kComputeStream, /*to_device=*/true, master * size);
    }
    if (!group.in_files) continue;
    // swap_out_optimizer_state
    const auto& files = zero_.offload_optimizer;
    if (files.pipeline_write) timer_->HostWaits(kWriteStream);
    timer_->File(kWriteStream, /*write=*/true,
                 (master + static_cast<double>(2 * held_.host_state)) * size);
    if (!files.pipeline_write || i + 1 == groups_.size()) timer_->HostWaits(kWriteStream);
  }
}

// swap_in_optimizer_state: master, gradient and states; with pipeline_read those of the next group
// behind the update of this one.
void SubGroups::TimeFiles(size_t index) {
  const auto read = [&](const SubGroup& one) {
    const double bytes = 2.0 * static_cast<double>(held_.master + held_.host_state);
    timer_->File(kReadStream, /*write=*/false, bytes * static_cast<double>(one.elements));
  };
  if (!read_ahead_) read(groups_[index]);
  timer_->HostWaits(kReadStream);
  read_ahead_ = zero_.offload_optimizer.pipeline_read && index + 1 < groups_.size() &&
                groups_[index + 1].in_files;
  if (read_ahead_) read(groups_[index + 1]);
}

void SubGroups::OffloadGradient(size_t param, int stream) {
  { const Tensor wide = memory_->New(TorchClass::kGrads, 8 * shards_[param], stream); }
  if (sum_bytes_ == held_.master) return;
  Tensor cast = memory_->New(TorchClass::kGrads, 4 * shards_[param], stream);
  // _swap_out_gradients: what is small, and what is left of an aligned size, which is a view.
  const uint64_t bytes = 4 * shards_[param];
  const bool whole = bytes >= kLeastFileBytes && bytes % kFileAlignment == 0;
  if (groups_[group_of_[param]].in_files && !whole) unwritten_.push_back(std::move(cast));
}

// _offload_grad_partition_at_boundary
void SubGroups::TimeOffloadGradient(const std::vector<size_t>& params, int stream) {
  double shards = 0, written = 0;
  for (const size_t param : params) {
    shards += static_cast<double>(shards_[param]);
    if (groups_[group_of_[param]].in_files) written += static_cast<double>(shards_[param]);
  }
  const auto count = static_cast<int>(params.size());
  const auto master = static_cast<double>(held_.master);
  const int casts = sum_bytes_ == held_.master ? 0 : 1;
  timer_->Memory((kNormBytes + 6 * casts) * shards, (kNormKernels + casts) * count, stream);
  timer_->Copy(stream, /*to_device=*/false, master * shards, count);
  if (written == 0) return;
  timer_->StreamWaits(kWriteStream, stream);
  timer_->File(kWriteStream, /*write=*/true, master * written);
}

uint64_t LargestFilePart(const ModelSpec& model, const TrainSetup& setup) {
  if (setup.zero.offload_param.device != OffloadDevice::kNvme) return 0;
  const auto ranks = static_cast<uint64_t>(setup.batch.world_size);
  uint64_t largest = 0;
  const auto take = [&](uint64_t elements) {
    largest = std::max(largest, CeilDiv(elements, ranks));
  };
  if (model.experts > 0) {
    // transformers has one parameter for the same matrix of all experts.
    for (const ParamTensor& tensor : BuildParamTable(model)) {
      for (const PublishedTensor& part : PublishedTensors(tensor)) {
        const int64_t rows = tensor.expert ? tensor.shape[0] : part.end - part.begin;
        take(static_cast<uint64_t>(rows * tensor.shape[1]));
      }
    }
  } else {
    for (const TorchParam& param : TorchModel(model).params) take(param.elements);
  }
  return 2 * largest >= kLeastFileBytes ? largest : 0;
}

std::string ParamBufferProblem(const ModelSpec& model, const TrainSetup& setup) {
  const uint64_t part = LargestFilePart(model, setup);
  const uint64_t size = setup.zero.offload_param.buffer_elements;
  if (part <= size) return "";
  return fmt::format(
      "zero_optimization.offload_param.buffer_size: {} is less than the {} elements that a GPU has "
      "of the largest parameter: DeepSpeed ends with \"More elements {} than buffer size {}\"; set "
      "buffer_size to {} or more",
      size, part, part, size, part);
}

void FitParamBuffers(const ModelSpec& model, TrainSetup& setup) {
  uint64_t& size = setup.zero.offload_param.buffer_elements;
  size = std::max(size, LargestFilePart(model, setup));
}

void TimeQuantizedReduction(const TorchModel& model, size_t param, uint64_t gpus, TorchTimer* timer,
                            int stream) {
  const TorchParam& reduced = model.params[param];
  const auto elements = static_cast<double>(reduced.elements);
  const double nodes = timer->nodes();
  const double part = elements * nodes / static_cast<double>(gpus);
  if (reduced.vector || reduced.elements % (2 * gpus) != 0) {
    timer->Memory(4 * elements, 1, stream);
    timer->Collective(stream, CollectiveOp::kReduceScatter, 2 * elements);
    return;
  }
  const double scale_bytes = 4.0 / static_cast<double>(model.spec.hidden);
  timer->Memory(2.5 * elements, 1, stream);
  timer->AllToAll(stream, elements / 2, RankGroups::kNode);
  timer->AllToAll(stream, elements * scale_bytes, RankGroups::kNode);
  timer->Memory((elements + part) / 2, 1, stream);
  timer->AllToAll(stream, part / 2, RankGroups::kAcrossNodes);
  timer->AllToAll(stream, part * scale_bytes, RankGroups::kAcrossNodes);
  // dequantize; the nodes' parts are added one after the other.
  timer->Memory(2.5 * part + 6 * part, 1 + static_cast<int>(nodes), stream);
}

}  // namespace zeroplan
