#include "planner/runtimes/torch_runtime.h"

#include <algorithm>

#include "planner/runtimes/fitted.h"

namespace zeroplan {

TorchRun TorchRunOf(const TrainSetup& setup, bool compiled, bool compiled_loss) {
  TorchRun run;
  run.micro_batch = setup.batch.micro_batch;
  run.seq_len = setup.batch.seq_len;
  run.recompute = setup.recompute.kind != RecomputeKind::kNone;
  run.saves_products = setup.recompute.kind == RecomputeKind::kSelective;
  run.compiled = compiled;
  run.compiled_loss = compiled_loss;
  return run;
}

TorchFootprint PlayRuntime(const PlayedRun& played, TorchMemory* memory, TorchRuntime* runtime,
                           TorchTimer* timer) {
  const TrainSetup& setup = *played.setup;
  TorchFootprint footprint;
  runtime->Init();
  footprint.after_init_bytes = memory->allocator().allocated();
  timer->SetModel(*played.model, played.timed_run, setup.precision.dtype);
  {
    TorchStep step(*played.model, played.run, memory, runtime, timer);
    const int64_t micro_steps = std::min(setup.batch.grad_accum, kPlayedMicroSteps);
    for (int i = 0; i < played.steps; ++i) {
      const uint64_t given_back = memory->allocator().given_back();
      timer->BeginStep();
      for (int64_t micro = 0; micro < micro_steps; ++micro) {
        memory->Enter(TorchPhase::kForwardBackward);
        timer->BeginMicroStep();
        runtime->BeginMicroStep(micro + 1 == micro_steps);
        step.Forward();
        runtime->BeginBackward();
        step.Backward();
        runtime->EndBackward();
      }
      memory->Enter(TorchPhase::kStep);
      runtime->Step();
      timer->EndStep();
      footprint.segments_given_back = (memory->allocator().given_back() - given_back) *
                                      static_cast<uint64_t>(setup.batch.grad_accum / micro_steps);
    }
  }
  footprint.out_of_memory = memory->out_of_memory();
  footprint.context_bytes = ContextBytes(played.context_stage, setup.batch.world_size);
  for (const TorchPhase phase :
       {TorchPhase::kInit, TorchPhase::kForwardBackward, TorchPhase::kStep}) {
    footprint.peaks[static_cast<size_t>(phase)] = memory->peak(phase);
    const HostPeak& host = memory->host_peak(phase);
    const uint64_t base = HostBaseBytes(played.host_stage, phase);
    if (host.total() + base <= footprint.HostBytes()) continue;
    footprint.host = host;
    footprint.host_base_bytes = base;
  }
  return footprint;
}

}  // namespace zeroplan
