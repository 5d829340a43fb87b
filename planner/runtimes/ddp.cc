// PyTorch alone: one GPU, or torch.nn.parallel.DistributedDataParallel over several. Functions
// named below are of PyTorch 2.11: torch/csrc/distributed/c10d/reducer.cpp,
// aten/src/ATen/autocast_mode.cpp.

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/config/reader_state.h"
#include "core/model/lora.h"
#include "core/settings/setup_facts.h"
#include "planner/estimate/choices.h"
#include "planner/formats/config_format.h"
#include "planner/runtimes/runtimes.h"
#include "planner/runtimes/torch_based.h"
#include "planner/runtimes/torch_optimizer.h"
#include "planner/runtimes/torch_phases.h"
#include "planner/search/search.h"

namespace zeroplan {
namespace {

constexpr int kDdpReduce = 1;
// Reducer: the first bucket to be reduced, and the others (bucket_cap_mb 25).
constexpr uint64_t kFirstBucketBytes = uint64_t{1} << 20, kBucketBytes = uint64_t{25} << 20;

Dtype HeldDtype(const TorchPlay& play) {
  return HeldByDdp(play.recipe, play.setup.precision.dtype, HasAdapters(play.model));
}

class Ddp : public TorchRuntime {
 public:
  Ddp(const TorchModel& model, const TorchPlay& play, TorchMemory* memory, TorchTimer* timer)
      : TorchRuntime(model, play.setup, memory, timer),
        casts_(HeldDtype(play) == Dtype::kF32),
        kbit_(play.recipe.kbit),
        scales_(play.setup.precision.dtype == Dtype::kF16),
        run_(TorchRunOf(play.setup, play.recipe)),
        held_bytes_(casts_ ? 4 : 2),
        recompute_(play.setup.recompute.kind != RecomputeKind::kNone),
        in_backward_(play.recipe.optimizer_in_backward),
        clips_(play.setup.optimizer.gradient_clipping > 0 && !in_backward_),
        states_(play.recipe.UsedOptimizer(), HeldDtype(play), UpdatedTensorsOf(model), memory,
                timer) {}

  void Init() override {
    for (const TorchParam& param : model_.trained()) {
      params_.push_back(New(TorchClass::kParams, held_bytes_ * param.elements));
    }
    MakeFrozen(kbit_ ? 4 : 2);
  }

  // cached_cast: a 16-bit copy of each fp32 weight that a product takes, kept until autocast ends
  // with the forward pass, and by what backward needs until then.
  void BeforeForward(int module) override { CastWeights(module); }
  void BeginBackward() override {
    if (!recompute_) return;
    // What checkpoints have kept nothing of; the head is in none.
    const auto head = static_cast<size_t>(model_.head_weight());
    for (size_t i = 0; i < cast_.size(); ++i) {
      if (i != head) cast_[i].Reset();
    }
  }
  void BeforeBackward(int module) override { CastWeights(module); }
  void AfterBackward(int module) override {
    for (const int param : model_.modules[static_cast<size_t>(module)].params) {
      if (!cast_.empty()) cast_[static_cast<size_t>(param)].Reset();
    }
  }

  // AccumulateGrad, and Reducer::mark_variable_ready_dense: copied into its bucket.
  void Gradient(int param, Tensor grad) override {
    const auto index = static_cast<size_t>(param);
    const uint64_t bytes = held_bytes_ * model_.params[index].elements;
    if (casts_ && !model_.params[index].vector) {
      timer_->Memory(6 * Elements(index));
      grad = New(TorchClass::kGrads, bytes);  // ToCopyBackward
    }
    if (in_backward_) {  // register_post_accumulate_grad_hook
      states_.Update(index);
      return;
    }
    if (grads_[index]) {
      timer_->Memory(3.0 * static_cast<double>(bytes));
    } else {
      grads_[index] = std::move(grad);
    }
    if (gpus_ == 1 || !last_) return;
    timer_->Memory(2.0 * static_cast<double>(bytes));
    bucket_bytes_ += bytes;
    if (bucket_bytes_ >= (reduced_ ? kBucketBytes : kFirstBucketBytes)) ReduceBucket();
  }

  // finalize_backward: the compute stream waits, and gradients are copied out of the buckets.
  void EndBackward() override {
    cast_.clear();
    if (gpus_ == 1 || !last_) return;
    ReduceBucket();
    reduced_ = false;
    has_buckets_ = true;
    timer_->StreamWaits(TorchClock::kComputeStream, kDdpReduce);
    const auto bytes = static_cast<double>(held_bytes_ * model_.trained_elements());
    timer_->Memory(2 * bytes, static_cast<int>(model_.trained().size()));
  }

