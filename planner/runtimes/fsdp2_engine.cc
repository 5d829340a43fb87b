// Files named below are of torch/distributed/fsdp/_fully_shard/ in PyTorch 2.11.
#include "planner/runtimes/fsdp2_engine.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/settings/setup_facts.h"
#include "planner/runtimes/torch_code.h"
#include "planner/runtimes/torch_float8.h"

namespace zeroplan {
namespace {

constexpr int kFsdp2Gather = 1, kFsdp2Reduce = 2, kFsdp2AllReduce = 3;

class Fsdp2 : public TorchRuntime {
 public:
  Fsdp2(const TorchModel& model, const TorchPlay& play, TorchMemory* memory, TorchTimer* timer)
      : TorchRuntime(model, play.setup, memory, timer),
        waits_(StyleCodeOf(play.recipe.code, false).transformers &&
               play.setup.batch.grad_accum > 1),
        ranks_(static_cast<uint64_t>(ShardRanks(zero_, play.setup.batch.world_size))),
        hybrid_(Hybrid(play.setup)),
        reshard_(zero_.stage == 3),
        reduce_bytes_(play.setup.precision.fp32_reduction ? 4 : 2),
        held_bytes_(DtypeBytes(Fsdp2ShardDtype(play.recipe))),
        scales_(play.setup.precision.dtype == Dtype::kF16),
        shards_nf4_(Fsdp2ShardsNf4(play)),
        update_in_backward_(play.recipe.optimizer_in_backward),
        run_(TorchRunOf(play.setup, play.recipe)),
        groups_(static_cast<size_t>(model.spec.layers) + 1),
        group_of_(model.params.size(), root()),
        states_(play.recipe.UsedOptimizer(), Fsdp2ShardDtype(play.recipe), ShardsOf(model), memory,
                timer) {
    for (size_t module = 0; module < model.modules.size(); ++module) {
      const size_t group = GroupOf(static_cast<int>(module));
      for (const int param : model.modules[module].params) {
        const auto index = static_cast<size_t>(param);
        std::vector<size_t>& params = groups_[group].params;
        if (std::count(params.begin(), params.end(), index) > 0) continue;  // a tied head
        if (!IsSharded(index)) continue;
        params.push_back(index);
        group_of_[index] = group;
        groups_[group].shards += Shard(index);
        if (!model.trains(param)) groups_[group].frozen += Shard(index);
        if (!run_.float8_gathers || !IsFloat8(model_, run_, static_cast<int>(module))) continue;
        is_float8_[index] = true;
        groups_[group].float8 += Shard(index);
        ++groups_[group].float8_params;
      }
    }
  }

  // Meta parameters are sharded, then made on their device (to_empty).
  void Init() override {
    for (size_t i = 0; i < model_.params.size(); ++i) {
      // What is frozen stays in 16 bit.
      const bool trained = model_.params[i].trained, sharded = IsSharded(i);
      const uint64_t bytes = sharded ? HeldBytes(i) : 2 * model_.params[i].elements;
      if (offload_ && sharded) {
        AddHost(bytes, /*pin=*/true);  // _fsdp_param.py, reset_sharded_param: pin_memory
      } else {
        params_.push_back(New(trained ? TorchClass::kOptimizer : TorchClass::kParams, bytes));
      }
    }
    MakeQuantTensors();
  }

  void BeforeForward(int module) override {
    const size_t group = GroupOf(module);
    if (in_backward_) return;  // recompute: backward has it
    if (group == root() && module != 0) return;
    if (group != root() && !IsFirst(module)) return;
    Unshard(group);
    Wait(group, /*forward=*/true);
  }

  void AfterForward(int module) override {
    const size_t group = GroupOf(module);
    if (in_backward_ || !reshard_) return;
    if (group != root() && IsLast(module)) groups_[group].whole.clear();
  }

