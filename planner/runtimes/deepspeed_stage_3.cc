// Stage 3: DeepSpeedZeroOptimizer_Stage3 (deepspeed/runtime/zero/stage3.py), zero.Init
// (partition_parameters.py) and PartitionedParameterCoordinator (partitioned_param_coordinator.py);
// MiCS_Optimizer (mics.py).
//
// Shard groups: MiCS partitions everything within the group; ZeRO++'s hpZ partitions everything
// over all ranks, and parameters within the group too, in copies that live from the first time in a
// step that a parameter is freed to the update. What is gathered from copies is gathered within the
// group: all but a step's first gather of each parameter.
#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "core/settings/setup_facts.h"
#include "planner/runtimes/deepspeed_engine.h"
#include "planner/runtimes/deepspeed_trace.h"

namespace zeroplan {
namespace {

// Elements to a scale where gathers are quantized (CUDAQuantizer::target_group_size).
constexpr double kQuantizedGroup = 8000;

class Stage3 : public TorchRuntime {
 public:
  Stage3(const TorchModel& model, const TorchPlay& play, TorchMemory* memory, TorchTimer* timer)
      : TorchRuntime(model, play.setup, memory, timer),
        group_(static_cast<uint64_t>(ShardRanks(zero_, play.setup.batch.world_size))),
        mics_(Hybrid(play.setup) && zero_.across_stage == 0),
        hpz_(Hybrid(play.setup) && !mics_),
        ranks_(mics_ ? group_ : gpus_),
        bytes_(play.setup.precision),
        fp16_(play.setup.precision.dtype == Dtype::kF16) {
    for (const TorchParam& param : model.params) {
      shards_.push_back((param.elements + ranks_ - 1) / ranks_);
      if (param.trained) partition_ += shards_.back();
      largest_ = std::max(largest_, param.elements);
    }
    trained_shards_.assign(shards_.begin(),
                           shards_.begin() + static_cast<std::ptrdiff_t>(model.trained_params));
    sub_groups_.emplace(play, trained_shards_, memory, timer);
  }

  void Init() override {
    InitParams();
    sub_groups_->Init();
    // _setup_for_real_optimizer: the bucket whatever the model's size, then the gradients' shards.
    bucket_ = New(TorchClass::kBuffers, bytes_.sent * zero_.reduce_bucket_elements);
    if (offload_) {
      AddHost(bytes_.sums * partition_, zero_.offload_optimizer.pin_memory);
    } else {
      grads_ = New(TorchClass::kGrads, bytes_.sums * partition_);
    }
    // The largest parameter is gathered once more before the first step.
    const Tensor gathered = New(TorchClass::kParams, 2 * largest_);
    const Tensor copied = New(TorchClass::kParams, offload_param_ ? 2 * largest_ : 0);
  }

  void BeginMicroStep(bool last) override {
    TorchRuntime::BeginMicroStep(last);
    position_ = 0;
    live_ = 0;
    queue_.assign(trace_params_.begin(), trace_params_.end());
    if (mode_ == Trace::kComplete) fetched_for_.assign(model_.params.size(), -1);
    Fetch(kNoParams);  // the whole model's hooks
  }
  void BeginBackward() override { Fetch(kNoParams); }

  // _register_deepspeed_module: hooks around every module, and by autograd functions around its
  // backward pass. Those that have no parameters count in the trace, and prefetch.
  void BeforeForward(int module) override {
    if (leaves_.Enters(&module)) Fetch(module);
  }
  void AfterForward(int module) override {
    if (leaves_.Leaves(&module) && module != recomputed_) Release(module);
  }
  void BeforeBackward(int module) override {
    if (!leaves_.Enters(&module)) return;
    if (module != recomputed_) Fetch(module);
    recomputed_ = kNoParams;
  }
  void AfterBackward(int module) override {
    if (!leaves_.Leaves(&module)) return;
    Release(module);
    for (auto& [param, grad] : leaf_grads_) AddGradient(param, std::move(grad));
    leaf_grads_.clear();
  }
  void BeforeLayer() override {
    if (!leaves_.open()) Fetch(kNoParams);
  }
  void BeforeLayerBackward() override {
    if (!leaves_.open()) Fetch(kNoParams);
  }
  void BeforeRecompute(int last_module) override {
    recomputed_ = leaves_.Of(last_module);
    Fetch(recomputed_);
  }