  // clip_grad_norm_ (foreach), the optimizer, zero_grad(set_to_none=True).
  void Step() override {
    const auto bytes = static_cast<double>(held_bytes_ * model_.trained_elements());
    const int params = static_cast<int>(model_.trained().size());
    timer_->Host(timer_->constants().updated_param * params);
    if (scales_) UnscaleGradients(bytes, params);
    if (clips_) {
      timer_->Memory(bytes, 1 + params / 100);
      timer_->Memory(2 * bytes, 1 + params / 100);
    }
    if (!in_backward_) states_.Step();
    for (Tensor& grad : grads_) grad.Reset();
  }

 private:
  void CastWeights(int module) {
    // The head of k-bit training is fp32, too.
    const bool casts_head = kbit_ && module == model_.head();
    if (!casts_ || !(model_.modules[static_cast<size_t>(module)].product || casts_head)) return;
    if (IsFloat8(model_, run_, module)) return;  // Float8Linear casts what it has
    if (cast_.empty()) cast_.resize(model_.params.size());
    for (const int param : model_.modules[static_cast<size_t>(module)].params) {
      if (!model_.trains(param) && !casts_head) continue;
      Tensor& cast = cast_[static_cast<size_t>(param)];
      if (cast) continue;
      timer_->Memory(6 * Elements(static_cast<size_t>(param)));
      cast = New(TorchClass::kParams, 2 * model_.params[static_cast<size_t>(param)].elements);
    }
  }

  // Buckets are made when the first backward pass has shown the order of gradients
  // (rebuild_buckets), one tensor a bucket.
  void ReduceBucket() {
    if (bucket_bytes_ == 0) return;
    reduced_ = true;
    if (!has_buckets_) buckets_.push_back(New(TorchClass::kBuffers, bucket_bytes_));
    timer_->StreamWaits(kDdpReduce, TorchClock::kComputeStream);
    timer_->Collective(kDdpReduce, CollectiveOp::kAllReduce, static_cast<double>(bucket_bytes_));
    bucket_bytes_ = 0;
  }

  const bool casts_, kbit_, scales_;
  const TorchRun run_;
  const uint64_t held_bytes_;
  const bool recompute_, in_backward_, clips_;
  TorchStates states_;
  bool reduced_ = false, has_buckets_ = false;
  uint64_t bucket_bytes_ = 0;
  std::vector<Tensor> params_, buckets_;
  std::vector<Tensor> cast_;  // by parameter: 16-bit copies of fp32 weights
  std::vector<Tensor> grads_{model_.params.size()};
};

// torch.nn.Module on one GPU, DistributedDataParallel with its defaults on several
// (gradient_as_bucket_view off, no_sync in all but a step's last micro-step), autocast around the
// model, AdamW. Nothing is partitioned: stage 0.
class DdpOfTorch : public TorchBased {
 public:
  std::string_view key() const override { return "ddp"; }
  std::string_view name() const override { return "DDP"; }
  std::string_view version() const override { return "ddp of PyTorch 2.11"; }
  std::string Label(const TrainSetup& setup) const override {
    std::string label = setup.batch.world_size == 1 ? "one GPU" : "DDP";
    if (setup.recompute.kind == RecomputeKind::kFull) label += ", full recompute";
    return label;
  }
  std::string StageName(int /*stage*/) const override { return "DDP"; }

  RuntimeFacts facts() const override { return {.replicates = true}; }
  void Refuse(const AskedOfRuntime& asked) const override {
    TorchBased::Refuse(asked);
    if (asked.config.given()) {
      ThrowUsage(
          "⟦config⟧: {} is a DeepSpeed config, which ⟦runtime⟧ ddp does not read; give "
          "⟦checkpointing⟧ and ⟦micro_batch⟧",
          asked.config.name());
    }
    if (!asked.grad_accum_dtype.empty()) {
      ThrowUsage(
          "⟦grad_accum_dtype⟧: {} has no effect with ⟦runtime⟧ ddp, which sums gradients in the "
          "parameters' dtype; give ⟦param_dtype⟧ or leave it out",
          asked.grad_accum_dtype);
    }
  }
  ChoiceSpace EstimateSpace() const override {
    ChoiceSpace space;
    space.stages = {0};
    space.offload_optimizer = space.offload_param = {OffloadDevice::kNone};
    return space;
  }

  const RuntimeMargins& margins() const override { return kDdpMargins; }