  // The root's forward ends with the loss; its backward begins there.
  void BeginBackward() override {
    in_backward_ = true;
    gather_state_.Reset();  // _fsdp_state.py: the root's post-forward frees it
    if (reshard_) groups_[root()].whole.clear();
    Unshard(root());
    Wait(root(), /*forward=*/false);
    if (reshard_) Unshard(root() - 1);  // _backward_prefetch
  }

  void BeforeBackward(int module) override {
    const size_t group = GroupOf(module);
    if (group == root() || !IsLast(module)) return;
    Unshard(group);
    Wait(group, /*forward=*/false);
    if (reshard_ && group > 0) Unshard(group - 1);
  }

  void AfterBackward(int module) override {
    const size_t group = GroupOf(module);
    if (group != root() && IsFirst(module)) Reduce(group);
  }

  void Gradient(int param, Tensor grad) override {
    const auto index = static_cast<size_t>(param);
    if (!waits_) {
      groups_[group_of_[index]].grads.push_back(std::move(grad));
    } else if (sums_[index]) {
      timer_->Memory(6 * Elements(index));  // added in place
    } else {
      sums_[index] = std::move(grad);
    }
  }

  void EndBackward() override {
    Reduce(root());
    timer_->StreamWaits(TorchClock::kComputeStream, LastStream());
    if (offload_) timer_->HostWaits(LastStream());  // finalize_backward: copies to the host
    reduce_state_.Reset();
    for (Group& group : groups_) group.crossing.Reset();
    in_backward_ = false;
  }

  void Step() override {
    if (!update_in_backward_) Update();
    if (run_.float8_gathers) FindFloat8Scales();
    for (Group& group : groups_) {
      if (offload_ && group.has_host_grads) {
        for (const size_t param : group.params) {
          if (model_.params[param].trained) memory_->Unpin(held_bytes_ * Shard(param));
        }
        group.has_host_grads = false;
      }
      group.reduced.Reset();
    }
  }

 private:
  // clip_grad_norm_: norms, then all gradients are scaled; the optimizer.
  void Update() {
    const auto elements = static_cast<double>(Shards());
    const auto held = static_cast<double>(held_bytes_);
    const int params = static_cast<int>(model_.trained().size());
    timer_->Host(timer_->constants().dtensor * params);
    if (offload_) {
      const double passes = scales_ ? 5 : 3;
      timer_->HostUpdate(passes * held * elements / timer_->constants().cpu_clip);
      timer_->HostUpdate(states_.UpdateBytes());
      if (!has_host_states_) memory_->AddPageable(2 * held_bytes_ * Shards());
      has_host_states_ = true;
      return;
    }
    if (scales_) UnscaleGradients(held * elements, params);
    timer_->Memory(held * elements, 1 + params / 100);
    timer_->Memory(2 * held * elements, 1 + params / 100);
    states_.Step();
  }

  // precompute_float8_dynamic_scale_for_fsdp: norms of shards, all-reduced at once.
  void FindFloat8Scales() {
    double shards = 0;
    int params = 0;
    for (const Group& group : groups_) {
      shards += static_cast<double>(group.float8);
      params += group.float8_params;
    }
    timer_->Host(timer_->constants().dtensor * params);
    timer_->Memory(static_cast<double>(held_bytes_) * shards, 1 + params / 100);
    timer_->Collective(TorchClock::kComputeStream, CollectiveOp::kAllReduce, 4.0 * params, 1,
                       RankGroups::kShard);
  }

  // Parameters are cut along their first dimension; what a cut adds is little.
  std::vector<UpdatedTensor> ShardsOf(const TorchModel& model) const {
    std::vector<UpdatedTensor> shards = UpdatedTensorsOf(model);
    for (UpdatedTensor& shard : shards) {
      shard.elements = (shard.elements + ranks_ - 1) / ranks_;
      shard.rows = (shard.rows + ranks_ - 1) / ranks_;
    }
    return shards;
  }

