// DeepSpeed's stages 0, 1 and 2.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "planner/runtimes/deepspeed_engine.h"

namespace zeroplan {
namespace {

// Elements all-reduced at once at stage 0 (engine.py, allreduce_bucket's default).
constexpr uint64_t kAllReduceElements = 500'000'000;
constexpr uint64_t kAllGatherElements = 500'000'000;  // allgather_bucket_size

// FP16_Optimizer, for bf16 too (deepspeed/runtime/fp16/fused_optimizer.py; which one the engine
// takes: engine.py, _do_optimizer_sanity_check).
class Stage0 : public TorchRuntime {
 public:
  Stage0(const TorchModel& model, const TrainSetup& setup, TorchMemory* memory, TorchTimer* timer)
      : TorchRuntime(model, setup, memory, timer), sent_(GradBytes(setup.precision).sent) {}

  // fused_optimizer.py, __init__ and initialize_optimizer_states, which takes a step.
  void Init() override {
    std::vector<Tensor> params, clones;
    MakeFrozen();
    for (const TorchParam& param : model_.trained()) {
      params.push_back(New(TorchClass::kParams, 2 * param.elements));
    }
    for (const TorchParam& param : model_.trained()) {
      clones.push_back(New(TorchClass::kParams, 2 * param.elements));
    }
    flat_ = New(TorchClass::kParams, 2 * elements_);
    clones.clear();
    params.clear();
    Tensor clone = New(TorchClass::kParams, 2 * elements_);
    master_ = New(TorchClass::kOptimizer, 4 * elements_);
    clone.Reset();
    const Tensor grad = New(TorchClass::kOptimizer, 4 * elements_);
    momentum_ = New(TorchClass::kOptimizer, 4 * elements_);
    variance_ = New(TorchClass::kOptimizer, 4 * elements_);
  }

  void Gradient(int param, Tensor grad) override {
    Tensor& kept = grads_[static_cast<size_t>(param)];
    if (kept) timer_->Memory(6 * Elements(static_cast<size_t>(param)));
    if (!kept) kept = std::move(grad);  // else added in place
  }

  // engine.py, buffered_allreduce_fallback.
  void EndBackward() override {
    if (!last_ || gpus_ == 1) return;
    for (uint64_t begin = 0; begin < elements_; begin += kAllReduceElements) {
      const uint64_t count = std::min(kAllReduceElements, elements_ - begin);
      const Tensor bucket = New(TorchClass::kBuffers, 2 * count);
      const Tensor cast = New(TorchClass::kBuffers, sent_ == 2 ? 0 : sent_ * count);
      const auto elements = static_cast<double>(count);
      const auto sent = static_cast<double>(sent_);
      if (cast) timer_->Memory(12 * elements, 2);    // there and back
      timer_->Memory((8 + 2 * sent) * elements, 3);  // flattened, divided, copied back
      timer_->Collective(TorchClock::kComputeStream, CollectiveOp::kAllReduce, sent * elements);
    }
  }

  // fused_optimizer.py, step: gradients cast one by one, then flattened.
  void Step() override {
    const auto elements = static_cast<double>(elements_);
    const int params = static_cast<int>(model_.trained().size());
    // Overflow by gradient, cast, flattened, norm, scaled, Adam, 16-bit parameters.
    timer_->Memory(kOverflowBytes * elements, kOverflowKernels * params);
    timer_->HostWaitsForAll();
    timer_->Memory(6 * elements, params);
    timer_->Memory((8 + 4 + 8 + kAdamBytes + 6) * elements, 5);
    std::vector<Tensor> cast;
    for (const TorchParam& param : model_.trained()) {
      cast.push_back(New(TorchClass::kOptimizer, 4 * param.elements));
    }
    const Tensor flat = New(TorchClass::kOptimizer, 4 * elements_);
    cast.clear();
    for (Tensor& grad : grads_) grad.Reset();
  }

