// A runtime around a transformer's modules, and what a process takes that trains with it.
#pragma once

#include <optional>

#include "core/config/zero_config.h"
#include "planner/footprint.h"
#include "planner/runtimes/torch_memory.h"
#include "planner/runtimes/torch_model.h"
#include "planner/runtimes/torch_timer.h"

namespace zeroplan {

class TorchRuntime : public TorchHooks {
 public:
  // The model is made, then what the runtime holds.
  virtual void Init() = 0;
  virtual void BeginMicroStep(bool /*last*/) {}  // `last` of the step: its boundary
  virtual void BeginBackward() {}
  virtual void EndBackward() = 0;
  virtual void Step() = 0;
};

// The run of `setup`, with layers and loss under torch.compile or not.
TorchRun TorchRunOf(const TrainSetup& setup, bool compiled, bool compiled_loss);

// What is played: as many steps as it takes until tensors and segments repeat, each of at most
// kPlayedMicroSteps micro-steps: the first, one between, the last.
inline constexpr int64_t kPlayedMicroSteps = 3;
struct PlayedRun {
  const TorchModel* model;
  const TrainSetup* setup;
  TorchRun run;
  TorchRun timed_run;  // as its kernels are; `run` but for what is compiled
  int steps;
  int context_stage, host_stage;  // of ContextBytes and HostBaseBytes
};
// Plays initialisation and the steps of `runtime`, whose tensors `memory` has. `runtime` of the
// footprint is left to the caller.
TorchFootprint PlayRuntime(const PlayedRun& played, TorchMemory* memory, TorchRuntime* runtime,
                           TorchTimer* timer);

}  // namespace zeroplan
