// Files named below are of torch/distributed/fsdp/_fully_shard/ in PyTorch 2.11.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/config/reader_state.h"
#include "core/config/setup_facts.h"
#include "planner/estimate/choices.h"
#include "planner/formats/config_format.h"
#include "planner/runtimes/runtimes.h"
#include "planner/runtimes/torch_based.h"
#include "planner/runtimes/torch_code.h"
#include "planner/runtimes/torch_phases.h"
#include "planner/search/search.h"

namespace zeroplan {
namespace {

constexpr int kFsdp2Gather = 1, kFsdp2Reduce = 2, kFsdp2AllReduce = 3;
// Gradient read, parameter and two states both ways, in fp32.
constexpr double kFusedAdamBytes = 28;

class Fsdp2 : public TorchRuntime {
 public:
  // `waits`: only a step's last micro-step reduces.
  Fsdp2(const TorchModel& model, const TrainSetup& setup, bool waits, TorchMemory* memory,
        TorchTimer* timer)
      : TorchRuntime(model, setup, memory, timer),
        waits_(waits),
        ranks_(static_cast<uint64_t>(ShardRanks(setup.zero, setup.batch.world_size))),
        hybrid_(Hybrid(setup)),
        reshard_(setup.zero.stage == 3),
        reduce_bytes_(setup.precision.fp32_reduction ? 4 : 2),
        groups_(static_cast<size_t>(model.spec.layers) + 1),
        group_of_(model.params.size(), root()) {
    for (size_t module = 0; module < model.modules.size(); ++module) {
      const size_t group = GroupOf(static_cast<int>(module));
      for (const int param : model.modules[module].params) {
        const auto index = static_cast<size_t>(param);
        std::vector<size_t>& params = groups_[group].params;
        if (std::count(params.begin(), params.end(), index) > 0) continue;  // a tied head
        if (model.params[index].quantized > 0) continue;  // accelerate leaves them out of sharding
        params.push_back(index);
        group_of_[index] = group;
        groups_[group].shards += Shard(index);
        if (!model.trains(param)) groups_[group].frozen += Shard(index);
      }
    }
  }