 private:
  const uint64_t elements_ = model_.trained_elements(), sent_;
  Tensor flat_, master_, momentum_, variance_;
  std::vector<Tensor> grads_{model_.params.size()};
};

// Elements of all ranks' partitions: aligned to the ranks times nccl_start_alignment_factor.
uint64_t AlignedElements(uint64_t elements, uint64_t ranks) {
  const uint64_t align = 2 * ranks;
  return (elements + align - 1) / align * align;
}

// all_gather_dp_groups (deepspeed/runtime/utils.py)
void TimeGather(uint64_t elements, size_t params, TorchTimer* timer) {
  timer->Collective(TorchClock::kComputeStream, CollectiveOp::kAllGather,
                    2 * static_cast<double>(elements),
                    static_cast<int>(1 + elements / kAllGatherElements));
  timer->Host(timer->constants().gradient_hook * static_cast<double>(params));
}

// The model as it is loaded, in 16 bit on every rank, before an optimizer flattens it.
class LoadedWhole : public TorchRuntime {
 protected:
  using TorchRuntime::TorchRuntime;
  // The trained parameters; the frozen ones stay as long as the run.
  std::vector<Tensor> MakeParams() {
    std::vector<Tensor> params;
    MakeFrozen();
    for (const TorchParam& param : model_.trained()) {
      params.push_back(New(TorchClass::kParams, 2 * param.elements));
    }
    if (model_.spec.tied_head) {
      // torch.nn.Linear makes a weight of its own before it is tied.
      const auto embedding = static_cast<size_t>(model_.embedding());
      const Tensor head = New(TorchClass::kParams, 2 * model_.params[embedding].elements);
    }
    return params;
  }
};

// BF16_Optimizer (deepspeed/runtime/bf16_optimizer.py), which the engine takes at stage 1 where
// bf16 gradients are summed in fp32 on the GPU (engine.py, _do_optimizer_sanity_check). Sums are
// whole on every rank; 16-bit gradients live until the update.
class Bf16Stage1 : public LoadedWhole {
 public:
  Bf16Stage1(const TorchModel& model, const TorchPlay& play, TorchMemory* memory, TorchTimer* timer)
      : LoadedWhole(model, play.setup, memory, timer),
        sent_(GradBytes(play.setup.precision).sent),
        elements_(AlignedElements(model.trained_elements(), gpus_)),
        partition_(elements_ / gpus_),
        optimizer_(play, {partition_}, memory, timer) {}

  // _setup_for_real_optimizer
  void Init() override {
    std::vector<Tensor> params = MakeParams();
    flat_ = New(TorchClass::kParams, 2 * elements_);
    params.clear();
    {
      const Tensor clone = New(TorchClass::kParams, 2 * partition_);
      master_ = New(TorchClass::kOptimizer, 4 * partition_);
    }
    sums_ = New(TorchClass::kGrads, 4 * elements_);
  }

  // clear_lp_grads: of later micro-steps 16-bit gradients are zeroed, and added to.
  void BeginBackward() override {
    if (first_) return;
    timer_->Memory(2 * static_cast<double>(elements_), static_cast<int>(model_.trained().size()));
  }
  void Gradient(int param, Tensor grad) override {
    Tensor& kept = grads_[static_cast<size_t>(param)];
    if (kept) timer_->Memory(6 * Elements(static_cast<size_t>(param)));
    if (!kept) kept = std::move(grad);
  }

  // update_hp_grads; then the engine's buffered_allreduce_fallback of the sums, as one tensor.
  void EndBackward() override {
    for (size_t i = 0; i < model_.trained().size(); ++i) {
      const Tensor cast = New(TorchClass::kGrads, 4 * model_.params[i].elements);
      timer_->Memory((6 + 12) * Elements(i), 2);
    }
    if (!last_) return;
    const Tensor sent = New(TorchClass::kBuffers, sent_ == 4 ? 0 : sent_ * elements_);
    const auto elements = static_cast<double>(elements_), bytes = static_cast<double>(sent_);
    if (sent) timer_->Memory(12 * elements, 2);     // there and back
    timer_->Memory((2 * bytes + 8) * elements, 2);  // divided, copied onto itself
    timer_->Collective(TorchClock::kComputeStream, CollectiveOp::kAllReduce, bytes * elements);
  }

  // step: the norm of all gradients, which the host asks for, clipping, the update; sums are zeroed
  // twice, the second time by the engine, which drops 16-bit gradients (zero_grad).
  void Step() override {
    const auto all = static_cast<double>(elements_), own = static_cast<double>(partition_);
    const auto params = static_cast<int>(model_.trained().size());
    timer_->Memory(4 * all, 3 * params);
    timer_->HostWaitsForAll();
    timer_->Memory(8 * all, params);
    optimizer_.Step(0);
    const double around = optimizer_.BytesAround();
    timer_->Memory((around + 6) * own, around > 0 ? 2 : 1);
    TimeGather(elements_, model_.trained().size(), timer_);
    timer_->Memory(8 * all, 2);
    for (Tensor& grad : grads_) grad.Reset();
  }