  struct Group {
    std::vector<size_t> params;
    uint64_t shards = 0;  // elements of a rank
    uint64_t frozen = 0;  // of these in 16 bit, without gradients
    uint64_t trained() const { return shards - frozen; }
    uint64_t float8 = 0;  // of these gathered in 8 bits
    int float8_params = 0;
    uint64_t SentBytes() const { return 2 * shards - float8; }
    std::vector<Tensor> whole;  // gathered parameters
    Tensor gathered;            // what the all-gather wrote, until it is copied out
    bool in_flight = false, has_host_grads = false;
    std::vector<Tensor> grads;  // whole
    Tensor reduced;             // the shard's, summed over micro-steps
    Tensor crossing;            // what is all-reduced over the groups, until the backward pass ends
  };

  size_t root() const { return groups_.size() - 1; }
  size_t GroupOf(int module) const {
    const int adapts = model_.modules[static_cast<size_t>(module)].adapts;
    if (adapts >= 0) return GroupOf(adapts);
    if (module < model_.first_layer_module || module >= model_.final_norm()) return root();
    return static_cast<size_t>((module - model_.first_layer_module) / model_.layer_modules);
  }
  bool IsFirst(int module) const {
    return module <= model_.final_norm() &&
           (module - model_.first_layer_module) % model_.layer_modules == 0;
  }
  bool IsLast(int module) const { return IsFirst(module + 1); }

  // accelerate leaves 4-bit weights out of sharding that are packed in integers
  // (fsdp_utils.py, fsdp2_prepare_model: ignored_params).
  bool IsSharded(size_t param) const { return shards_nf4_ || model_.params[param].quantized == 0; }
  uint64_t Shard(size_t param) const {
    return (model_.params[param].elements + ranks_ - 1) / ranks_;
  }
  uint64_t HeldBytes(size_t param) const {
    return (model_.params[param].trained ? held_bytes_ : 2) * Shard(param);
  }
  // Of what is trained.
  uint64_t Shards() const {
    uint64_t sum = 0;
    for (const Group& group : groups_) sum += group.trained();
    return sum;
  }

  // _fsdp_param_group.py, unshard; _fsdp_collectives.py, foreach_all_gather: shards are cast into
  // one buffer, gathered into another.
  void Unshard(size_t index) {
    Group& group = groups_[index];
    if (group.in_flight || !group.whole.empty()) return;
    group.in_flight = true;
    timer_->Host(timer_->constants().group_hook);
    if (ranks_ == 1) return;
    // all_gather_copy_in on the gather stream; copies from the host in it. What is trained is cast
    // first; what is frozen has the dtype that is gathered (FSDPParam.init_dtype_attrs).
    const auto shards = static_cast<double>(group.shards);
    const double held = 2 * shards + Wider(group);
    if (offload_) {
      timer_->Copy(kFsdp2Gather, /*to_device=*/true, held, static_cast<int>(group.params.size()));
    }
    const auto sent = static_cast<double>(group.SentBytes());
    const auto float8 = static_cast<double>(group.float8);
    timer_->Memory(held - static_cast<double>(held_bytes_) * float8 + sent, 1, kFsdp2Gather);
    // fsdp_pre_all_gather (torchao/float8/fsdp_utils.py), a parameter at a time.
    timer_->Memory((kFloat8ShardMoves + 1) * float8, kFloat8ShardLaunches * group.float8_params,
                   kFsdp2Gather);
    timer_->Collective(kFsdp2Gather, CollectiveOp::kAllGather, sent * static_cast<double>(ranks_),
                       1, RankGroups::kShard);
    std::vector<Tensor> brought;
    for (const size_t param : group.params) {
      if (offload_) brought.push_back(New(TorchClass::kBuffers, HeldBytes(param), kFsdp2Gather));
    }
    const Tensor cast = New(
        TorchClass::kBuffers,
        (held_bytes_ > 2 ? 2 * (group.trained() - group.float8) : 0) + group.float8, kFsdp2Gather);
    group.gathered = New(TorchClass::kBuffers, group.SentBytes() * ranks_, kFsdp2Gather);
  }

