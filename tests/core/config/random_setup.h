// Valid setups at random, for round trips through the writer and the reader.
#pragma once

#include <random>

#include "core/config/deepspeed_writer.h"
#include "core/settings/zero_config.h"

namespace zeroplan::testing {

class RandomSetup {
 public:
  explicit RandomSetup(uint32_t seed) : random_(seed) {}

  // One that DeepSpeed can do too, nothing kAuto, for a model of `layers` layers. The nvme_path
  // where it is needed.
  TrainSetup Next(int64_t layers) {
    TrainSetup s;
    do {
      s = Any(layers);
    } while (!DeepSpeedCannot(s).empty());
    return s;
  }

 private:
  bool Flip() { return random_() % 2 == 0; }
  uint64_t Elements(uint64_t least) {
    constexpr uint64_t kSizes[] = {0,          1,           4096,          100'000,
                                   16'777'216, 500'000'000, 1'000'000'000, 100'000'000'000'000,
                                   kUnlimited};
    const uint64_t size =
        Flip() ? kSizes[random_() % std::size(kSizes)] : random_() % 2'000'000'000;
    return std::max(size, least);
  }
  double Real(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  int Count(int low, int high) { return low + static_cast<int>(random_() % (high - low + 1)); }

  OffloadDevice Device() { return static_cast<OffloadDevice>(random_() % 3); }

  void Zero(ZeroConfig* zero) {
    zero->stage = Count(0, 3);
    zero->reduce_bucket_elements = Elements(1);
    zero->allgather_bucket_elements = Elements(1);
    zero->contiguous_gradients = Flip();
    zero->reduce_scatter = Flip();
    zero->allgather_partitions = Flip();
    zero->overlap_comm = Flip();
    zero->prefetch_bucket_elements = Elements(0);
    zero->param_persistence_threshold = Elements(0);
    zero->model_persistence_threshold = Elements(0);
    zero->max_live_parameters = Elements(0);
    zero->max_reuse_distance = Elements(0);
    zero->sub_group_elements = Elements(1);
    auto& optimizer = zero->offload_optimizer;
    if (zero->stage > 0) optimizer.device = Device();
    optimizer.ratio = optimizer.device == OffloadDevice::kCpu && Flip() ? Real(0.01, 1) : 1;
    optimizer.pin_memory = Flip();
    optimizer.buffer_count = Count(1, 9);
    optimizer.nvme_path =
        optimizer.device == OffloadDevice::kNvme ? "/disk/\"a b\"\\c\xC3\xA9" : "";
    auto& param = zero->offload_param;
    if (zero->stage == 3) param.device = Device();
    param.pin_memory = Flip();
    param.buffer_count = Count(1, 9);
    param.max_in_cpu_elements = Elements(0);
    param.nvme_path = param.device == OffloadDevice::kNvme ? "/disk" : "";
  }

  void Schedule(ScheduleConfig* schedule) {
    schedule->kind = static_cast<ScheduleKind>(random_() % 7);
    schedule->warmup_min_lr = Flip() ? 0 : Real(0, 1e-4);
    schedule->warmup_max_lr = Real(0, 1e-2);
    schedule->warmup_steps = Count(0, 3000);
    schedule->log_warmup = Flip();
    schedule->total_steps = Count(0, 100'000);
    schedule->cos_min_ratio = Real(0, 1);
    schedule->warmup_min_ratio = Real(0, 1);
    schedule->one_cycle = {Real(0, 1),  Real(0, 1),  Count(1, 5000), Count(0, 5000),
                           Count(0, 9), Count(0, 9), Count(0, 99),   Real(0, 1)};
    schedule->of_run = {static_cast<DecayShape>(random_() % 3), Flip() ? 0 : Real(0, 1),
                        Count(0, 3000), Flip() ? 0 : Real(0, 1)};
    schedule->range_test = {Real(0, 1), Count(1, 5000), Real(0, 3), Flip()};
  }

  TrainSetup Any(int64_t layers) {
    TrainSetup s;
    Zero(&s.zero);
    s.recompute = Flip() ? kNoRecompute : FullRecompute(Count(1, static_cast<int>(layers)));
    // Beside full recompute DeepSpeed has it.
    if (s.recompute != kNoRecompute && Flip()) s.recompute.offload.device = OffloadDevice::kCpu;
    constexpr Dtype kDtypes[] = {Dtype::kBF16, Dtype::kF16, Dtype::kF32};
    s.precision.dtype = kDtypes[random_() % 3];
    s.precision.grad_accum_dtype = Flip() ? Dtype::kF32 : s.precision.dtype;
    s.precision.fp32_reduction = Flip();
    const bool bf16 = s.precision.dtype == Dtype::kBF16;
    if (s.precision.dtype != Dtype::kF32 && Flip()) {
      s.precision.master_weights = bf16 && Flip() ? MasterWeights::kSplit : MasterWeights::kParam;
    }
    constexpr Dtype kMoments[] = {Dtype::kF32, Dtype::kBF16, Dtype::kDynamic8};
    s.precision.moment_dtype = kMoments[random_() % 3];
    // Switched on it is not DeepSpeed's.
    if (Flip())
      s.precision.fp8 = {Flip(), Fp8Recipe::kBlocks, Dtype::kE5M2, Flip(), Count(0, 4096)};
    s.precision.loss_scale = Flip() ? 0 : Real(0, 65536);
    s.precision.initial_scale_power = Count(0, 126);
    s.precision.loss_scale_window = Count(1, 4000);
    s.precision.hysteresis = Count(1, 9);
    s.precision.consecutive_hysteresis = Flip();
    s.precision.min_loss_scale = Flip() ? Count(0, 128) : Real(0, 9);
    s.batch = {Count(1, 64), Count(1, 64), Count(1, 64), 1024};
    OptimizerConfig& o = s.optimizer;
    o.lr = Real(0, 1e-2);
    o.betas = {Real(0, 0.999), Real(0, 0.9999)};
    o.eps = Real(0, 1e-6);
    o.weight_decay = Real(0, 1);
    o.adam_w_mode = Flip();
    o.bias_correction = Flip();
    o.gradient_clipping = Flip() ? 0 : Real(0, 5);
    Schedule(&o.schedule);
    return s;
  }

  std::mt19937 random_;
};

}  // namespace zeroplan::testing
