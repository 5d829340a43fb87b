#include "core/settings/zero_config.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include "core/base/error.h"

namespace zeroplan {
namespace {

TEST_CASE("setup: defaults are valid") {
  CHECK_NOTHROW(ValidateSetup(TrainSetup{}, "defaults"));
  TrainSetup nvme;
  nvme.zero.stage = 3;
  nvme.zero.offload_optimizer.device = OffloadDevice::kNvme;
  nvme.zero.offload_param.device = OffloadDevice::kNvme;
  CHECK_NOTHROW(ValidateSetup(nvme, "nvme"));
}

TEST_CASE("setup: what cannot run is refused by key") {
  struct Case {
    const char* message;
    std::function<void(TrainSetup*)> change;
  };
  using S = TrainSetup*;
  constexpr OffloadDevice kCpu = OffloadDevice::kCpu, kNvme = OffloadDevice::kNvme;
  const Case cases[] = {
      {"plan: zero_optimization.stage: 4 is not allowed; use 0, 1, 2 or 3",
       [](S s) { s->zero.stage = 4; }},
      {"stage: -1", [](S s) { s->zero.stage = -1; }},
      {"offload_optimizer.device: cpu is not allowed at stage 0; use stage 1, 2 or 3",
       [](S s) { s->zero.offload_optimizer.device = kCpu; }},
      {"offload_param.device: nvme is not allowed at stage 2; use stage 3",
       [](S s) { s->zero.stage = 2, s->zero.offload_param.device = kNvme; }},
      {"ratio: 0.5 is not allowed with device nvme",
       [](S s) {
         s->zero.stage = 3, s->zero.offload_optimizer.device = kNvme;
         s->zero.offload_optimizer.ratio = 0.5;
       }},
      {"ratio: -0.1 is", [](S s) { s->zero.offload_optimizer.ratio = -0.1; }},
      {"ratio: 1.5 is", [](S s) { s->zero.offload_optimizer.ratio = 1.5; }},
      {"ratio: nan is", [](S s) { s->zero.offload_optimizer.ratio = std::nan(""); }},
      {"offload_optimizer.buffer_count: 0",
       [](S s) { s->zero.offload_optimizer.buffer_count = 0; }},
      {"offload_param.buffer_count: -3", [](S s) { s->zero.offload_param.buffer_count = -3; }},
      {"reduce_bucket_size: 0", [](S s) { s->zero.reduce_bucket_elements = 0; }},
      {"zero_quantized_weights: true is not allowed at stage 2; use stage 3, or false",
       [](S s) { s->zero.stage = 2, s->zero.quantized_weights = true; }},
      {"zero_quantized_gradients: true is not allowed at stage 1; use stage 3, or false",
       [](S s) { s->zero.stage = 1, s->zero.quantized_gradients = true; }},
      {"zero_quantized_gradients: true is not allowed with reduce_scatter false",
       [](S s) {
         s->zero.stage = 3, s->zero.quantized_gradients = true;
         s->zero.reduce_scatter = false;
       }},
      {"zero_quantized_gradients: true is not allowed with contiguous_gradients false",
       [](S s) {
         s->zero.stage = 3, s->zero.quantized_gradients = true;
         s->zero.contiguous_gradients = false;
       }},
      {"dtype: int32", [](S s) { s->precision.dtype = Dtype::kI32; }},
      {"grad_accum_dtype: fp16 is not allowed with bf16 parameters; use bf16 or fp32",
       [](S s) { s->precision.grad_accum_dtype = Dtype::kF16; }},
      {"grad_accum_dtype: bf16 is", [](S s) { s->precision.dtype = Dtype::kF32; }},
      {"loss_scale: -1", [](S s) { s->precision.loss_scale = -1; }},
      {"loss_scale: inf", [](S s) { s->precision.loss_scale = INFINITY; }},
      {"initial_scale_power: 200", [](S s) { s->precision.initial_scale_power = 200; }},
      {"loss_scale_window: 0", [](S s) { s->precision.loss_scale_window = 0; }},
      {"hysteresis: 0", [](S s) { s->precision.hysteresis = 0; }},
      {"min_loss_scale: -1", [](S s) { s->precision.min_loss_scale = -1; }},
      {"train_micro_batch_size_per_gpu: 0", [](S s) { s->batch.micro_batch = 0; }},
      {"gradient_accumulation_steps: -1", [](S s) { s->batch.grad_accum = -1; }},
      {"world_size (⟦gpus⟧): 0", [](S s) { s->batch.world_size = 0; }},
      {"⟦seq_len⟧: 0", [](S s) { s->batch.seq_len = 0; }},
      {"⟦seq_len⟧: 9223372036854775807", [](S s) { s->batch.seq_len = INT64_MAX; }},
      {"2^62 tokens",
       [](S s) { s->batch.micro_batch = s->batch.grad_accum = s->batch.seq_len = 2147483647; }},
      {"65536 sequences of 65536 tokens",
       [](S s) { s->batch.micro_batch = s->batch.seq_len = 65536; }},
      {"optimizer.params.lr: nan", [](S s) { s->optimizer.lr = std::nan(""); }},
      {"optimizer.params.lr: 1e+300", [](S s) { s->optimizer.lr = 1e300; }},
      {"optimizer.params.betas: 1 ", [](S s) { s->optimizer.betas[1] = 1; }},
      {"optimizer.params.eps: -1", [](S s) { s->optimizer.eps = -1; }},
      {"gradient_clipping: -1", [](S s) { s->optimizer.gradient_clipping = -1; }},
      {"warmup_num_steps: -5", [](S s) { s->optimizer.schedule.warmup_steps = -5; }},
      {"⟦checkpoint_every⟧: -2", [](S s) { s->recompute = FullRecompute(-2); }},
      {"⟦checkpoint_layers⟧: 3 is not allowed with ⟦checkpointing⟧ none",
       [](S s) { s->recompute.layers = 3; }},
      {"⟦checkpointing_above⟧: selective is not allowed with ⟦checkpointing⟧ products and "
       "⟦checkpoint_layers⟧ 0",
       [](S s) { s->recompute = {RecomputeKind::kProducts, 0, 0, RecomputeKind::kSelective}; }},
      {"⟦checkpointing_above⟧: products is not allowed",
       [](S s) { s->recompute = {RecomputeKind::kFull, 1, 3, RecomputeKind::kProducts}; }},
      {"⟦offload_activations⟧: nvme is not allowed; use cpu or none",
       [](S s) { s->recompute.offload.device = OffloadDevice::kNvme; }},
      {"⟦offload_activation_layers⟧: 4 is not allowed with ⟦offload_activations⟧ none",
       [](S s) { s->recompute.offload.layers = 4; }},
  };
  for (const Case& c : cases) {
    TrainSetup setup;
    c.change(&setup);
    CAPTURE(c.message);
    CHECK_THROWS_WITH_AS(ValidateSetup(setup, "plan"), doctest::Contains(c.message), Error);
  }
}

TEST_CASE("offload devices have names") {
  CHECK(OffloadDeviceName(OffloadDevice::kNone) == "none");
  CHECK(OffloadDeviceName(OffloadDevice::kCpu) == "cpu");
  CHECK(OffloadDeviceName(OffloadDevice::kNvme) == "nvme");
}

}  // namespace
}  // namespace zeroplan
