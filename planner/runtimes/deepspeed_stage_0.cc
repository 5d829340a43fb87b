// Stage 0: FP16_Optimizer, for bf16 too (deepspeed/runtime/fp16/fused_optimizer.py; which one the
// engine takes: engine.py, _do_optimizer_sanity_check).
#include <vector>

#include "planner/runtimes/deepspeed_engine.h"

namespace zeroplan {
namespace {

// Elements all-reduced at once (engine.py, allreduce_bucket's default).
constexpr uint64_t kAllReduceElements = 500'000'000;

class Stage0 : public DeepSpeedEngine {
 public:
  Stage0(const TorchModel& model, const TrainSetup& setup, TorchMemory* memory)
      : model_(model), memory_(memory), elements_(model.elements()), gpus_(setup.batch.world_size) {
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
    if (!kept) kept = std::move(grad);  // else added in place
  }

  // engine.py, buffered_allreduce_fallback.
  void EndBackward() override {
    if (!last_ || gpus_ == 1) return;
    for (uint64_t begin = 0; begin < elements_; begin += kAllReduceElements) {
      const Tensor bucket =
          memory_->New(TorchClass::kBuffers, 2 * std::min(kAllReduceElements, elements_ - begin));
    }
  }

  // fused_optimizer.py, step: gradients cast one by one, then flattened.
  void Step() override {
    std::vector<Tensor> cast;
    for (const TorchParam& param : model_.params) {
      cast.push_back(memory_->New(TorchClass::kOptimizer, 4 * param.elements));
    }
    const Tensor flat = memory_->New(TorchClass::kOptimizer, 4 * elements_);
    cast.clear();
    for (Tensor& grad : grads_) grad.Reset();
  }

 private:
  const TorchModel& model_;
  TorchMemory* memory_;
  uint64_t elements_;
  int gpus_;
  bool last_ = true;
  Tensor flat_, master_, momentum_, variance_;
  std::vector<Tensor> grads_;
};

}  // namespace

std::unique_ptr<DeepSpeedEngine> MakeStage0(const TorchModel& model, const TrainSetup& setup,
                                            TorchMemory* memory) {
  return std::make_unique<Stage0>(model, setup, memory);
}

std::unique_ptr<DeepSpeedEngine> MakeDeepSpeedEngine(const TorchModel& model,
                                                     const TrainSetup& setup, TorchMemory* memory) {
  switch (setup.zero.stage) {
    case 0:
      return MakeStage0(model, setup, memory);
    case 3:
      return MakeStage3(model, setup, memory);
    default:
      return MakeStage1And2(model, setup, memory);
  }
}

}  // namespace zeroplan
