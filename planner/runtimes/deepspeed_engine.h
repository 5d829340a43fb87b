// DeepSpeed's engine and ZeRO optimizers as far as memory goes: what they hold, and what they make
// and free around a model's own tensors.
#pragma once

#include <memory>

#include "core/config/zero_config.h"
#include "planner/runtimes/torch_memory.h"
#include "planner/runtimes/torch_model.h"

namespace zeroplan {

class DeepSpeedEngine : public TorchHooks {
 public:
  // The model is made, then deepspeed.initialize.
  virtual void Init() = 0;
  virtual void BeginMicroStep(bool last) = 0;  // `last` of the step: its boundary
  virtual void EndBackward() = 0;
  virtual void Step() = 0;
};

// `model` and `memory` must outlive it. Rank 0 of setup.batch.world_size.
std::unique_ptr<DeepSpeedEngine> MakeDeepSpeedEngine(const TorchModel& model,
                                                     const TrainSetup& setup, TorchMemory* memory);
// By stage; each in a file of its own.
std::unique_ptr<DeepSpeedEngine> MakeStage0(const TorchModel& model, const TrainSetup& setup,
                                            TorchMemory* memory);
std::unique_ptr<DeepSpeedEngine> MakeStage1And2(const TorchModel& model, const TrainSetup& setup,
                                                TorchMemory* memory);
std::unique_ptr<DeepSpeedEngine> MakeStage3(const TorchModel& model, const TrainSetup& setup,
                                            TorchMemory* memory);

}  // namespace zeroplan