  // A leaf module's gradients wait for its last one (create_reduce_and_remove_grad_hooks).
  void Gradient(int param, Tensor grad) override {
    if (!leaves_.open()) return AddGradient(param, std::move(grad));
    leaf_grads_.emplace_back(param, std::move(grad));
  }

  // reduce_independent_p_g_buckets_and_remove_grads
  void AddGradient(int param, Tensor grad) {
    const size_t index = static_cast<size_t>(param);
    const uint64_t elements = model_.params[index].elements;
    if (bucket_elements_ > 0 && bucket_elements_ + elements > zero_.reduce_bucket_elements)
      Reduce();
    timer_->Python(PythonCall::kGradient);
    timer_->StreamWaits(reduce_stream_, TorchClock::kComputeStream);
    timer_->Memory((2 + Sent()) * static_cast<double>(elements), 1, reduce_stream_);
    bucket_params_.push_back(index);
    bucket_elements_ += elements;
    if (bucket_elements_ > zero_.reduce_bucket_elements) unbucketed_.push_back(std::move(grad));
  }

  void EndBackward() override {
    Reduce();
    timer_->HostWaits(reduce_stream_);
    // reset_step, at the next forward pass: the first run is the trace of those that follow.
    if (mode_ == Trace::kRecord) CompleteTrace();
    prefetched_.clear();
  }

  void Step() override {
    TimeStep();
    for (size_t i = 0; i < whole_.size(); ++i) Free(i);  // partition_all_parameters
    if (!offload_) {
      // has_overflow: a mask of all shards.
      { const Tensor mask = New(TorchClass::kGrads, partition_, reduce_stream_); }
      // get_grad_norm_direct: each shard in fp64.
      for (const uint64_t shard : trained_shards_) {
        const Tensor wide = New(TorchClass::kGrads, 8 * shard);
      }
    }
    sub_groups_->Step();
    // _post_step gathers what persists, then drops copies.
    for (size_t i = 0; i < whole_.size(); ++i) {
      if (Persists(i) && Gathers()) whole_[i] = New(TorchClass::kParams, Bytes(i));
    }
    for (Tensor& copy : copies_) copy.Reset();
  }

 private:
  // step: norms, then each group of parameters is scaled, updated and cast.
  void TimeStep() {
    const int params = static_cast<int>(trained_shards_.size());
    const auto elements = static_cast<double>(partition_);
    if (offload_) {
      timer_->Memory(8 * params, 3 * params);  // of numbers
    } else {
      timer_->Memory(kNormBytes * elements, kNormKernels * params);
    }
    timer_->HostWaitsForAll();
    sub_groups_->TimeStep();
    // _post_step: what persists is gathered one parameter after the other.
    for (size_t i = 0; i < whole_.size(); ++i) {
      if (!Persists(i)) continue;
      if (Gathers()) timer_->Python(PythonCall::kPersistentParam);
      timer_->Collective(TorchClock::kComputeStream, CollectiveOp::kAllGather,
                         static_cast<double>(Bytes(i)), 1, Groups());
    }
  }

  enum class Trace : uint8_t { kRecord, kComplete };
  static constexpr int kNoParams = -1;  // in place of a module
  // Parameters that one all-gather brings, until the first of them is waited for.
  struct Gathered {
    std::vector<size_t> params;
    Tensor flat;
    uint64_t bytes = 0;  // in 16 bit, of all ranks' shards
  };

