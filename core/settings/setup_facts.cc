#include "core/settings/setup_facts.h"

#include <algorithm>
#include <limits>

#include "core/base/error.h"
#include "core/base/fp8.h"

namespace zeroplan {

namespace {

Dtype DtypeWithoutFp32Reduction(const TrainSetup& setup) {
  // A single rank sends nothing: its update reads the gradients that kernels write.
  const bool stays = setup.batch.world_size == 1 && GradsAreTransient(setup);
  return GradsInPlace(setup) || stays ? setup.precision.grad_accum_dtype : setup.precision.dtype;
}

using Problem = std::optional<SetupProblem>;

template <typename... Args>
Problem Report(const char* key, fmt::format_string<Args...> format, Args&&... args) {
  return SetupProblem{key, fmt::format(format, std::forward<Args>(args)...)};
}

// False for NaN, and for values that overflow a float, because kernels compute in floats.
bool AtLeast(double value, double min) {
  return value >= min && value <= std::numeric_limits<float>::max();
}

Problem CheckOffload(const ZeroConfig& zero) {
  const auto& optimizer = zero.offload_optimizer;
  const auto& param = zero.offload_param;
  if (optimizer.device != OffloadDevice::kNone && zero.stage == 0) {
    return Report("zero_optimization.offload_optimizer.device",
                  "{} is not allowed at stage 0; use stage 1, 2 or 3, or device none",
                  OffloadDeviceName(optimizer.device));
  }
  if (param.device != OffloadDevice::kNone && zero.stage != 3) {
    return Report("zero_optimization.offload_param.device",
                  "{} is not allowed at stage {}; use stage 3, or device none",
                  OffloadDeviceName(param.device), zero.stage);
  }
  if (!(optimizer.ratio >= 0 && optimizer.ratio <= 1)) {
    return Report("zero_optimization.offload_optimizer.ratio",
                  "{} is not allowed; use a number from 0 to 1", optimizer.ratio);
  }
  if (optimizer.ratio < 1 && optimizer.device == OffloadDevice::kNvme) {
    return Report("zero_optimization.offload_optimizer.ratio",
                  "{} is not allowed with device nvme; use ratio 1, or device cpu",
                  optimizer.ratio);
  }
  constexpr int kMaxSlots = 1024;
  if (optimizer.buffer_count < 1 || optimizer.buffer_count > kMaxSlots) {
    return Report("zero_optimization.offload_optimizer.buffer_count",
                  "{} is not allowed; use a whole number from 1 to {}", optimizer.buffer_count,
                  kMaxSlots);
  }
  if (param.buffer_count < 1 || param.buffer_count > kMaxSlots) {
    return Report("zero_optimization.offload_param.buffer_count",
                  "{} is not allowed; use a whole number from 1 to {}", param.buffer_count,
                  kMaxSlots);
  }
  return std::nullopt;
}

Problem CheckZero(const ZeroConfig& zero) {
  if (zero.stage < 0 || zero.stage > 3) {
    return Report("zero_optimization.stage", "{} is not allowed; use 0, 1, 2 or 3", zero.stage);
  }
  if (zero.reduce_bucket_elements == 0) {
    return Report("zero_optimization.reduce_bucket_size",
                  "0 is not allowed; use a positive number of elements such as 5e8");
  }
  return CheckOffload(zero);
}

Problem CheckGroups(const ZeroConfig& zero, int world_size) {
  constexpr const char* kGroup = "⟦shard_group⟧";
  constexpr const char* kAcross = "⟦across_groups⟧";
  const int group = zero.shard_group;
  if (zero.across_stage < 0 || zero.across_stage > 2) {
    return Report(kAcross, "{} is not allowed; use replicate, optimizer or gradients",
                  zero.across_stage);
  }
  if (group == 0) {
    if (zero.across_stage == 0) return std::nullopt;
    return Report(kAcross, "{} is not allowed without shard groups; give ⟦shard_group⟧ too",
                  AcrossName(zero.across_stage));
  }
  if (group < 2 || group > world_size || world_size % group != 0) {
    return Report(kGroup,
                  "{} is not allowed with {} ranks; use a divisor of these from 2 on, or all",
                  group, world_size);
  }
  if (zero.stage == 0) {
    return Report(kGroup, "{} is not allowed at stage 0, which shards nothing; use stage 1, 2 or 3",
                  group);
  }
  if (zero.across_stage == 0) return std::nullopt;
  if (group == world_size) {
    return Report(
        kAcross,
        "{} is not allowed: one group of all {} ranks has none to share with; use replicate",
        AcrossName(zero.across_stage), world_size);
  }
  if (zero.across_stage == 2 && zero.stage == 1) {
    return Report(kAcross,
                  "gradients is not allowed at stage 1, which keeps them whole; use "
                  "optimizer, or stage 2 or 3");
  }
  if (zero.offload_param.device != OffloadDevice::kNone) {
    return Report(kAcross,
                  "{} is not allowed with parameters on {}, where no gather over the groups "
                  "reaches them; use replicate, or offload_param none",
                  AcrossName(zero.across_stage), OffloadDeviceName(zero.offload_param.device));
  }
  return std::nullopt;
}

Problem CheckQuantized(const ZeroConfig& zero) {
  struct Choice {
    const char* key;
    bool on;
  };
  const Choice gradients{"zero_optimization.zero_quantized_gradients", zero.quantized_gradients};
  for (const Choice& c :
       {Choice{"zero_optimization.zero_quantized_weights", zero.quantized_weights}, gradients}) {
    if (c.on && zero.stage != 3) {
      return Report(c.key, "true is not allowed at stage {}; use stage 3, or false", zero.stage);
    }
  }
  if (!gradients.on) return std::nullopt;
  if (!zero.reduce_scatter) {
    return Report(gradients.key,
                  "true is not allowed with reduce_scatter false, which all-reduces gradients; use "
                  "reduce_scatter true, or false here");
  }
  if (!zero.contiguous_gradients) {
    return Report(gradients.key,
                  "true is not allowed with contiguous_gradients false, which reduces tensor by "
                  "tensor; use contiguous_gradients true, or false here");
  }
  return std::nullopt;
}

Problem CheckBatch(const BatchSpec& batch) {
  struct Part {
    const char* key;
    int64_t value;
  };
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  unsigned __int128 tokens = 1;
  for (const Part& part :
       {Part{"train_micro_batch_size_per_gpu", batch.micro_batch},
        Part{"gradient_accumulation_steps", batch.grad_accum},
        Part{"world_size (⟦gpus⟧)", batch.world_size}, Part{"⟦seq_len⟧", batch.seq_len}}) {
    if (part.value < 1 || part.value > kMax) {
      return Report(part.key, "{} is not allowed; use a whole number from 1 to {}", part.value,
                    kMax);
    }
    tokens *= static_cast<uint64_t>(part.value);
  }
  if (tokens >> 62 != 0) {
    return Report("train_batch_size", "a step has more than 2^62 tokens; use a smaller batch");
  }
  if (batch.micro_batch * batch.seq_len > kMax) {
    return Report(
        "train_micro_batch_size_per_gpu",
        "{} sequences of {} tokens are more than {} tokens; use fewer or shorter sequences",
        batch.micro_batch, batch.seq_len, kMax);
  }
  const int shared = batch.sequence_ranks;
  if (shared < 1 || batch.world_size % shared != 0) {
    return Report("sequence_parallel_size",
                  "{} is not allowed with {} ranks; use a divisor of these", shared,
                  batch.world_size);
  }
  if (batch.seq_len % shared != 0) {
    return Report("sequence_parallel_size",
                  "{} is not allowed with sequences of {} tokens; use a divisor of these, or a "
                  "multiple of it as ⟦seq_len⟧",
                  shared, batch.seq_len);
  }
  return std::nullopt;
}

Problem CheckOptimizer(const OptimizerConfig& optimizer) {
  struct Value {
    const char* key;
    double value;
  };
  const ScheduleConfig& schedule = optimizer.schedule;
  for (const Value& v :
       {Value{"optimizer.params.lr", optimizer.lr}, Value{"optimizer.params.eps", optimizer.eps},
        Value{"optimizer.params.weight_decay", optimizer.weight_decay},
        Value{"gradient_clipping", optimizer.gradient_clipping},
        Value{"scheduler.params.warmup_min_lr", schedule.warmup_min_lr},
        Value{"scheduler.params.warmup_max_lr", schedule.warmup_max_lr},
        Value{"scheduler.params.cos_min_ratio", schedule.cos_min_ratio},
        Value{"scheduler.params.warmup_min_ratio", schedule.warmup_min_ratio},
        Value{"scheduler.params.warmup_num_steps", static_cast<double>(schedule.warmup_steps)},
        Value{"scheduler.params.total_num_steps", static_cast<double>(schedule.total_steps)},
        Value{"scheduler.params.cycle_min_lr", schedule.one_cycle.min_lr},
        Value{"scheduler.params.cycle_max_lr", schedule.one_cycle.max_lr},
        Value{"scheduler.params.decay_lr_rate", schedule.one_cycle.decay_rate},
        Value{"scheduler.params.lr_range_test_min_lr", schedule.range_test.min_lr},
        Value{"scheduler.params.lr_range_test_step_rate", schedule.range_test.step_rate}}) {
    if (!AtLeast(v.value, 0)) {
      return Report(v.key, "{} is not allowed; use a finite number of at least 0", v.value);
    }
  }
  struct Count {
    const char* key;
    int64_t value, min;
  };
  const OneCycleConfig& cycle = schedule.one_cycle;
  for (const Count& c :
       {Count{"scheduler.params.cycle_first_step_size", cycle.first_steps, 1},
        Count{"scheduler.params.cycle_second_step_size", cycle.second_steps, 0},
        Count{"scheduler.params.cycle_first_stair_count", cycle.first_stairs, 0},
        Count{"scheduler.params.cycle_second_stair_count", cycle.second_stairs, 0},
        Count{"scheduler.params.decay_step_size", cycle.decay_steps, 0},
        Count{"scheduler.params.lr_range_test_step_size", schedule.range_test.step_size, 1}}) {
    constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
    if (c.value < c.min || c.value > kMax) {
      return Report(c.key, "{} is not allowed; use a whole number from {} to {}", c.value, c.min,
                    kMax);
    }
  }
  for (double beta : optimizer.betas) {
    if (!(beta >= 0 && beta < 1)) {
      return Report("optimizer.params.betas",
                    "{} is not allowed; use two numbers from 0 to below 1, such as [0.9, 0.999]",
                    beta);
    }
  }
  return std::nullopt;
}

}  // namespace

bool Accumulates(const TrainSetup& setup) { return setup.batch.grad_accum > 1; }

bool GradsInPlace(const TrainSetup& setup) {
  if (setup.zero.stage <= 1) return true;
  return setup.batch.world_size == 1 && !GradsAreTransient(setup) &&
         setup.zero.offload_optimizer.device == OffloadDevice::kNone;
}

bool GradsAreTransient(const TrainSetup& setup) {
  return setup.zero.optimizer_in_backward && !Accumulates(setup) &&
         setup.zero.offload_optimizer.device == OffloadDevice::kNone;
}

std::array<Dtype, 3> StateDtypes(const PrecisionConfig& precision) {
  const bool of_param = precision.master_weights == MasterWeights::kParam;
  const bool bytes = precision.moment_dtype == Dtype::kDynamic8;
  return {of_param ? precision.dtype : Dtype::kF32, precision.moment_dtype,
          bytes ? Dtype::kUnsignedDynamic8 : precision.moment_dtype};
}

int ShardRanks(const ZeroConfig& zero, int world_size) {
  if (zero.stage == 0) return 1;
  return zero.shard_group == 0 ? world_size : zero.shard_group;
}

bool UsesHost(const TrainSetup& setup) {
  const ZeroConfig& zero = setup.zero;
  const OffloadDevice devices[] = {zero.offload_optimizer.device, zero.offload_param.device,
                                   setup.recompute.offload.device};
  return std::any_of(std::begin(devices), std::end(devices),
                     [](OffloadDevice device) { return device != OffloadDevice::kNone; });
}

bool PinsMemory(const ZeroConfig& zero) {
  const auto is_pageable = [](const auto& offload) {
    return offload.device == OffloadDevice::kNone || !offload.pin_memory;
  };
  const bool offloads = zero.offload_optimizer.device != OffloadDevice::kNone ||
                        zero.offload_param.device != OffloadDevice::kNone;
  return !offloads || !is_pageable(zero.offload_optimizer) || !is_pageable(zero.offload_param);
}

bool Hybrid(const TrainSetup& setup) {
  return setup.zero.stage > 0 &&
         ShardRanks(setup.zero, setup.batch.world_size) < setup.batch.world_size;
}

int GradReplicas(const TrainSetup& setup) {
  if (!Hybrid(setup) || setup.zero.across_stage > 0) return 1;
  return setup.batch.world_size / ShardRanks(setup.zero, setup.batch.world_size);
}

bool CrossesEachMicroStep(const TrainSetup& setup) {
  return Hybrid(setup) && !GradsInPlace(setup) &&
         (setup.zero.across_stage == 2 || !setup.zero.reduce_scatter || !Accumulates(setup) ||
          setup.zero.offload_optimizer.device != OffloadDevice::kNone);
}

bool ReducesInFp32(const TrainSetup& setup) {
  return setup.precision.fp32_reduction && setup.batch.world_size > 1 &&
         DtypeWithoutFp32Reduction(setup) != Dtype::kF32;
}

Dtype FullGradDtype(const TrainSetup& setup) {
  const bool written_in_fp32 = ReducesInFp32(setup) && !GradsInPlace(setup);
  return written_in_fp32 ? Dtype::kF32 : DtypeWithoutFp32Reduction(setup);
}

Dtype SentGradDtype(const TrainSetup& setup) {
  return ReducesInFp32(setup) ? Dtype::kF32 : FullGradDtype(setup);
}

Dtype HostGradDtype(const TrainSetup& setup) {
  const PrecisionConfig& precision = setup.precision;
  return ReducesInFp32(setup) ? precision.grad_accum_dtype : precision.dtype;
}

int64_t Fp8Multiple(Fp8Recipe recipe) { return recipe == Fp8Recipe::kBlocks ? kFp8Block : 16; }

std::string Fp8GpuLacks(const Fp8Config& fp8, int compute_capability) {
  const int major = compute_capability / 10, minor = compute_capability % 10;
  if (compute_capability < 89) {
    return fmt::format("products in FP8 start at compute capability 8.9, and it has {}.{}", major,
                       minor);
  }
  if (fp8.recipe == Fp8Recipe::kTensor || major == 9) return "";
  return fmt::format(
      "cuBLAS multiplies FP8 with scales of blocks at compute capability 9.0 alone, and it has "
      "{}.{}",
      major, minor);
}

std::string_view MatmulDtypeName(const PrecisionConfig& precision) {
  return precision.fp8.enabled ? "fp8" : DtypeName(precision.dtype);
}

bool IsFp8Product(const Fp8Config& fp8, int64_t M, int64_t K, int64_t N) {
  if (!fp8.enabled || std::min(K, N) < fp8.least_side) return false;
  const int64_t multiple = Fp8Multiple(fp8.recipe);
  return M % multiple == 0 && K % multiple == 0 && N % multiple == 0;
}

bool ParamsSharded(const TrainSetup& setup) {
  return setup.zero.stage == 3 &&
         (setup.batch.world_size > 1 || setup.zero.offload_param.device != OffloadDevice::kNone);
}

namespace {

Problem CheckStates(const PrecisionConfig& precision) {
  const MasterWeights masters = precision.master_weights;
  const Dtype dtype = precision.dtype;
  const bool fits = masters == MasterWeights::kFp32 || dtype == Dtype::kBF16 ||
                    (masters == MasterWeights::kParam && dtype == Dtype::kF16);
  if (!fits) {
    return Report("⟦master_weights⟧", "{} is not allowed in {}; use fp32{}",
                  MasterWeightsName(masters), DtypeName(dtype),
                  dtype == Dtype::kF16 ? " or 16bit" : ", or train in bf16");
  }
  const Dtype moments = precision.moment_dtype;
  if (moments != Dtype::kF32 && moments != Dtype::kBF16 && moments != Dtype::kDynamic8) {
    return Report("⟦optimizer_states⟧", "{} is not allowed; use fp32, bf16 or 8bit",
                  MomentsName(moments));
  }
  return std::nullopt;
}

Problem CheckFp8(const Fp8Config& fp8) {
  if (fp8.gradients != Dtype::kE4M3 && fp8.gradients != Dtype::kE5M2) {
    return Report("⟦fp8_gradients⟧", "{} is not allowed; use e4m3 or e5m2",
                  DtypeName(fp8.gradients));
  }
  if (fp8.least_side < 0) {
    return Report("_zeroplan.fp8.least_side", "{} is not allowed; use a whole number of at least 0",
                  fp8.least_side);
  }
  return std::nullopt;
}

}  // namespace

Problem FindPrecisionProblem(const PrecisionConfig& precision) {
  const Dtype dtype = precision.dtype;
  if (dtype != Dtype::kBF16 && dtype != Dtype::kF16 && dtype != Dtype::kF32) {
    return Report("dtype", "{} is not allowed; use bf16, fp16 or fp32", DtypeName(dtype));
  }
  if (precision.grad_accum_dtype != dtype && precision.grad_accum_dtype != Dtype::kF32) {
    const std::string own = dtype == Dtype::kF32 ? "" : fmt::format("{} or ", DtypeName(dtype));
    return Report(kGradAccumKey, "{} is not allowed with {} parameters; use {}fp32",
                  DtypeName(precision.grad_accum_dtype), DtypeName(dtype), own);
  }
  if (!AtLeast(precision.loss_scale, 0)) {
    return Report("fp16.loss_scale", "{} is not allowed; use 0 (dynamic) or a positive number",
                  precision.loss_scale);
  }
  // 2^126 is the largest power of two whose half and double are normal floats.
  if (precision.initial_scale_power < 0 || precision.initial_scale_power > 126) {
    return Report("fp16.initial_scale_power", "{} is not allowed; use a whole number from 0 to 126",
                  precision.initial_scale_power);
  }
  if (precision.loss_scale_window < 1) {
    return Report("fp16.loss_scale_window", "{} is not allowed; use a whole number of at least 1",
                  precision.loss_scale_window);
  }
  if (precision.hysteresis < 1) {
    return Report("fp16.hysteresis", "{} is not allowed; use a whole number of at least 1",
                  precision.hysteresis);
  }
  if (!AtLeast(precision.min_loss_scale, 0)) {
    return Report("fp16.min_loss_scale", "{} is not allowed; use a number of at least 0",
                  precision.min_loss_scale);
  }
  if (Problem p = CheckStates(precision)) return p;
  return CheckFp8(precision.fp8);
}

namespace {

// The update of a unit runs when other units may not have gradients yet.
Problem CheckInBackward(const TrainSetup& setup) {
  constexpr const char* kKey = "_zeroplan.optimizer_in_backward";
  if (!setup.zero.optimizer_in_backward) return std::nullopt;
  if (setup.zero.stage < 2) {
    return Report(kKey,
                  "true is not allowed at stage {}, which keeps whole gradients; use stage 2 or 3",
                  setup.zero.stage);
  }
  if (setup.optimizer.gradient_clipping > 0) {
    return Report(kKey,
                  "true is not allowed with gradient_clipping {}: the norm is known after the "
                  "backward pass; use gradient_clipping 0",
                  setup.optimizer.gradient_clipping);
  }
  if (setup.precision.dtype == Dtype::kF16) {
    return Report(kKey,
                  "true is not allowed in fp16: an overflow must leave out the step, which has "
                  "begun then; train in bf16");
  }
  if (setup.zero.offload_optimizer.ratio < 1) {
    return Report(kKey,
                  "true is not allowed with states on both GPU and host (offload_optimizer.ratio "
                  "{}); use ratio 1",
                  setup.zero.offload_optimizer.ratio);
  }
  return std::nullopt;
}

Problem CheckRecompute(const RecomputeConfig& recompute) {
  if ((recompute.kind == RecomputeKind::kFull) != (recompute.every >= 1)) {
    return Report("⟦checkpoint_every⟧",
                  "{} is not allowed; use a number of layers with full recompute, none without",
                  recompute.every);
  }
  if (recompute.layers < 0 || (recompute.layers > 0 && recompute.kind == RecomputeKind::kNone)) {
    return Report("⟦checkpoint_layers⟧",
                  "{} is not allowed with ⟦checkpointing⟧ {}; use a number of layers with "
                  "selective, products or full",
                  recompute.layers, RecomputeName(recompute));
  }
  const bool above = recompute.above != RecomputeKind::kNone;
  if (above && (recompute.layers == 0 || recompute.above > RecomputeKind::kSelective ||
                recompute.above >= recompute.kind)) {
    return Report("⟦checkpointing_above⟧",
                  "{} is not allowed with ⟦checkpointing⟧ {} and ⟦checkpoint_layers⟧ {}; use "
                  "selective with products or full of a number of layers, or none",
                  RecomputeName(recompute.above), RecomputeName(recompute), recompute.layers);
  }
  const ActivationHome& offload = recompute.offload;
  if (offload.device == OffloadDevice::kNvme) {
    return Report("⟦offload_activations⟧", "nvme is not allowed; use cpu or none");
  }
  if (offload.layers < 0 || (offload.layers > 0 && offload.device == OffloadDevice::kNone)) {
    return Report(
        "⟦offload_activation_layers⟧",
        "{} is not allowed with ⟦offload_activations⟧ {}; use a number of layers with cpu",
        offload.layers, OffloadDeviceName(offload.device));
  }
  return std::nullopt;
}

}  // namespace

std::optional<SetupProblem> FindSetupProblem(const TrainSetup& setup) {
  if (Problem p = CheckZero(setup.zero)) return p;
  if (Problem p = CheckQuantized(setup.zero)) return p;
  if (Problem p = FindPrecisionProblem(setup.precision)) return p;
  if (Problem p = CheckBatch(setup.batch)) return p;
  if (Problem p = CheckGroups(setup.zero, setup.batch.world_size)) return p;
  if (Problem p = CheckOptimizer(setup.optimizer)) return p;
  if (Problem p = CheckInBackward(setup)) return p;
  return CheckRecompute(setup.recompute);
}

}  // namespace zeroplan