 private:
  const uint64_t sent_, elements_, partition_;
  ZeroOptimizer optimizer_;
  Tensor flat_, master_, sums_;
  std::vector<Tensor> grads_{model_.params.size()};
};

// DeepSpeedZeroOptimizer (deepspeed/runtime/zero/stage_1_and_2.py). Functions named below are its
// own unless a file is given. Stage 2 sums micro-steps in 16 bit whatever grad_accum_dtype is,
// because copy_grads_in_partition's buffer has the dtype of the parameters.
class Stage1And2 : public LoadedWhole {
 public:
  Stage1And2(const TorchModel& model, const TorchPlay& play, TorchMemory* memory, TorchTimer* timer)
      : LoadedWhole(model, play.setup, memory, timer),
        accumulates_(play.setup.batch.grad_accum > 1),
        held_(play.setup.precision),
        sent_(GradBytes(play.setup.precision).sent) {
    elements_ = AlignedElements(model.trained_elements(), gpus_);
    partition_ = elements_ / gpus_;
    uint64_t offset = 0;
    for (const TorchParam& param : model.trained()) {
      // get_partition_info: whole parameters that rank 0's partition has a part of.
      in_partition_.push_back(offset < partition_);
      if (in_partition_.back()) partition_params_ += param.elements;
      largest_ = std::max(largest_, param.elements);
      offset += param.elements;
    }
    optimizer_.emplace(play, std::vector<uint64_t>{partition_}, memory, timer);
  }

  void Init() override {
    std::vector<Tensor> params = MakeParams();
    // __init__: the cache is emptied, parameters are flattened beside themselves and become views.
    memory_->EmptyCache();
    if (!memory_->DriverHas(2 * elements_)) {
      // Where there is no room for that, by way of the host.
      memory_->AddPageable(4 * elements_);
      params.clear();
      memory_->EmptyCache();
      memory_->DropPageable(4 * elements_);
    }
    flat_ = New(TorchClass::kParams, 2 * elements_);
    params.clear();
    {
      // __init__: the own partition is cloned in 16 bit, then cast.
      const bool is_master = !offload_ && held_.light();
      Tensor clone = New(is_master ? TorchClass::kOptimizer : TorchClass::kParams, 2 * partition_);
      if (is_master) {
        master_ = std::move(clone);
      } else if (!offload_) {
        master_ = New(TorchClass::kOptimizer, 4 * partition_);
      }
    }
    if (offload_) {
      InitHost();
      // temp_grad_buffer_for_gpu_offload
      staging_ = New(TorchClass::kBuffers, 2 * largest_);
    } else {
      // initialize_optimizer_states: zeros that no step uses.
      const Tensor grad = New(TorchClass::kOptimizer, held_.master * partition_);
    }
  }

  // process_gradients
  void Gradient(int param, Tensor grad) override {
    const size_t index = static_cast<size_t>(param);
    timer_->Host(timer_->constants().gradient_hook);
    if (buckets_.empty()) {
      // setup_buckets: one, two with overlap_comm; of this size however small the model is.
      const int buckets = zero_.overlap_comm ? 2 : 1;
      for (int i = 0; i < buckets; ++i) {
        buckets_.push_back(New(TorchClass::kBuffers, 2 * zero_.reduce_bucket_elements));
      }
    }
    if (zero_.stage == 1 && (accumulates_ || !zero_.overlap_comm)) {
      // Summed in place over micro-steps. Without overlap_comm nothing is reduced before the end of
      // the last one's backward (reduce_gradients).
      if (grads_[index]) {
        timer_->Memory(6 * Elements(index));
        grad.Reset();
      } else {
        grads_[index] = std::move(grad);
      }
      if (!last_ || !zero_.overlap_comm) return;
      grad = std::move(grads_[index]);
    }
    Bucket(index, std::move(grad));
  }

  // independent_gradient_partition_epilogue; at stage 1 the engine reduces at the boundary alone.
  void EndBackward() override {
    if (zero_.stage == 1 && !last_) return;
    if (zero_.stage == 1 && !zero_.overlap_comm) {
      for (size_t i = 0; i < model_.trained().size(); ++i) Bucket(i, std::move(grads_[i]));
    }
    Reduce();
    if (zero_.overlap_comm) timer_->HostWaitsForAll();  // get_accelerator().synchronize()
    buckets_.clear();
    if (offload_) return;
    if (averaged_) {
      timer_->Memory(6 * static_cast<double>(partition_), static_cast<int>(PartitionParams()));
    }
    // all_grad_tensors: views of the first micro-step's buffer, which later ones are added to.
    if (!averaged_) averaged_ = std::move(partition_grads_);
    partition_grads_.Reset();
  }