  uint64_t Bytes(size_t param) const { return 2 * model_.params[param].elements; }
  const std::vector<int>& Params(int module) const {
    static const std::vector<int> none;
    if (module == kNoParams) return none;
    const std::vector<int>* of_leaf = leaves_.Params(module);
    return of_leaf != nullptr ? *of_leaf : model_.modules[static_cast<size_t>(module)].params;
  }

  // Whose shards are gathered and gradients reduced, but for what is gathered from copies.
  RankGroups Groups() const { return mics_ ? RankGroups::kShard : RankGroups::kAll; }
  double Sent() const { return static_cast<double>(bytes_.sent); }
  // Elements of a rank's shard of a parameter, or of its copy's.
  uint64_t ShardOf(size_t param, bool copy) const {
    return copy ? ranks_ * shards_[param] / group_ : shards_[param];
  }
  // One rank's shards are the parameters, unless they are brought from the host.
  bool Gathers() const { return gpus_ > 1 || offload_param_; }
  bool Persists(size_t param) const {
    return model_.params[param].elements <= zero_.param_persistence_threshold;
  }

  // zero.Init shards each parameter as soon as its module is made; then all shards are moved into
  // one buffer (_create_fp16_partitions_with_defragmentation).
  void InitParams() {
    std::vector<Tensor> shards;
    const bool pin = zero_.offload_param.pin_memory;
    sub_groups_->LockParamBuffers();
    // What is frozen stays where zero.Init leaves it.
    const auto shard_frozen = [&](size_t i) {
      const Tensor gathered = New(TorchClass::kParams, Bytes(i));
      if (offload_param_) {
        AddHost(2 * shards_[i], pin);
      } else {
        frozen_.push_back(New(TorchClass::kParams, 2 * shards_[i]));
      }
      if (hpz_) copies_[i] = New(TorchClass::kParams, 2 * ShardOf(i, /*copy=*/true));
    };
    const auto shard_one = [&](size_t i) {
      const Tensor whole = New(TorchClass::kParams, Bytes(i));
      if (offload_param_) {
        if (!sub_groups_->has_file(i)) AddHost(2 * shards_[i], pin);
      } else {
        shards.push_back(New(TorchClass::kParams, 2 * shards_[i]));
      }
      if (hpz_) copies_[i] = New(TorchClass::kParams, 2 * ShardOf(i, /*copy=*/true));
    };
    // Quantized models are made whole, and then sharded.
    std::vector<Tensor> whole;
    if (model_.spec.lora_quantized) {
      MakeQuantTensors();
      for (size_t i = 0; i < shards_.size(); ++i) {
        whole.push_back(New(TorchClass::kParams, Bytes(i)));
      }
    }
    for (size_t i = trained_shards_.size(); i < shards_.size(); ++i) {
      shard_frozen(i);
      if (!whole.empty()) whole[i].Reset();
    }
    for (size_t i = 0; i < trained_shards_.size(); ++i) shard_one(i);
    whole.clear();
    if (model_.spec.tied_head && !model_.has_adapters()) {
      shard_one(0);  // torch.nn.Linear's own, before it is tied
      if (offload_param_ && pin && !sub_groups_->has_file(0)) memory_->Unpin(2 * shards_[0]);
      if (!offload_param_) shards.pop_back();
    }
    if (offload_param_) {
      // _create_param_groups_fp16_flat_cpu_memory
      AddHost(2 * sub_groups_->params_on_host(), /*pin=*/true);
      for (size_t i = 0; i < trained_shards_.size(); ++i) {
        const bool moved = !sub_groups_->has_file(i) && !sub_groups_->params_in_files(i);
        if (pin && moved) memory_->Unpin(2 * shards_[i]);
      }
      return;
    }
    // defragment: by way of the host.
    memory_->AddPageable(2 * partition_);
    shards.clear();
    memory_->EmptyCache();
    params_ = New(TorchClass::kParams, 2 * partition_);
    memory_->DropPageable(2 * partition_);
  }