  // wait_for_unshard: copied out to a tensor a parameter. In forward the buffer is kept until the
  // next group has copied out.
  void Wait(size_t index, bool forward) {
    Group& group = groups_[index];
    if (!group.in_flight) return;
    group.in_flight = false;
    TimeCopyOut(group);
    if (forward) gather_state_.Reset();
    for (const size_t param : group.params) {
      Tensor brought, cast;
      if (ranks_ == 1) {
        // What is not cast is the shard itself.
        const bool casts = HeldBytes(param) > 2 * Shard(param);
        if (!casts && !offload_) continue;
        if (offload_) brought = New(TorchClass::kBuffers, HeldBytes(param));
        if (casts) cast = New(TorchClass::kBuffers, 2 * Shard(param));
      }
      const uint64_t bytes = is_float8_[param] ? 1 : 2;
      group.whole.push_back(New(TorchClass::kParams, bytes * Shard(param) * ranks_));
    }
    if (forward) {
      gather_state_ = std::move(group.gathered);
    } else {
      group.gathered.Reset();
    }
  }

  // foreach_all_gather_copy_out, in the stream that computes; gathers that follow wait for it. One
  // rank's shards are cast there, and brought there.
  void TimeCopyOut(const Group& group) {
    const auto whole = static_cast<double>(group.shards * ranks_);
    const auto count = static_cast<int>(group.params.size());
    if (ranks_ == 1) {
      if (offload_) {
        timer_->Copy(TorchClock::kComputeStream, /*to_device=*/true, 2 * whole + Wider(group),
                     count);
      }
      timer_->Memory(3 * Wider(group), count);
      return;
    }
    timer_->StreamWaits(TorchClock::kComputeStream, kFsdp2Gather);
    timer_->Memory(2 * static_cast<double>(group.SentBytes() * ranks_));
  }

  // foreach_reduce: copied in where it computes, which first waits for the reduction before
  // (reduce_scatter_state); then cast, and added to what earlier micro-steps left.
  void TimeReduce(const Group& group) {
    const auto shards = static_cast<double>(group.trained());
    const auto whole = shards * static_cast<double>(ranks_);
    const auto count = static_cast<int>(group.params.size());
    timer_->Host(timer_->constants().group_hook);
    timer_->StreamWaits(TorchClock::kComputeStream, kFsdp2Reduce);
    timer_->Memory((ranks_ > 1 ? 2.0 + static_cast<double>(reduce_bytes_) : 0) * whole,
                   ranks_ > 1 ? 1 : 0);
    timer_->StreamWaits(kFsdp2Reduce, TorchClock::kComputeStream);
    timer_->Collective(kFsdp2Reduce, CollectiveOp::kReduceScatter,
                       static_cast<double>(reduce_bytes_) * whole, 1, RankGroups::kShard);
    if (hybrid_) {
      // In every micro-step (set_requires_all_reduce is on by default), on a stream of its own.
      timer_->StreamWaits(kFsdp2AllReduce, kFsdp2Reduce);
      timer_->Collective(kFsdp2AllReduce, CollectiveOp::kAllReduce,
                         static_cast<double>(reduce_bytes_) * shards, 1, RankGroups::kReplica);
    }
    const auto held = static_cast<double>(held_bytes_);
    if (held_bytes_ > 2 || reduce_bytes_ > 2) timer_->Memory(6 * shards, 1, LastStream());
    if (offload_ && group.has_host_grads) {
      // Summed on the host, which waits for a copy to memory that is not page-locked.
      timer_->Copy(LastStream(), /*to_device=*/false, held * shards, count, /*pageable=*/true);
      timer_->HostWaits(LastStream());
      timer_->HostUpdate(3 * held * shards);
    } else if (offload_) {
      timer_->Copy(LastStream(), /*to_device=*/false, held * shards, count);
    } else if (group.reduced) {
      timer_->Memory(3 * held * shards, count, LastStream());
    }
  }
  // Bytes of shards beyond 16 bit.
  double Wider(const Group& group) const {
    return static_cast<double>((held_bytes_ - 2) * group.trained());
  }
  // Where a reduction ends (post_reduce_stream).
  int LastStream() const { return hybrid_ ? kFsdp2AllReduce : kFsdp2Reduce; }

