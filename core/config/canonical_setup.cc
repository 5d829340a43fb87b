// Maps all setups that train the same to one setup.
#include <algorithm>

#include "core/config/deepspeed_writer.h"
#include "core/config/reader_state.h"
#include "core/settings/setup_facts.h"
#include "core/settings/zero_config.h"

namespace zeroplan {

namespace {

void ResetZero(ZeroConfig* zero) {
  const ZeroConfig open = ReaderZeroDefaults(zero->stage);
  auto& optimizer = zero->offload_optimizer;
  auto& param = zero->offload_param;
  if (zero->stage != 3) {
    zero->prefetch_bucket_elements = open.prefetch_bucket_elements;
    zero->param_persistence_threshold = open.param_persistence_threshold;
    zero->model_persistence_threshold = open.model_persistence_threshold;
    zero->max_live_parameters = open.max_live_parameters;
    zero->max_reuse_distance = open.max_reuse_distance;
    param = open.offload_param;
  }
  if (optimizer.device == OffloadDevice::kNone) optimizer = open.offload_optimizer;
  if (param.device == OffloadDevice::kNone) param = open.offload_param;
  if (optimizer.device != OffloadDevice::kNvme) {
    optimizer.nvme_path.clear();
    optimizer.pipeline_read = optimizer.pipeline_write = false;
  }
  if (param.device != OffloadDevice::kNvme) {
    param.nvme_path.clear();
    param.buffer_elements = open.offload_param.buffer_elements;
    param.max_in_cpu_elements = open.offload_param.max_in_cpu_elements;
  }
  if (optimizer.device == OffloadDevice::kNone && param.device == OffloadDevice::kNone) {
    zero->sub_group_elements = open.sub_group_elements;
  }
}

void ResetPrecision(PrecisionConfig* precision) {
  if (!precision->fp8.enabled) precision->fp8 = {};
  if (precision->dtype == Dtype::kF16) return;
  PrecisionConfig open;
  open.dtype = precision->dtype;
  open.grad_accum_dtype = precision->grad_accum_dtype;
  open.master_weights = precision->master_weights;
  open.moment_dtype = precision->moment_dtype;
  open.fp8 = precision->fp8;
  *precision = open;
}

void ResetSchedule(OptimizerConfig* optimizer) {
  ScheduleConfig& given = optimizer->schedule;
  ScheduleConfig out;
  out.kind = given.kind;
  const bool warms_up = given.kind == ScheduleKind::kWarmup ||
                        given.kind == ScheduleKind::kWarmupDecay ||
                        given.kind == ScheduleKind::kWarmupCosine;
  if (warms_up) {
    out.warmup_steps = given.warmup_steps;
    out.log_warmup = given.log_warmup;
  }
  if (given.kind == ScheduleKind::kWarmup || given.kind == ScheduleKind::kWarmupDecay) {
    out.warmup_min_lr = given.warmup_min_lr;
    out.warmup_max_lr = given.warmup_max_lr;
  }
  if (given.kind == ScheduleKind::kWarmupDecay || given.kind == ScheduleKind::kWarmupCosine) {
    out.total_steps = given.total_steps;
  }
  if (given.kind == ScheduleKind::kWarmupCosine) {
    out.warmup_max_lr = optimizer->lr;
    out.cos_min_ratio = given.cos_min_ratio;
    out.warmup_min_ratio = given.warmup_min_ratio;
  }
  if (given.kind == ScheduleKind::kOneCycle) out.one_cycle = given.one_cycle;
  if (given.kind == ScheduleKind::kRangeTest) out.range_test = given.range_test;
  if (given.kind == ScheduleKind::kOfRun) {
    out.of_run = given.of_run;  // the run sets the length
    if (out.of_run.warmup_share > 0) out.of_run.warmup_steps = 0;
    if (out.of_run.shape == DecayShape::kConstant) out.of_run.min_ratio = 0;
  }
  given = out;
}

}  // namespace

TrainSetup CanonicalSetup(TrainSetup setup, int64_t layers) {
  ResetZero(&setup.zero);
  if (!Hybrid(setup)) setup.zero.shard_group = setup.zero.across_stage = 0;
  if (setup.batch.world_size == 1) {
    setup.zero.quantized_weights = setup.zero.quantized_gradients = false;
  }
  const bool sends_fp32 = setup.batch.world_size > 1 && setup.precision.dtype != Dtype::kF32 &&
                          SentGradDtype(setup) == Dtype::kF32;
  ResetPrecision(&setup.precision);
  // Also set where it has no effect because sums in fp32 are sent as they are:
  // communication_data_type fp32 stands for both.
  setup.precision.fp32_reduction = sends_fp32;
  ResetSchedule(&setup.optimizer);
  if (layers > 0) {
    setup.recompute = OfModel(setup.recompute, layers);
  }
  return setup;
}

}  // namespace zeroplan