  void CompleteTrace() {
    mode_ = Trace::kComplete;
    for (size_t step = 0; step < trace_.size(); ++step) {
      uses_.BeginStep();
      for (const int param : Params(trace_[step])) {
        trace_params_.push_back({static_cast<size_t>(param), static_cast<int>(step)});
        uses_.Use(static_cast<size_t>(param), model_.params[static_cast<size_t>(param)].elements);
      }
    }
  }

  // __all_gather_params: what has copies, and what has none.
  void Gather(const std::vector<size_t>& params) {
    std::vector<size_t> from_copies, others;
    for (const size_t param : params) (copies_[param] ? from_copies : others).push_back(param);
    Gather(from_copies, /*copies=*/true);
    Gather(others, /*copies=*/false);
  }

  // AllGatherCoalescedHandle: several parameters arrive in one buffer, but for MiCS.
  void Gather(const std::vector<size_t>& params, bool copies) {
    if (params.empty()) return;
    timer_->Python(PythonCall::kGather);
    timer_->Python(PythonCall::kGatheredParam, static_cast<int>(params.size()));
    Gathered gathered;
    uint64_t bytes = 0;
    for (const size_t param : params) {
      live_ += model_.params[param].elements;
      bytes += 2 * ranks_ * shards_[param];
    }
    gathered.params = params;
    gathered.bytes = bytes;
    const auto count = static_cast<int>(params.size());
    const double shards =
        static_cast<double>(bytes) / static_cast<double>(copies ? group_ : ranks_);
    ReadFiles(params, /*waits=*/true);
    if (offload_param_) timer_->Copy(gather_stream_, /*to_device=*/true, shards, count);
    const RankGroups groups = copies ? RankGroups::kShard : Groups();
    const auto whole = static_cast<double>(bytes);
    if (zero_.quantized_weights) {
      // CUDAQuantizer::quantize: from fp16, one scale for about 8,000 elements.
      timer_->Memory(((fp16_ ? 0 : 2) + (count > 1 ? 2 : 0) + 1.5) * shards, fp16_ ? 2 : 3,
                     gather_stream_);
      timer_->Collective(gather_stream_, CollectiveOp::kAllGather, whole / 2, 1, groups);
      timer_->Collective(gather_stream_, CollectiveOp::kAllGather,
                         4 * whole / (2 * kQuantizedGroup), 1, groups);
    } else {
      timer_->Collective(gather_stream_, CollectiveOp::kAllGather, whole, 1, groups);
    }
    if (zero_.quantized_weights && gpus_ > 1) {
      gathered.flat = New(TorchClass::kParams, bytes / 2, gather_stream_);
    } else if (gpus_ > 1 && params.size() > 1 && !mics_) {
      gathered.flat = New(TorchClass::kParams, bytes, gather_stream_);
    } else {
      for (const size_t param : params) {
        whole_[param] = New(TorchClass::kParams, Bytes(param), gather_stream_);
      }
    }
    prefetched_.push_back(std::move(gathered));
  }

  bool InFlight(size_t param) const {
    return std::any_of(prefetched_.begin(), prefetched_.end(), [param](const Gathered& gathered) {
      return std::count(gathered.params.begin(), gathered.params.end(), param) > 0;
    });
  }