  // Meta parameters are sharded, then made on their device (to_empty).
  void Init() override {
    for (size_t i = 0; i < model_.params.size(); ++i) {
      // What is frozen stays in 16 bit.
      const bool trained = model_.params[i].trained, sharded = model_.params[i].quantized == 0;
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
    TimeStep();
    if (offload_ && !has_states_) memory_->AddPageable(8 * Shards());
    if (!offload_ && !has_states_) {
      for (size_t i = 0; i < model_.trained().size(); ++i) {
        states_.push_back(New(TorchClass::kOptimizer, 4 * Shard(i)));
        states_.push_back(New(TorchClass::kOptimizer, 4 * Shard(i)));
      }
    }
    has_states_ = true;
    for (Group& group : groups_) {
      if (offload_ && group.has_host_grads) {
        for (const size_t param : group.params) {
          if (model_.params[param].trained) memory_->Unpin(4 * Shard(param));
        }
        group.has_host_grads = false;
      }
      group.reduced.Reset();
    }
  }

 private:
  // clip_grad_norm_: norms, then all gradients are scaled; AdamW, fused.
  void TimeStep() {
    const auto elements = static_cast<double>(Shards());
    const int params = static_cast<int>(model_.trained().size());
    timer_->Host(timer_->constants().dtensor * params);
    if (offload_) {
      timer_->HostUpdate(12 * elements / timer_->constants().cpu_clip);
      timer_->HostUpdate(kFusedAdamBytes * elements);
      return;
    }
    timer_->Memory(4 * elements, 1 + params / 100);
    timer_->Memory(8 * elements, 1 + params / 100);
    timer_->Memory(kFusedAdamBytes * elements, 1 + params / 30);
  }

  struct Group {
    std::vector<size_t> params;
    uint64_t shards = 0;  // elements of a rank
    uint64_t frozen = 0;  // of these in 16 bit, without gradients
    uint64_t trained() const { return shards - frozen; }
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

  // Parameters are cut along their first dimension; what a cut adds is little.
  uint64_t Shard(size_t param) const {
    return (model_.params[param].elements + ranks_ - 1) / ranks_;
  }
  uint64_t HeldBytes(size_t param) const {
    return (model_.params[param].trained ? 4 : 2) * Shard(param);
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
    // all_gather_copy_in on the gather stream; copies from the host in it.
    const auto shards = static_cast<double>(group.shards);
    const double held = 2 * shards + 2 * static_cast<double>(group.trained());
    if (offload_) {
      timer_->Copy(kFsdp2Gather, /*to_device=*/true, held, static_cast<int>(group.params.size()));
    }
    timer_->Memory(held + 2 * shards, 1, kFsdp2Gather);
    timer_->Collective(kFsdp2Gather, CollectiveOp::kAllGather,
                       2 * shards * static_cast<double>(ranks_), 1, RankGroups::kShard);
    std::vector<Tensor> brought;
    for (const size_t param : group.params) {
      if (offload_) brought.push_back(New(TorchClass::kBuffers, HeldBytes(param), kFsdp2Gather));
    }
    const Tensor cast = New(TorchClass::kBuffers, 2 * group.shards, kFsdp2Gather);
    group.gathered = New(TorchClass::kBuffers, 2 * group.shards * ranks_, kFsdp2Gather);
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
        if (!model_.params[param].trained && !offload_) continue;
        if (offload_) brought = New(TorchClass::kBuffers, HeldBytes(param));
        cast = New(TorchClass::kBuffers, 2 * Shard(param));
      }
      group.whole.push_back(New(TorchClass::kParams, 2 * Shard(param) * ranks_));
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
      const auto trained = static_cast<double>(group.trained());
      if (offload_) {
        timer_->Copy(TorchClock::kComputeStream, /*to_device=*/true, 2 * whole + 2 * trained,
                     count);
      }
      timer_->Memory(6 * trained, count);
      return;
    }
    timer_->StreamWaits(TorchClock::kComputeStream, kFsdp2Gather);
    timer_->Memory(4 * whole);
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
    timer_->Memory(6 * shards, 1, LastStream());
    if (offload_) {
      timer_->Copy(LastStream(), /*to_device=*/false, 4 * shards, count);
    } else if (group.reduced) {
      timer_->Memory(12 * shards, count, LastStream());
    }
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
    Tensor part = New(TorchClass::kBuffers, reduce_bytes_ * group.trained(), kFsdp2Reduce);
    Tensor shard = reduce_bytes_ == 4 ? std::move(part)
                                      : New(TorchClass::kGrads, 4 * group.trained(), LastStream());
    if (offload_) {
      // Copied to page-locked memory.
      for (const size_t param : group.params) {
        if (group.has_host_grads) break;
        if (model_.params[param].trained) memory_->Pin(4 * Shard(param));
      }
      group.has_host_grads = true;
    } else if (!group.reduced) {
      group.reduced = std::move(shard);  // else added in place
    }
    if (hybrid_) group.crossing = std::move(reduce_bytes_ == 4 ? shard : part);  // AllReduceState
  }