  std::string FormatCannot(ConfigFormat format, const TrainSetup& setup) const override {
    Reasons reasons;
    reasons.Add(setup.precision.fp8.enabled && format == ConfigFormat::kHfTrainer, "{}",
                kNoFp8Argument);
    reasons.Add(setup.zero.stage > 0, "stage {} (DDP partitions nothing)", setup.zero.stage);
    reasons.Add(setup.recompute.kind == RecomputeKind::kSelective, "selective recompute");
    reasons.Add(setup.recompute.every > 1, "recompute of {} layers at a time",
                setup.recompute.every);
    return reasons.Take();
  }
  std::string NoFormat(ConfigFormat format, const std::string& file) const override {
    if (format == ConfigFormat::kTorchtitan) {
      return "⟦for⟧: torchtitan trains with FSDP2; use ⟦runtime⟧ fsdp2";
    }
    if (format != ConfigFormat::kDeepSpeed) return "";
    return fmt::format(
        "⟦out⟧: {} would be a DeepSpeed config, which DDP does not read; add ⟦for⟧ hf-trainer or "
        "accelerate",
        file);
  }
  std::string ConfigJson(const TrainSetup& setup, int64_t /*layers*/) const override {
    return nlohmann::ordered_json(
               {{"train_batch_size", setup.batch.global_batch()},
                {"train_micro_batch_size_per_gpu", setup.batch.micro_batch},
                {"gradient_accumulation_steps", setup.batch.grad_accum},
                {"sequence_length", setup.batch.seq_len},
                {"activation_checkpointing", setup.recompute.kind != RecomputeKind::kNone},
                {"gradient_clipping", setup.optimizer.gradient_clipping},
                {"autocast", DtypeName(setup.precision.dtype)}})
        .dump();
  }

 protected:
  void RefuseSetup(const TorchPlay& play) const override {
    const TrainSetup& setup = play.setup;
    RefuseDtype(play, HeldDtype(play));
    RefuseIf(setup.precision.fp32_reduction && HeldDtype(play) != Dtype::kF32,
             "⟦communication_dtype⟧ fp32: DDP reduces gradients in the dtype that they have; give "
             "⟦param_dtype⟧ fp32 or leave it out");
    RefuseIf(setup.zero.offload_optimizer.device != OffloadDevice::kNone ||
                 setup.zero.offload_param.device != OffloadDevice::kNone,
             "offload: DDP keeps everything on the GPU; give ⟦runtime⟧ deepspeed or fsdp2");
    RefuseIf(Hybrid(setup), "⟦shard_group⟧: DDP has replicas alone; leave it out");
    RefuseIf(setup.zero.stage > 0,
             "stage {}: DDP partitions nothing; give ⟦stage⟧ 0, or ⟦runtime⟧ deepspeed or fsdp2",
             setup.zero.stage);
    RefuseIf(play.recipe.optimizer_in_backward &&
                 (setup.batch.world_size > 1 || setup.batch.grad_accum > 1),
             "⟦optimizer_in_backward⟧: updates before the gradients of other ranks or micro-steps "
             "are there; use one GPU and ⟦grad_accum⟧ 1, or leave it out");
    RefuseOtherRecompute(setup.recompute);
  }
  // The first step makes the optimizer's states and the buckets. NCCL as DeepSpeed's stages 0 to 2
  // have it, which all-reduce too; Python and PyTorch as with nothing of ZeRO.
  PlayedParts Parts(int /*stage*/) const override { return {3, 0, 0}; }
  bool CastsTrained(const TorchPlay& play) const override { return HeldDtype(play) == Dtype::kF32; }
  std::unique_ptr<TorchRuntime> MakeEngine(const TorchModel& model, const TorchPlay& play,
                                           TorchMemory* memory, TorchTimer* timer) const override {
    return std::make_unique<Ddp>(model, play, memory, timer);
  }
  std::vector<AroundPeak> Around(const PlayedRun& run) const override {
    // The base of adapters is loaded in 16 bit.
    return DdpAround(run, HasAdapters(run.play.model) ? Dtype::kBF16 : HeldDtype(run.play));
  }
  bool CanDo(int stage, const OffloadPlace& offloads) const override {
    return stage == 0 && !offloads.anything();
  }
  bool CanGroup(int /*stage*/, const OffloadPlace& /*offloads*/,
                const Grouping& /*grouping*/) const override {
    return false;
  }
};

}  // namespace

const Runtime& DdpRuntime() {
  static const DdpOfTorch runtime;
  return runtime;
}

}  // namespace zeroplan