  // AllGatherCoalescedHandle::wait: each parameter is copied out of the buffer.
  void Wait(size_t param) {
    const auto found =
        std::find_if(prefetched_.begin(), prefetched_.end(), [param](const Gathered& gathered) {
          return std::count(gathered.params.begin(), gathered.params.end(), param) > 0;
        });
    if (found == prefetched_.end()) return;
    if (gpus_ == 1) {
      timer_->HostWaits(gather_stream_);  // NoGatherCoalescedHandle::wait
    } else {
      // _fetch_sub_module_impl: at most this many events are ahead (__max_ongoing_fetch_events).
      if (fetches_.size() > 2) {
        timer_->HostWaits(fetches_.front());
        fetches_.pop_front();
      }
    }
    if (found->flat) {
      Tensor flat;
      if (zero_.quantized_weights) {
        timer_->Memory(1.5 * static_cast<double>(found->bytes), 1, gather_stream_);
        flat = New(TorchClass::kParams, found->bytes, gather_stream_);
      }
      for (const size_t one : found->params) {
        const auto bytes = static_cast<double>(Bytes(one));
        timer_->Memory(2 * bytes, 1, gather_stream_);
        whole_[one] = New(TorchClass::kParams, Bytes(one), gather_stream_);
        if (!zero_.quantized_weights || fp16_) continue;
        timer_->Memory(2 * bytes, 1, gather_stream_);  // from fp16
        whole_[one] = New(TorchClass::kParams, Bytes(one), gather_stream_);
      }
    }
    if (gpus_ > 1) fetches_.push_back(timer_->Record(gather_stream_));
    prefetched_.erase(found);
  }

  // _fetch_sub_module_impl
  void Fetch(int module) {
    if (mode_ == Trace::kRecord) trace_.push_back(module);
    timer_->Python(PythonCall::kModuleHooks);
    if (!Gathers()) return;
    const std::vector<int>& params = Params(module);
    std::vector<size_t> missing;
    for (const int param : params) {
      const auto index = static_cast<size_t>(param);
      if (!whole_[index] && !InFlight(index)) missing.push_back(index);
    }
    Gather(missing);
    for (const int param : params) Wait(static_cast<size_t>(param));
    timer_->StreamWaits(TorchClock::kComputeStream, gather_stream_);
    if (mode_ == Trace::kComplete) Prefetch(params);
    ++position_;
  }

  // _ensure_availability_of_partitioned_params; __prefetch_nvme_param_partitions. A shard has its
  // buffer from then on until the parameter is partitioned again.
  void ReadFiles(const std::vector<size_t>& params, bool waits) {
    bool any = false;
    for (const size_t param : params) {
      if (!sub_groups_->on_disk(param)) continue;
      any = true;
      if (in_buffers_[param]) continue;
      in_buffers_[param] = true;
      ++buffers_;
      timer_->File(kReadStream, /*write=*/false, 2 * static_cast<double>(shards_[param]));
    }
    if (any && waits) timer_->HostWaits(kReadStream);
  }
  void ReadAhead(uint64_t in_flight) {
    const auto count = static_cast<size_t>(zero_.offload_param.buffer_count);
    uint64_t considered = 0;
    std::vector<size_t> ahead;
    for (const auto& [param, step] : queue_) {
      if (considered > 2 * in_flight || buffers_ + ahead.size() >= count) break;
      if (sub_groups_->on_disk(param) && !in_buffers_[param] &&
          std::count(ahead.begin(), ahead.end(), param) == 0) {
        ahead.push_back(param);
      }
      considered += model_.params[param].elements;
    }
    ReadFiles(ahead, /*waits=*/false);
  }

  void Prefetch(const std::vector<int>& params) {
    size_t taken = 0;
    for (const int param : params) {
      if (fetched_for_[static_cast<size_t>(param)] < position_) ++taken;
    }
    for (; taken > 0 && !queue_.empty(); --taken) {
      fetched_for_[queue_.front().first] = queue_.front().second;
      queue_.pop_front();
    }
    const uint64_t room = zero_.max_live_parameters > live_ ? zero_.max_live_parameters - live_ : 0;
    const uint64_t limit = std::min(room, zero_.prefetch_bucket_elements);
    std::vector<size_t> ahead;
    uint64_t elements = 0;
    while (!queue_.empty() && elements < limit) {
      const auto [param, step] = queue_.front();
      if (sub_groups_->on_disk(param) && !in_buffers_[param]) break;
      queue_.pop_front();
      fetched_for_[param] = std::max(fetched_for_[param], step);
      if (whole_[param] || InFlight(param) || std::count(ahead.begin(), ahead.end(), param) > 0) {
        continue;
      }
      ahead.push_back(param);
      elements += model_.params[param].elements;
    }
    Gather(ahead);
    if (!sub_groups_->params_in_files()) return;
    uint64_t in_flight = 0;
    for (const Gathered& gathered : prefetched_) {
      for (const size_t param : gathered.params) in_flight += model_.params[param].elements;
    }
    ReadAhead(in_flight);
  }