  const bool waits_;
  std::vector<Tensor> sums_{model_.params.size()};  // with waits_: whole gradients, by parameter
  const uint64_t ranks_;                            // of a shard group
  const bool hybrid_;
  bool reshard_;
  uint64_t reduce_bytes_;
  std::vector<Group> groups_;  // layers, then the rest
  std::vector<size_t> group_of_;
  std::vector<Tensor> params_, states_;
  Tensor gather_state_, reduce_state_;
  bool in_backward_ = false, has_states_ = false;
};

// Whether torchtitan's per-op policy (TorchRun::saves_products) is modelled: of products with a
// bias (aten.addmm) it keeps none, which is not.
bool CanSaveProducts(const ModelSpec& model) {
  const TorchCode code = TorchModel(model).code;
  return code.gated && !code.one_qkv && code.none_biased && code.planned == nullptr;
}

// The arguments of fully_shard, which has no file of its own, and what the training code has to do
// (docs/runtimes.md).
std::string_view TorchDtype(Dtype dtype) {
  return dtype == Dtype::kF16 ? "float16" : dtype == Dtype::kBF16 ? "bfloat16" : "float32";
}

nlohmann::ordered_json Fsdp2Config(const TrainSetup& setup) {
  const PrecisionConfig& precision = setup.precision;
  const bool offload = setup.zero.offload_param.device != OffloadDevice::kNone;
  nlohmann::ordered_json config = {
      {"fully_shard",
       {{"reshard_after_forward", setup.zero.stage == 3},
        {"mp_policy",
         {{"param_dtype", TorchDtype(precision.dtype)},
          {"reduce_dtype", TorchDtype(precision.fp32_reduction ? Dtype::kF32 : precision.dtype)}}},
        {"offload_policy",
         offload ? nlohmann::ordered_json("CPUOffloadPolicy") : nlohmann::ordered_json(nullptr)}}},
      {"train_batch_size", setup.batch.global_batch()},
      {"train_micro_batch_size_per_gpu", setup.batch.micro_batch},
      {"gradient_accumulation_steps", setup.batch.grad_accum},
      {"sequence_length", setup.batch.seq_len},
      {"activation_checkpointing", setup.recompute.kind != RecomputeKind::kNone},
      {"gradient_clipping", setup.optimizer.gradient_clipping},
      {"optimizer",
       {{"type", "AdamW"},
        {"params",
         {{"lr", setup.optimizer.lr},
          {"betas", setup.optimizer.betas},
          {"eps", setup.optimizer.eps},
          {"weight_decay", setup.optimizer.weight_decay},
          {"fused", true}}}}}};
  if (Hybrid(setup)) {
    const int group = setup.zero.shard_group;
    config["fully_shard"]["mesh"] = {{"mesh_shape", {setup.batch.world_size / group, group}},
                                     {"mesh_dim_names", {"replicate", "shard"}}};
  }
  return config;
}

void AddFsdp2Limits(const ZeroConfig& zero, Reasons& reasons) {
  const OffloadDevice optimizer = zero.offload_optimizer.device;
  const OffloadDevice param = zero.offload_param.device;
  reasons.Add(zero.stage < 2, "stage {} (FSDP2 is stage 3, or 2 without resharding)", zero.stage);
  reasons.Add(optimizer == OffloadDevice::kNvme || param == OffloadDevice::kNvme,
              "offload to NVMe");
  reasons.Add(optimizer != param,
              "offload of parameters or optimizer alone (FSDP2 moves both or none)");
  reasons.Add(optimizer != OffloadDevice::kNone && zero.offload_optimizer.ratio < 1,
              "offload of {} of the optimizer", zero.offload_optimizer.ratio);
}

std::string Fsdp2FormatCannot(ConfigFormat format, const TrainSetup& setup) {
  const PrecisionConfig& precision = setup.precision;
  const bool titan = format == ConfigFormat::kTorchtitan;
  const bool mixed = precision.dtype != Dtype::kF32;
  Reasons reasons;
  AddFsdp2Limits(setup.zero, reasons);
  reasons.Add(Hybrid(setup) && setup.zero.across_stage > 0,
              "shard groups that share the optimizer (its groups hold replicas)");
  // TrainingArguments' parallelism_config is an object, no argument.
  reasons.Add(Hybrid(setup) && format == ConfigFormat::kHfTrainer,
              "shard groups, for which TrainingArguments have no argument (accelerate has keys)");
  reasons.Add(!titan && setup.recompute.kind == RecomputeKind::kSelective, "selective recompute");
  reasons.Add(setup.recompute.every > 1, "recompute of {} layers at a time", setup.recompute.every);
  if (titan) {
    reasons.Add(precision.dtype == Dtype::kF16, "fp16 (it has bf16 and fp32)");
    reasons.Add(mixed && !precision.fp32_reduction,
                "reduction of gradients in bf16 (it reduces in fp32)");
    reasons.Add(setup.batch.world_size == 1, "one GPU (it shards on two or more)");
  } else {
    reasons.Add(mixed && precision.fp32_reduction, "fp32 reduction of gradients");
    reasons.Add(precision.dtype == Dtype::kF16 && precision.loss_scale != 0, "a fixed loss scale");
    reasons.Add(setup.deterministic, "deterministic runs");
  }
  return reasons.Take();
}

// fully_shard on every layer and on the rest, parameters in fp32, MixedPrecisionPolicy with
// param_dtype of 16 bit; PyTorch 2.11, torch.optim.AdamW(fused=True) and clip_grad_norm_. Of a
// setup:
//   stage 3: reshard_after_forward; stage 2: not
//   optimizer and parameters on the CPU together: CPUOffloadPolicy
//   fp32_reduction: reduce_dtype fp32, else the parameters' 16 bit
//   recompute: none; full, torch.utils.checkpoint around every layer; selective, torchtitan's
//     per-op policy within it
// Other ZeRO keys have no meaning for it.
class Fsdp2OfTorch : public TorchBased {
 public:
  std::string_view key() const override { return "fsdp2"; }
  std::string_view name() const override { return "FSDP2"; }
  std::string_view version() const override { return "fsdp2 of PyTorch 2.11"; }
  std::string Label(const TrainSetup& setup) const override {
    std::string label =
        setup.zero.stage == 3 ? "resharded after forward" : "not resharded after forward";
    if (Hybrid(setup)) label += fmt::format(", in groups of {}", setup.zero.shard_group);
    if (setup.zero.offload_param.device != OffloadDevice::kNone) {
      label += ", parameters and optimizer on the CPU";
    }
    if (setup.recompute.kind == RecomputeKind::kFull) label += ", full recompute";
    if (setup.recompute.kind == RecomputeKind::kSelective)
      label += ", selective recompute (torchtitan's)";
    return label;
  }
  std::string StageName(int stage) const override {
    return stage == 3 ? "Resharded after forward" : "Not resharded after forward";
  }

