// What FSDP2 updates with, and what moves to the host.
#include "planner/runtimes/torch_offload.h"

#include <doctest/doctest.h>

#include "core/config/reader_state.h"
#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/estimate/estimate.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/planner/runtimes/runtime_rows.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

constexpr uint64_t kInput = uint64_t{64} << 20;

// Layers' inputs as they go and come; what is on the GPU when backward begins.
uint64_t LeftOnGpu(const ActivationOffloading& how, int layers, uint64_t* pinned) {
  TorchMemory memory;
  TorchTimer timer(nullptr, {});
  ActivationOffload offload(how, kInput, &memory, &timer);
  for (int i = 0; i < layers; ++i) {
    offload.BeginLayer();
    offload.Keep(memory.New(TorchClass::kActivations, kInput));
  }
  const uint64_t left = memory.allocator().allocated();
  *pinned = memory.host_peak(TorchPhase::kInit).pinned_bytes;
  for (int i = 0; i < layers; ++i) {
    const Tensor input = offload.Bring();
    CHECK(static_cast<bool>(input));
  }
  CHECK(memory.allocator().allocated() == 0);
  return left;
}

TEST_CASE("ActivationOffload: all inputs go to the host but for those that the program keeps") {
  uint64_t pinned = 0;
  CHECK(LeftOnGpu(kTorchtuneOffloading, 12, &pinned) == 5 * kInput);
  CHECK(pinned == 12 * kInput);
  CHECK(LeftOnGpu(kDeepSpeedOffloading, 12, &pinned) == 3 * kInput);
  CHECK(pinned == 11 * kInput);
  CHECK(LeftOnGpu(kTorchtuneOffloading, 3, &pinned) == 3 * kInput);
}

TorchPlay Fsdp2Of(int gpus = 2) {
  TorchPlay run;
  run.model = LoadModel("llama3.2-1b");
  run.setup.zero = ReaderZeroDefaults(3);
  run.setup.batch.world_size = gpus;
  run.setup.batch.micro_batch = 2;
  run.setup.batch.seq_len = 2048;
  return run;
}

double Seconds(const TorchPlay& run) {
  const TorchMachine machine(LoadProfile("hgx-h200"),
                             {run.setup.batch.world_size, run.setup.batch.world_size});
  TorchTimer timer(&machine, {});
  Fsdp2Footprint(run, &timer);
  return timer.Time(run.setup.batch.grad_accum)->step_seconds;
}

TEST_CASE("FSDP2 offloads activations: less on the GPU, more on the host, hardly slower") {
  TorchPlay run = Fsdp2Of();
  run.recipe.offload_activations = true;
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&run] { Fsdp2Footprint(run); }), "⟦checkpointing⟧ full"));
  run.setup.recompute = FullRecompute();
  const TorchFootprint moved = Fsdp2Footprint(run);
  const double with = Seconds(run);
  run.recipe.offload_activations = false;
  const TorchFootprint kept = Fsdp2Footprint(run);
  CHECK(kept.copied_bytes == 0);
  const auto input = static_cast<uint64_t>(2 * 2 * 2048 * run.model.hidden);
  const auto layers = static_cast<uint64_t>(run.model.layers);
  CHECK(moved.copied_bytes == (2 * layers - 1) * input);
  CHECK(moved.host.pinned_bytes - kept.host.pinned_bytes == layers * PinnedBlockBytes(input));
  CHECK(kept.StepAllocatedBytes() - moved.StepAllocatedBytes() >= (layers - 7) * input);
  CHECK(with >= Seconds(run));
  CHECK(with < 1.1 * Seconds(run));
}

TEST_CASE("FSDP2's optimizers: shards, gradients and states in bf16; torchao's in a quarter") {
  TorchPlay run = Fsdp2Of();
  const auto shards = static_cast<double>(run.model.ParamCount() / 2);
  const auto optimizer = [&run] {
    const TorchPeak peak = Fsdp2Footprint(run).peak(TorchPhase::kForwardBackward);
    return static_cast<double>(peak.class_bytes[static_cast<size_t>(TorchClass::kOptimizer)]);
  };
  CHECK(optimizer() / shards == doctest::Approx(12).epsilon(0.01));
  const double fp32 = Seconds(run);
  run.recipe.param_dtype = Dtype::kBF16;
  CHECK(optimizer() / shards == doctest::Approx(6).epsilon(0.01));
  CHECK(Seconds(run) < fp32);
  run.recipe.param_dtype.reset();
  run.recipe.code = CodeStyle::kTorchtune;
  CHECK(optimizer() / shards == doctest::Approx(6).epsilon(0.01));
  run.recipe.code = CodeStyle::kPlain;
  run.recipe.optimizer = TorchOptimizer::kAdamWTorchao8bit;
  CHECK(optimizer() / shards == doctest::Approx(4 + 2 + 8.0 / 256).epsilon(0.01));
  run.recipe.optimizer = TorchOptimizer::kAdamW8bit;
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&run] { Fsdp2Footprint(run); }), wording::kFailsOnDtensors));
}

TEST_CASE("FSDP2 with an optimizer in backward keeps no gradients") {
  TorchPlay run = Fsdp2Of();
  const uint64_t kept = Fsdp2Footprint(run).StepAllocatedBytes();
  run.recipe.optimizer_in_backward = true;
  CHECK(kept - Fsdp2Footprint(run).StepAllocatedBytes() > run.model.ParamCount());
  run.setup.batch.grad_accum = 2;
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&run] { Fsdp2Footprint(run); }), "⟦grad_accum⟧ 1"));
}

TEST_CASE("CPUOffloadPolicy: later micro-steps wait for gradients, which are summed on the host") {
  TorchPlay run = Fsdp2Of();
  run.setup.zero.offload_optimizer.device = run.setup.zero.offload_param.device =
      OffloadDevice::kCpu;
  const double once = Seconds(run);
  // Shards of fp32 come in forward and in backward, and gradients go.
  const auto shards = static_cast<double>(run.model.ParamCount() / 2);
  const auto copied = [&run] { return static_cast<double>(Fsdp2Footprint(run).copied_bytes); };
  CHECK(copied() == doctest::Approx(12 * shards).epsilon(0.01));
  run.setup.batch.grad_accum = 5;
  CHECK(copied() == doctest::Approx(60 * shards).epsilon(0.01));
  run.setup.batch.grad_accum = 2;
  const double twice = Seconds(run);
  // Beside another forward and backward pass: 2 x 4 bytes read and 4 written of each shard, at
  // least, by the host.
  CHECK(twice - once > 0);
  run.recipe.param_dtype = Dtype::kBF16;
  const TorchFootprint half = Fsdp2Footprint(run);
  run.recipe.param_dtype.reset();
  CHECK(half.host.pinned_bytes < Fsdp2Footprint(run).host.pinned_bytes);
  CHECK(half.host.pageable_bytes == Fsdp2Footprint(run).host.pageable_bytes / 2);
}

}  // namespace
}  // namespace zeroplan