  void Step() override {
    if (offload_) {
      StepHost();
      return;
    }
    TimeStep();
    for (size_t i = 0; i < model_.trained().size(); ++i) {
      if (!in_partition_[i]) continue;
      // _has_inf_or_nan: fp32 copy, three masks and one of them as fp32.
      const uint64_t elements = model_.params[i].elements;
      const Tensor cast = New(TorchClass::kGrads, 4 * elements);
      const Tensor nan = New(TorchClass::kGrads, elements);
      const Tensor inf = New(TorchClass::kGrads, elements);
      const Tensor either = New(TorchClass::kGrads, elements);
      const Tensor number = New(TorchClass::kGrads, 4 * elements);
    }
    for (size_t i = 0; i < model_.trained().size(); ++i) {
      if (!in_partition_[i]) continue;
      // get_grad_norm_direct: a copy in fp64.
      const Tensor wide = New(TorchClass::kGrads, 8 * model_.params[i].elements);
    }
    // step: the partition's gradients flattened, then cast.
    Tensor flat = New(TorchClass::kGrads, 2 * partition_);
    Tensor grad;
    if (!held_.light()) {
      grad = New(TorchClass::kOptimizer, 4 * partition_);
      flat.Reset();
    }
    averaged_.Reset();
    // FusedAdam makes its states in its first step (ops/adam/fused_adam.py).
    optimizer_->Step(0);
  }

 private:
  int64_t PartitionParams() const {
    return std::count(in_partition_.begin(), in_partition_.end(), true);
  }

  // step: overflow and norm by parameter, then what is flattened: cast, scaled, Adam, 16 bit again.
  void TimeStep() {
    const auto elements = static_cast<double>(partition_);
    const int params = static_cast<int>(PartitionParams());
    timer_->Memory(kOverflowBytes * elements, kOverflowKernels * params);
    timer_->HostWaitsForAll();
    timer_->Memory(kNormBytes * elements, kNormKernels * params);
    const auto master = static_cast<double>(held_.master);
    const double around = optimizer_->BytesAround();
    timer_->Memory((4 + (held_.light() ? 0 : 6) + 2 * master + around + master + 2) * elements,
                   around > 0 ? 5 : 4);
    TimeGather(elements_, model_.trained().size(), timer_);
  }

  // __init__ and initialize_optimizer_states: masters, a 16-bit copy of them on its way back, and
  // gradients for them, page-locked by way of pageable copies.
  void InitHost() {
    const uint64_t masters = held_.master * partition_;
    for (const uint64_t bytes : {masters, 2 * partition_, 2 * largest_, masters}) {
      AddHost(bytes, zero_.offload_optimizer.pin_memory);
    }
  }

  // step: complete_grad_norm_calculation_for_cpu_offload asks the GPU for each norm; gradients are
  // scaled, updated and cast in turn, then copied.
  void StepHost() {
    const auto elements = static_cast<double>(partition_);
    timer_->HostWaitsForAll();
    timer_->Host(timer_->constants().read_back * static_cast<double>(PartitionParams()));
    const auto master = static_cast<double>(held_.master);
    timer_->HostUpdate(2 * master * elements);
    timer_->HostUpdate(held_.HostUpdate() * elements / timer_->constants().cpu_adam);
    timer_->HostUpdate((master + 2) * elements);
    timer_->Copy(TorchClock::kComputeStream, /*to_device=*/true, 2 * elements);
    TimeGather(elements_, model_.trained().size(), timer_);
    if (host_states_) return;
    host_states_ = true;
    // DeepSpeedCPUAdam (ops/adam/cpu_adam.py)
    memory_->AddPageable(2 * held_.host_state * partition_);
  }

  // reduce_independent_p_g_buckets_and_remove_grads: what a bucket has room for is copied into it.
  void Bucket(size_t index, Tensor grad) {
    const uint64_t elements = model_.params[index].elements;
    if (bucket_elements_ + elements > zero_.reduce_bucket_elements) Reduce();
    bucket_params_.push_back(index);
    bucket_elements_ += elements;
    if (elements <= zero_.reduce_bucket_elements) timer_->Memory(4 * Elements(index));
    if (elements > zero_.reduce_bucket_elements) grads_[index] = std::move(grad);
  }