  void Refuse(const AskedOfRuntime& asked) const override {
    TorchBased::Refuse(asked);
    if (!asked.config.empty()) {
      ThrowUsage(
          "⟦config⟧: {} is a DeepSpeed config, which ⟦runtime⟧ fsdp2 does not read; give ⟦stage⟧, "
          "⟦checkpointing⟧ and ⟦offload_param⟧",
          asked.config);
    }
    if (!asked.grad_accum_dtype.empty()) {
      ThrowUsage(
          "⟦grad_accum_dtype⟧: {} has no effect with ⟦runtime⟧ fsdp2, which sums gradients in the "
          "parameters' fp32; leave it out",
          asked.grad_accum_dtype);
    }
  }
  ChoiceSpace EstimateSpace() const override {
    ChoiceSpace space;
    space.stages = {2, 3};
    space.offload_optimizer = space.offload_param = {OffloadDevice::kNone, OffloadDevice::kCpu};
    return space;
  }
  // Parameters and optimizer in one place, unless nothing else was asked for.
  std::vector<TrainSetup> Completed(std::vector<TrainSetup> setups, bool /*given*/) const override {
    std::vector<TrainSetup> together;
    for (const TrainSetup& setup : setups) {
      const ZeroConfig& zero = setup.zero;
      if (zero.offload_optimizer.device == zero.offload_param.device) together.push_back(setup);
    }
    return together.empty() ? setups : together;
  }

  const RuntimeMargins& margins() const override { return kFsdp2Margins; }

  std::string FormatCannot(ConfigFormat format, const TrainSetup& setup) const override {
    // DeepSpeed's own config is NoFormat's to refuse.
    return format == ConfigFormat::kDeepSpeed ? "" : Fsdp2FormatCannot(format, setup);
  }
  std::string NoFormat(ConfigFormat format, const std::string& file) const override {
    if (format != ConfigFormat::kDeepSpeed) return "";
    return fmt::format(
        "⟦out⟧: {} would be a DeepSpeed config, which FSDP2 does not read; add ⟦for⟧ hf-trainer, "
        "accelerate or torchtitan",
        file);
  }
  std::string ConfigJson(const TrainSetup& setup, int64_t /*layers*/) const override {
    return Fsdp2Config(setup).dump();
  }

