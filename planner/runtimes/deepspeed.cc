#include "planner/runtimes/deepspeed.h"

#include <memory>

#include "core/base/error.h"
#include "core/config/reader_state.h"
#include "planner/runtimes/deepspeed_engine.h"

namespace zeroplan {
namespace {

// Steps until tensors and segments repeat: the first makes Adam's states, stage 3 records its trace
// in the second and prefetches from the third on (PartitionedParameterCoordinator).
constexpr int kDeepSpeedSteps = 4;

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

}  // namespace

RuntimeFootprint DeepSpeedFootprint(const DeepSpeedRun& run, TorchTimer* timer) {
  Refuse(run);
  TorchTimer no_timer(nullptr, {});
  if (timer == nullptr) timer = &no_timer;
  TrainSetup setup = run.setup;
  FillReaderSizes(setup.zero);
  const int stage = setup.zero.stage;
  const TorchModel model(run.model);
  TorchRun shape = TorchRunOf(setup, run.compiled, run.compiled_loss);
  shape.module_graphs = run.compiled && stage == 3;
  // torch.compile leaves a checkpoint alone in which it finds stage 3's hooks.
  TorchRun timed = shape;
  if (shape.recompute && shape.module_graphs) timed.compiled = false;
  TorchMemory memory(run.limit_bytes);
  const std::unique_ptr<TorchRuntime> engine = MakeDeepSpeedEngine(model, setup, &memory, timer);
  RuntimeFootprint footprint = PlayRuntime(
      {&model, &setup, shape, timed, kDeepSpeedSteps, stage, stage}, &memory, engine.get(), timer);
  footprint.runtime = "deepspeed 0.19.6";
  return footprint;
}

}  // namespace zeroplan