  // post_backward; _fsdp_collectives.py, foreach_reduce: gradients into one buffer, which is kept
  // until the next group reduces, the rank's part of them in the reduce dtype, then in fp32.
  void Reduce(size_t index) {
    Group& group = groups_[index];
    group.whole.clear();
    if (waits_ && last_) {
      for (const size_t param : group.params) {
        if (sums_[param]) group.grads.push_back(std::move(sums_[param]));
      }
    }
    if (group.grads.empty()) return;
    TimeReduce(group);
    reduce_state_.Reset();
    reduce_state_ = New(TorchClass::kBuffers, reduce_bytes_ * group.trained() * ranks_);
    group.grads.clear();
    // What arrives, and the shard that is made of it: the same where dtypes are.
    Tensor part = New(TorchClass::kBuffers, reduce_bytes_ * group.trained(), kFsdp2Reduce);
    Tensor cast;
    Tensor& shard = reduce_bytes_ == held_bytes_ ? part : cast;
    if (&shard == &cast) {
      cast = New(TorchClass::kGrads, held_bytes_ * group.trained(), LastStream());
    }
    if (update_in_backward_) {
      // The hooks of parameters, and zero_grad.
      timer_->Host(timer_->constants().dtensor * static_cast<double>(group.params.size()));
      for (const size_t param : group.params) {
        if (model_.params[param].trained) states_.Update(param, LastStream());
      }
    } else if (offload_) {
      // Copied to page-locked memory.
      for (const size_t param : group.params) {
        if (group.has_host_grads) break;
        if (model_.params[param].trained) memory_->Pin(held_bytes_ * Shard(param));
      }
      group.has_host_grads = true;
    } else if (!group.reduced) {
      group.reduced = std::move(shard);  // else added in place
    }
    if (hybrid_) group.crossing = std::move(part);  // AllReduceState
  }

  // Only a step's last micro-step reduces, as in accelerate's no_sync
  // (set_requires_gradient_sync(False)); until then gradients are whole, by parameter.
  const bool waits_;
  std::vector<Tensor> sums_{model_.params.size()};
  const uint64_t ranks_;  // of a shard group
  const bool hybrid_;
  const bool reshard_;
  const uint64_t reduce_bytes_, held_bytes_;
  const bool scales_, shards_nf4_;
  const bool update_in_backward_;
  const TorchRun run_;
  std::vector<bool> is_float8_ = std::vector<bool>(model_.params.size());
  std::vector<Group> groups_;  // layers, then the rest
  std::vector<size_t> group_of_;
  std::vector<Tensor> params_;
  TorchStates states_;
  Tensor gather_state_, reduce_state_;
  bool in_backward_ = false, has_host_states_ = false;
};

}  // namespace

Dtype Fsdp2ShardDtype(const TorchRecipe& recipe) {
  return recipe.param_dtype.value_or(recipe.code == CodeStyle::kTorchtune ? Dtype::kBF16
                                                                          : Dtype::kF32);
}

bool Fsdp2ShardsNf4(const TorchPlay& play) {
  return QuantStorageOf(play.recipe, /*fully_shards=*/true, play.setup.precision.dtype) !=
         Dtype::kU8;
}

std::unique_ptr<TorchRuntime> MakeFsdp2(const TorchModel& model, const TorchPlay& play,
                                        TorchMemory* memory, TorchTimer* timer) {
  return std::make_unique<Fsdp2>(model, play, memory, timer);
}

}  // namespace zeroplan