  // average_tensor, reduce_ipg_grads
  void Reduce() {
    if (bucket_params_.empty()) return;
    {
      // allreduce_bucket flattens the slices that belong to several ranks into a copy.
      const bool copies = gpus_ > 1 && bucket_elements_ <= zero_.reduce_bucket_elements;
      const Tensor copy =
          New(TorchClass::kBuffers, copies ? 2 * bucket_elements_ : 0, reduce_stream_);
      const Tensor cast =
          New(TorchClass::kBuffers, sent_ == 2 ? 0 : sent_ * bucket_elements_, reduce_stream_);
    }
    // average_tensor: the reduction waits for the gradients; what computes next waits for the
    // reduction before. Divided, and (allreduce_and_scatter) copied to and from one tensor.
    if (zero_.overlap_comm) {
      timer_->StreamWaits(TorchClock::kComputeStream, kReduceStream);
      timer_->StreamWaits(kReduceStream, TorchClock::kComputeStream);
    }
    const auto bucket = static_cast<double>(bucket_elements_);
    timer_->Memory((gpus_ > 1 ? 12 : 4) * bucket, gpus_ > 1 ? 3 : 1, reduce_stream_);
    if (sent_ == 4) timer_->Memory(12 * bucket, 2, reduce_stream_);  // there and back
    timer_->Collective(reduce_stream_, CollectiveOp::kAllReduce,
                       static_cast<double>(sent_) * bucket);
    for (const size_t index : bucket_params_) {
      grads_[index].Reset();
      if (!in_partition_[index]) continue;
      if (!offload_) timer_->Memory(4 * Elements(index), 1, reduce_stream_);
      if (offload_) {
        Offload(index);
      } else if (!partition_grads_) {
        // copy_grads_in_partition: room for all of the partition's parameters.
        partition_grads_ = New(TorchClass::kGrads, 2 * partition_params_, reduce_stream_);
      }
    }
    bucket_params_.clear();
    bucket_elements_ = 0;
  }

  void Offload(size_t index) {
    const uint64_t elements = model_.params[index].elements;
    if (zero_.stage == 2 && accumulates_) {
      // async_accumulate_grad_in_cpu_via_gpu: sums in 16 bit, a page-locked buffer a parameter,
      // unless the gradients for 16-bit masters are such sums.
      if (!host_sums_[index] && !held_.light())
        AddHost(2 * elements, zero_.offload_optimizer.pin_memory);
      host_sums_[index] = true;
    }
    timer_->Host(timer_->constants().offloaded_gradient);
    if (zero_.stage == 2 && accumulates_) {
      if (!first_) timer_->Copy(reduce_stream_, /*to_device=*/true, 2 * Elements(index));
      if (!first_) timer_->Memory(6 * Elements(index), 1, reduce_stream_);
      timer_->Copy(reduce_stream_, /*to_device=*/false, 2 * Elements(index));
    }
    if (!last_) return;
    // update_offload_overflow_tracker_for_param_grad asks the GPU whether it overflowed.
    timer_->Memory((kNormBytes + kOverflowBytes) * Elements(index), kNormKernels + kOverflowKernels,
                   reduce_stream_);
    timer_->HostWaits(reduce_stream_);
    if (!held_.light()) timer_->Memory(6 * Elements(index), 1, reduce_stream_);
    timer_->Copy(reduce_stream_, /*to_device=*/false,
                 static_cast<double>(held_.master) * Elements(index));
    // set_norm_for_param_grad_in_gpu: a copy in fp64;
    // async_inplace_copy_grad_to_fp32_buffer_from_gpu: one in fp32.
    { const Tensor wide = New(TorchClass::kGrads, 8 * elements, reduce_stream_); }
    if (held_.light()) return;
    { const Tensor cast = New(TorchClass::kGrads, 4 * elements, reduce_stream_); }
  }

  const bool accumulates_;
  const HeldBytes held_;
  const uint64_t sent_;
  const int reduce_stream_ = zero_.overlap_comm ? kReduceStream : 0;
  uint64_t elements_ = 0, partition_ = 0, partition_params_ = 0, largest_ = 0;
  std::vector<bool> in_partition_, host_sums_ = std::vector<bool>(model_.params.size());
  bool host_states_ = false;

  Tensor flat_, master_, staging_;
  std::optional<ZeroOptimizer> optimizer_;
  std::vector<Tensor> grads_{
      model_.params.size()};  // by parameter: sums of stage 1, and what no bucket holds
  std::vector<Tensor> buckets_;
  std::vector<size_t> bucket_params_;
  uint64_t bucket_elements_ = 0;
  Tensor partition_grads_, averaged_;
};

}  // namespace

std::unique_ptr<TorchRuntime> MakeStages0To2(const TorchModel& model, const TorchPlay& play,
                                             TorchMemory* memory, TorchTimer* timer) {
  if (play.setup.zero.stage == 0) {
    return std::make_unique<Stage0>(model, play.setup, memory, timer);
  }
  if (play.setup.zero.stage == 1 && GradBytes(play.setup.precision).sums == 4) {
    return std::make_unique<Bf16Stage1>(model, play, memory, timer);
  }
  return std::make_unique<Stage1And2>(model, play, memory, timer);
}

}  // namespace zeroplan