  // release_sub_module, __params_to_release
  void Release(int module) {
    if (!Gathers()) return;
    for (const int param : Params(module)) {
      const auto index = static_cast<size_t>(param);
      if (!whole_[index]) continue;
      if (mode_ == Trace::kComplete) {
        if (Persists(index) || fetched_for_[index] > position_ || UsedSoon(index)) continue;
      }
      Free(index);
      live_ -= std::min(live_, model_.params[index].elements);
    }
  }

  // _partition: the first time in a step, the group's copy is made of what is whole
  // (_partition_param_sec), and the host waits for it.
  void Free(size_t param) {
    if (hpz_ && whole_[param] && !copies_[param]) {
      const uint64_t shard = ShardOf(param, /*copy=*/true);
      copies_[param] = New(TorchClass::kParams, 2 * shard);
      timer_->Memory(6 * static_cast<double>(shard), 2);
      timer_->HostWaits(TorchClock::kComputeStream);
    }
    if (in_buffers_[param]) --buffers_;
    in_buffers_[param] = false;
    whole_[param].Reset();
  }

  bool UsedSoon(size_t param) const {
    return uses_.Soon(param, position_, zero_.max_reuse_distance);
  }

  // __reduce_and_partition_ipg_grads, reduce_scatter_coalesced, partition_grads
  void Reduce() {
    if (bucket_params_.empty()) return;
    timer_->Python(PythonCall::kReduction);
    {
      uint64_t padded = 0;
      for (const size_t param : bucket_params_) padded += ranks_ * shards_[param];
      // Interleaved by rank in a copy; one tensor alone is reduced where it lies.
      const auto count = static_cast<int>(bucket_params_.size());
      const auto whole = static_cast<double>(padded);
      const double shards = whole / static_cast<double>(ranks_);
      if (zero_.quantized_gradients && timer_->nodes() > 1) {
        for (const size_t param : bucket_params_) {
          TimeQuantizedReduction(model_, param, gpus_, timer_, reduce_stream_);
        }
      } else {
        timer_->Memory((count > 1 ? 4 : 2) * Sent() * whole, count > 1 ? 2 : 1, reduce_stream_);
        timer_->Collective(reduce_stream_, CollectiveOp::kReduceScatter, Sent() * whole, 1,
                           Groups());
      }
      TimePartition(shards, count);
      if (mics_ && last_) {
        // allreduce_mics_shard_grads: what the step has summed, divided.
        timer_->Memory(4 * shards, count, reduce_stream_);
        timer_->Collective(reduce_stream_, CollectiveOp::kAllReduce, 2 * shards, 1,
                           RankGroups::kReplica);
      }
      // The bucket has the dtype that is sent; a gradient that had no room in it is cast.
      const uint64_t cast_elements = bytes_.sent == 2 || unbucketed_.empty() ? 0 : padded;
      const Tensor cast = New(TorchClass::kBuffers, bytes_.sent * cast_elements, reduce_stream_);
      Tensor copy = New(TorchClass::kBuffers, bucket_params_.size() > 1 ? bytes_.sent * padded : 0,
                        reduce_stream_);
      std::vector<Tensor> parts;  // __avg_scatter_grads: in the dtype of the sums
      if (bytes_.sent != bytes_.sums) {
        for (const size_t param : bucket_params_) {
          parts.push_back(New(TorchClass::kGrads, bytes_.sums * shards_[param], reduce_stream_));
        }
        copy.Reset();
      }
      if (offload_) {
        for (const size_t param : bucket_params_) {
          const Tensor brought =
              New(TorchClass::kGrads, bytes_.sums * shards_[param], reduce_stream_);
          if (last_) sub_groups_->OffloadGradient(param, reduce_stream_);
        }
      }
    }
    bucket_params_.clear();
    unbucketed_.clear();
    bucket_elements_ = 0;
  }

