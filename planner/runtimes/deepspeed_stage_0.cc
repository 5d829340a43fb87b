// Stage 0: FP16_Optimizer, for bf16 too (deepspeed/runtime/fp16/fused_optimizer.py; which one the
// engine takes: engine.py, _do_optimizer_sanity_check).
#include <vector>

#include "planner/runtimes/deepspeed_engine.h"

namespace zeroplan {
namespace {

// Elements all-reduced at once (engine.py, allreduce_bucket's default).
constexpr uint64_t kAllReduceElements = 500'000'000;

class Stage0 : public TorchRuntime {
 public:
  Stage0(const TorchModel& model, const TrainSetup& setup, TorchMemory* memory, TorchTimer* timer)
      : model_(model),
        memory_(memory),
        timer_(timer),
        elements_(model.elements()),
        gpus_(setup.batch.world_size) {
    grads_.resize(model.params.size());
  }

  // fused_optimizer.py, __init__ and initialize_optimizer_states, which takes a step.
  void Init() override {
    std::vector<Tensor> params, clones;
    for (const TorchParam& param : model_.params) {
      params.push_back(memory_->New(TorchClass::kParams, 2 * param.elements));
    }
    for (const TorchParam& param : model_.params) {
      clones.push_back(memory_->New(TorchClass::kParams, 2 * param.elements));
    }
    flat_ = memory_->New(TorchClass::kParams, 2 * elements_);
    clones.clear();
    params.clear();
    Tensor clone = memory_->New(TorchClass::kParams, 2 * elements_);
    master_ = memory_->New(TorchClass::kOptimizer, 4 * elements_);
    clone.Reset();
    const Tensor grad = memory_->New(TorchClass::kOptimizer, 4 * elements_);
    momentum_ = memory_->New(TorchClass::kOptimizer, 4 * elements_);
    variance_ = memory_->New(TorchClass::kOptimizer, 4 * elements_);
  }

  void BeginMicroStep(bool last) override { last_ = last; }

  void Gradient(int param, Tensor grad) override {
    Tensor& kept = grads_[static_cast<size_t>(param)];
    if (kept) timer_->Memory(6 * Elements(param));
    if (!kept) kept = std::move(grad);  // else added in place
  }

  // engine.py, buffered_allreduce_fallback.
  void EndBackward() override {
    if (!last_ || gpus_ == 1) return;
    for (uint64_t begin = 0; begin < elements_; begin += kAllReduceElements) {
      const Tensor bucket =
          memory_->New(TorchClass::kBuffers, 2 * std::min(kAllReduceElements, elements_ - begin));
      const auto elements = static_cast<double>(std::min(kAllReduceElements, elements_ - begin));
      timer_->Memory(12 * elements, 3);  // flattened, divided, copied back
      timer_->Collective(TorchClock::kComputeStream, CollectiveOp::kAllReduce, 2 * elements);
    }
  }

  // fused_optimizer.py, step: gradients cast one by one, then flattened.
  void Step() override {
    const auto elements = static_cast<double>(elements_);
    const int params = static_cast<int>(model_.params.size());
    // Overflow by gradient, cast, flattened, norm, scaled, Adam, 16-bit parameters.
    timer_->Memory(kOverflowBytes * elements, kOverflowKernels * params);
    timer_->HostWaitsForAll();
    timer_->Memory(6 * elements, params);
    timer_->Memory((8 + 4 + 8 + kAdamBytes + 6) * elements, 5);
    std::vector<Tensor> cast;
    for (const TorchParam& param : model_.params) {
      cast.push_back(memory_->New(TorchClass::kOptimizer, 4 * param.elements));
    }
    const Tensor flat = memory_->New(TorchClass::kOptimizer, 4 * elements_);
    cast.clear();
    for (Tensor& grad : grads_) grad.Reset();
  }

 private:
  double Elements(int param) const {
    return static_cast<double>(model_.params[static_cast<size_t>(param)].elements);
  }

  const TorchModel& model_;
  TorchMemory* memory_;
  TorchTimer* timer_;
  uint64_t elements_;
  int gpus_;
  bool last_ = true;
  Tensor flat_, master_, momentum_, variance_;
  std::vector<Tensor> grads_;
};

}  // namespace

std::unique_ptr<TorchRuntime> MakeStage0(const TorchModel& model, const TrainSetup& setup,
                                         TorchMemory* memory, TorchTimer* timer) {
  return std::make_unique<Stage0>(model, setup, memory, timer);
}

std::unique_ptr<TorchRuntime> MakeDeepSpeedEngine(const TorchModel& model, const TrainSetup& setup,
                                                  TorchMemory* memory, TorchTimer* timer) {
  switch (setup.zero.stage) {
    case 0:
      return MakeStage0(model, setup, memory, timer);
    case 3:
      return MakeStage3(model, setup, memory, timer);
    default:
      return MakeStage1And2(model, setup, memory, timer);
  }
}

}  // namespace zeroplan
