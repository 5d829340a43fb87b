#include "planner/runtimes/deepspeed.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "core/base/error.h"
#include "core/config/reader_defaults.h"
#include "planner/runtimes/deepspeed_engine.h"
#include "planner/runtimes/fitted.h"

namespace zeroplan {
namespace {

// Steps until tensors and segments repeat: the first makes Adam's states, stage 3 records its trace
// in the second and prefetches from the third on (PartitionedParameterCoordinator).
constexpr int kSteps = 4;
// Micro-steps of a step that differ: the first, one between, the last.
constexpr int64_t kMicroSteps = 3;

void Refuse(const DeepSpeedRun& run) {
  const TrainSetup& setup = run.setup;
  const ZeroConfig& zero = setup.zero;
  if (setup.precision.dtype == Dtype::kF32) {
    ThrowUsage(
        "--runtime deepspeed: its memory is modelled for bf16 and fp16, not fp32; give "
        "--dtype bf16 or fp16");
  }
  if (setup.precision.grad_accum_dtype != setup.precision.dtype) {
    ThrowUsage(
        "--runtime deepspeed: data_types.grad_accum_dtype fp32 is not modelled; leave it out");
  }
  if (setup.precision.fp32_reduction) {
    ThrowUsage("--runtime deepspeed: communication_data_type fp32 is not modelled; leave it out");
  }
  if (zero.offload_optimizer.device == OffloadDevice::kNvme ||
      zero.offload_param.device == OffloadDevice::kNvme) {
    ThrowUsage(
        "--runtime deepspeed: states or parameters on NVMe are not modelled yet; offload to "
        "cpu or none");
  }
  if (zero.stage < 3 && zero.offload_optimizer.ratio < 1) {
    ThrowUsage(
        "--runtime deepspeed: DeepSpeed offloads a part of the optimizer (ratio {}) at stage "
        "3 alone; use stage 3 or ratio 1",
        zero.offload_optimizer.ratio);
  }
  if (!zero.reduce_scatter && zero.stage > 0) {
    ThrowUsage("--runtime deepspeed: reduce_scatter false is not modelled; leave it at true");
  }
  if (!zero.contiguous_gradients && zero.stage > 0) {
    ThrowUsage("--runtime deepspeed: contiguous_gradients false is not modelled; leave it at true");
  }
  if (setup.recompute.kind == RecomputeKind::kSelective || setup.recompute.every > 1) {
    ThrowUsage(
        "--runtime deepspeed: recompute is modelled for none and for every layer "
        "(torch.utils.checkpoint); give --checkpointing none or full, --checkpoint-every 1");
  }
}

TrainSetup WithDefaults(TrainSetup setup) {
  ZeroConfig& zero = setup.zero;
  const ZeroConfig defaults = ReaderZeroDefaults(zero.stage);
  const auto fill = [](uint64_t* size, uint64_t otherwise) {
    if (*size == kAuto) *size = otherwise;
  };
  fill(&zero.reduce_bucket_elements, defaults.reduce_bucket_elements);
  fill(&zero.prefetch_bucket_elements, defaults.prefetch_bucket_elements);
  fill(&zero.max_live_parameters, defaults.max_live_parameters);
  return setup;
}

}  // namespace

RuntimeFootprint DeepSpeedFootprint(const DeepSpeedRun& run, TorchTimer* timer) {
  Refuse(run);
  TorchTimer no_timer(nullptr, {});
  if (timer == nullptr) timer = &no_timer;
  const TrainSetup setup = WithDefaults(run.setup);
  const TorchModel model(run.model);
  TorchMemory memory(run.limit_bytes);
  RuntimeFootprint footprint;
  footprint.runtime = "deepspeed 0.19.6";
  {
    const std::unique_ptr<DeepSpeedEngine> engine =
        MakeDeepSpeedEngine(model, setup, &memory, timer);
    engine->Init();
    footprint.after_init_bytes = memory.allocator().allocated();
    TorchRun shape;
    shape.micro_batch = setup.batch.micro_batch;
    shape.seq_len = setup.batch.seq_len;
    shape.recompute = setup.recompute.kind == RecomputeKind::kFull;
    shape.compiled = run.compiled;
    shape.compiled_loss = run.compiled_loss;
    shape.module_graphs = run.compiled && setup.zero.stage == 3;
    // torch.compile leaves a checkpoint alone in which it finds stage 3's hooks.
    TorchRun timed = shape;
    if (shape.recompute && shape.module_graphs) timed.compiled = false;
    timer->SetModel(model, timed, setup.precision.dtype);
    TorchStep step(model, shape, &memory, engine.get(), timer);
    const int64_t micro_steps = std::min(setup.batch.grad_accum, kMicroSteps);
    for (int i = 0; i < kSteps; ++i) {
      const uint64_t given_back = memory.allocator().given_back();
      timer->BeginStep();
      for (int64_t micro = 0; micro < micro_steps; ++micro) {
        memory.Enter(TorchPhase::kForwardBackward);
        timer->BeginMicroStep();
        engine->BeginMicroStep(micro + 1 == micro_steps);
        step.Forward();
        step.Backward();
        engine->EndBackward();
      }
      memory.Enter(TorchPhase::kStep);
      engine->Step();
      timer->EndStep();
      footprint.segments_given_back = (memory.allocator().given_back() - given_back) *
                                      static_cast<uint64_t>(setup.batch.grad_accum / micro_steps);
    }
    for (size_t phase = 0; phase < kTorchPhases; ++phase) {
      footprint.peaks[phase] = memory.peak(static_cast<TorchPhase>(phase));
    }
  }
  footprint.context_bytes = ContextBytes(setup.zero.stage, setup.batch.world_size);
  footprint.out_of_memory = memory.out_of_memory();
  for (const TorchPhase phase :
       {TorchPhase::kInit, TorchPhase::kForwardBackward, TorchPhase::kStep}) {
    const HostPeak& host = memory.host_peak(phase);
    const uint64_t base = HostBaseBytes(setup.zero.stage, phase);
    if (host.total() + base <= footprint.HostBytes()) continue;
    footprint.host = host;
    footprint.host_base_bytes = base;
  }
  return footprint;
}

}  // namespace zeroplan