  // partition_grads: with the optimizer on the host, shards of gradients are there too, and come
  // back to be added to.
  void TimePartition(double shards, int count) {
    const auto sums = static_cast<double>(bytes_.sums);
    if (bytes_.sent != bytes_.sums) {
      timer_->Memory((Sent() + sums) * shards, count, reduce_stream_);
    }
    if (!offload_) {
      timer_->Memory((first_ ? 2 : 3) * sums * shards, count, reduce_stream_);
      return;
    }
    timer_->Host(timer_->constants().offloaded_shard * count);
    if (!first_) {
      timer_->Copy(reduce_stream_, /*to_device=*/true, sums * shards, count);
      timer_->Memory(3 * sums * shards, count, reduce_stream_);
    }
    timer_->Copy(reduce_stream_, /*to_device=*/false, sums * shards, count);
    if (first_) timer_->Copy(reduce_stream_, /*to_device=*/true, sums * shards, count);
    if (last_) sub_groups_->TimeOffloadGradient(bucket_params_, reduce_stream_);
  }

  const bool offload_param_ = zero_.offload_param.device != OffloadDevice::kNone;
  const int reduce_stream_ = zero_.overlap_comm ? kReduceStream : 0;
  const int gather_stream_ = zero_.overlap_comm ? kGatherStream : 0;
  const uint64_t group_;  // ranks of a shard group
  const bool mics_, hpz_;
  const uint64_t ranks_;  // that parameters, gradients and states are partitioned over
  const GradBytes bytes_;
  const bool fp16_;
  std::vector<uint64_t> shards_;  // elements of a rank's shard, by parameter
  std::vector<uint64_t> trained_shards_;
  uint64_t partition_ = 0, largest_ = 0;
  std::optional<SubGroups> sub_groups_;
  std::deque<TorchClock::Event> fetches_;

  Tensor params_, grads_, bucket_;
  std::vector<Tensor> whole_{model_.params.size()};   // gathered parameters
  std::vector<Tensor> copies_{model_.params.size()};  // their shards within the group
  std::vector<Gathered> prefetched_;
  // Shards that were read from files, and have a buffer.
  std::vector<bool> in_buffers_ = std::vector<bool>(model_.params.size());
  size_t buffers_ = 0;
  std::vector<size_t> bucket_params_;
  std::vector<Tensor> unbucketed_;
  uint64_t bucket_elements_ = 0;

  LeafModules leaves_{model_};
  std::vector<std::pair<int, Tensor>> leaf_grads_;
  Trace mode_ = Trace::kRecord;
  int recomputed_ = kNoParams;  // the module that BeforeRecompute has named
  std::vector<int> trace_;      // modules in the order of a micro-step
  std::vector<std::pair<size_t, int>> trace_params_;
  TraceUses uses_{model_.params.size()};
  std::deque<std::pair<size_t, int>> queue_;
  std::vector<int> fetched_for_;
  int position_ = 0;
  uint64_t live_ = 0;
};

}  // namespace

std::unique_ptr<TorchRuntime> MakeStage3(const TorchModel& model, const TorchPlay& play,
                                         TorchMemory* memory, TorchTimer* timer) {
  return std::make_unique<Stage3>(model, play, memory, timer);
}

}  // namespace zeroplan