 protected:
  void RefuseSetup(const TorchPlay& play) const override {
    const TrainSetup& setup = play.setup;
    const ModelSpec& model = play.model;
    const OffloadDevice optimizer = setup.zero.offload_optimizer.device;
    const OffloadDevice param = setup.zero.offload_param.device;
    RefuseIf(setup.precision.dtype != Dtype::kBF16,
             "its memory is modelled for bf16, not {}; give ⟦dtype⟧ bf16",
             DtypeName(setup.precision.dtype));
    RefuseIf(Hybrid(setup) && setup.zero.across_stage > 0,
             "⟦across_groups⟧ {}: FSDP2's shard groups hold replicas (a mesh of two dimensions); "
             "give replicate",
             AcrossName(setup.zero.across_stage));
    RefuseIf(setup.zero.stage < 2,
             "stage {} is not what fully_shard does; use 3 (reshard_after_forward) or 2 "
             "(without)",
             setup.zero.stage);
    RefuseIf(setup.zero.quantized_weights || setup.zero.quantized_gradients,
             "FSDP2 quantizes nothing that it sends; leave quantized weights and gradients out");
    RefuseIf(optimizer == OffloadDevice::kNvme || param == OffloadDevice::kNvme,
             "FSDP2 has no offload to NVMe; use cpu or none");
    RefuseIf((optimizer != param && setup.zero.stage == 3) ||
                 (optimizer != OffloadDevice::kNone && setup.zero.stage < 3),
             "CPUOffloadPolicy moves parameters and optimizer together, at stage 3; give ⟦stage⟧ 3 "
             "with ⟦offload_optimizer⟧ cpu ⟦offload_param⟧ cpu, or none");
    RefuseIf(optimizer != OffloadDevice::kNone &&
                 !(setup.zero.offload_optimizer.pin_memory && setup.zero.offload_param.pin_memory),
             "⟦pin_memory⟧ off: CPUOffloadPolicy is modelled with page-locked memory, its default; "
             "leave it out");
    RefuseIf(setup.zero.offload_optimizer.ratio < 1,
             "⟦offload_ratio⟧ {}: CPUOffloadPolicy moves all or nothing; leave it out",
             setup.zero.offload_optimizer.ratio);
    RefuseIf(
        setup.recompute.every > 1,
        "recompute is modelled for none, every layer (torch.utils.checkpoint) and every second "
        "product (torchtitan's); give ⟦checkpoint_every⟧ 1");
    RefuseIf(
        setup.recompute.kind == RecomputeKind::kSelective && !CanSaveProducts(model),
        "⟦checkpointing⟧ selective stands for torchtitan's, which keeps every second "
        "product without a bias, and {} {}; give none or full",
        model.name,
        model.family->planned() != nullptr ? "is of a type that it does not train" : "has biases");
  }
  // The first step makes Adam's states; then tensors and segments repeat. NCCL as DeepSpeed's stage
  // 3 has it; Python and PyTorch as with nothing of ZeRO.
  PlayedParts Parts(int /*stage*/) const override { return {3, 3, 0}; }
  std::unique_ptr<TorchRuntime> MakeEngine(const TorchModel& model, const TorchPlay& play,
                                           TorchMemory* memory, TorchTimer* timer) const override {
    // accelerate's no_sync: set_requires_gradient_sync(False) in all but the last micro-step.
    const bool waits =
        StyleCodeOf(play.recipe.code, false).transformers && play.setup.batch.grad_accum > 1;
    return std::make_unique<Fsdp2>(model, play.setup, waits, memory, timer);
  }
  std::vector<AroundPeak> Around(const PlayedRun& run) const override { return Fsdp2Around(run); }
  bool CanDo(int stage, const OffloadPlace& offloads) const override {
    return stage >= 2 && offloads.optimizer.ratio >= 1 &&
           offloads.optimizer.device == offloads.param && offloads.param != OffloadDevice::kNvme &&
           (offloads.pin_memory || !offloads.anything()) &&
           (stage == 3 || offloads.param == OffloadDevice::kNone);
  }
  bool CanGroup(int /*stage*/, const OffloadPlace& /*offloads*/,
                const Grouping& grouping) const override {
    return grouping.across_stage == 0;
  }
  // torchtitan has selective recompute, transformers and accelerate do not.
  bool CanRecompute(const SearchInputs& inputs, const RecomputeConfig& recompute) const override {
    if (recompute.kind == RecomputeKind::kSelective) {
      return inputs.for_torchtitan && CanSaveProducts(inputs.model);
    }
    return recompute == kNoRecompute || recompute == FullRecompute();
  }
  TrainSetup SetupFor(const SearchInputs& inputs, int gpus, int stage,
                      const OffloadPlace& offloads) const override {
    TrainSetup setup = inputs.base;
    setup.batch.world_size = gpus;
    setup.zero = ReaderZeroDefaults(stage);
    setup.zero.quantized_weights = inputs.base.zero.quantized_weights;
    setup.zero.quantized_gradients = inputs.base.zero.quantized_gradients;
    setup.zero.offload_optimizer.device = offloads.optimizer.device;
    setup.zero.offload_optimizer.ratio = offloads.optimizer.ratio;
    setup.zero.offload_param.device = offloads.param;
    return setup;
  }
  std::string_view OptimizerText() const override { return "torch.optim.AdamW(fused=True)"; }
};

}  // namespace

const Runtime& Fsdp2Runtime() {
  static const Fsdp2OfTorch runtime;
  return runtime;
}

}  // namespace zeroplan
