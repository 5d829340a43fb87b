// Training in eight bits on a GPU: as the CPU has it, and with the same bits however the step is
// cut.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/lowering/lower.h"
#include "core/settings/setup_facts.h"
#include "executor/engine/engine.h"
#include "tests/agreement/memory_state.h"
#include "tests/core/lowering/matrix.h"
#include "tests/core/model/with_lora.h"
#include "tests/first_moments.h"
#include "tests/fp8_models.h"

namespace zeroplan {
namespace {

constexpr uint64_t kGpuSteps = 4;

// Why this GPU does not multiply so; "" where it does.
std::string GpuLacks(const Fp8Config& fp8) {
  int device = 0, major = 0, minor = 0;
  REQUIRE(cudaGetDevice(&device) == cudaSuccess);
  REQUIRE(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess);
  REQUIRE(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess);
  return Fp8GpuLacks(fp8, 10 * major + minor);
}

// Heads of 64, which cuDNN takes.
ModelSpec GpuModel(bool llama) {
  ModelSpec model =
      llama ? testing::Fp8Llama(Fp8Recipe::kBlocks) : testing::Fp8Gpt2(Fp8Recipe::kBlocks);
  model.positions = 128;
  model.hidden = 256;
  model.ffn = 512;
  return model;
}

TrainSetup GpuSetup(int stage, Dtype dtype, Fp8Config fp8, RecomputeConfig recompute,
                    int64_t accumulation = 2) {
  TrainSetup setup = testing::BaseSetup(stage, 1, dtype, accumulation, recompute);
  setup.batch.micro_batch = 2;
  setup.batch.seq_len = 128;
  setup.zero.reduce_bucket_elements = 1'000'000;
  setup.precision.fp8 = fp8;
  setup.optimizer.gradient_clipping = 0;  // stages sum the norm in another order
  setup.optimizer.lr = 1e-4;              // or Adam's first steps amplify roundings
  return setup;
}

struct GpuRun {
  std::vector<double> losses;
  testing::FirstMoments moments;  // of the first step

  bool operator==(const GpuRun& other) const {
    return losses == other.losses && moments == other.moments;
  }
};

GpuRun TrainOn(Backend backend, const ModelSpec& model, const TrainSetup& setup) {
  LowerOptions lower;
  lower.backend = backend;
  const Program program = Lower(model, setup, lower);
  EngineOptions options;
  options.backend = backend;
  options.swap_dir = "/tmp";
  Engine engine(program, options);
  engine.Init();
  GpuRun run;
  for (uint64_t step = 0; step < kGpuSteps; ++step) {
    const StepState state = engine.Step(testing::RandomBatch(program, step));
    CHECK(state.skip == kTaken);
    run.losses.push_back(state.loss_sum);
    if (step > 0) continue;
    testing::MemoryState saved(program.layout);
    std::vector<StateSink*> sinks(1, &saved);
    engine.Save(sinks);
    run.moments = testing::ReadFirstMoments(saved, *program.layout.tensors);
  }
  run.losses.push_back(engine.Evaluate(testing::RandomBatch(program, kGpuSteps)));
  CHECK(engine.high_water().touched_bytes[0] <= program.arena_bytes[0]);
  return run;
}

TEST_CASE("gpu fp8: gradients and losses are the CPU's but for what eight bits and 16 lose") {
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensor, Fp8Recipe::kBlocks}) {
    const Fp8Config fp8{.enabled = true,
                        .recipe = recipe,
                        .gradients = recipe == Fp8Recipe::kTensor ? Dtype::kE5M2 : Dtype::kE4M3};
    if (const std::string lacks = GpuLacks(fp8); !lacks.empty()) {
      MESSAGE(lacks);
      continue;
    }
    for (const bool llama : {false, true}) {
      CAPTURE(Fp8RecipeName(recipe));
      CAPTURE(llama);
      const ModelSpec model = GpuModel(llama);
      const TrainSetup setup = GpuSetup(0, Dtype::kBF16, fp8, kNoRecompute);
      const GpuRun got = TrainOn(Backend::kCuda, model, setup);
      const GpuRun want = TrainOn(Backend::kCpu, model, setup);
      TrainSetup wide = setup;
      wide.precision.fp8.enabled = false;
      const GpuRun exact = TrainOn(Backend::kCpu, model, wide);
      // Sums that differ in their last bits put a number near the border between two of eight bits
      // on either side of it, and a few roundings later nothing is left in common: two runs of
      // eight bits are as far apart as two independent errors of that size.
      const double eight_bits = testing::FarthestTensor(want.moments, exact.moments);
      const double apart = testing::FarthestTensor(got.moments, want.moments);
      CAPTURE(eight_bits);
      CAPTURE(apart);
      CHECK(apart < std::sqrt(2.0) * eight_bits);
      for (size_t i = 0; i < want.losses.size(); ++i) {
        CHECK(std::abs(got.losses[i] - want.losses[i]) < 0x1p-7 * want.losses[i]);
      }
    }
  }
}

TEST_CASE("gpu fp8: the same bits twice, with recompute of any kind and at every stage") {
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensor, Fp8Recipe::kBlocks}) {
    const Fp8Config fp8{.enabled = true, .recipe = recipe};
    if (const std::string lacks = GpuLacks(fp8); !lacks.empty()) {
      MESSAGE(lacks);
      continue;
    }
    for (const bool llama : {false, true}) {
      for (const bool lora : {false, true}) {
        CAPTURE(Fp8RecipeName(recipe));
        CAPTURE(llama);
        CAPTURE(lora);
        const ModelSpec plain = GpuModel(llama);
        const ModelSpec model = lora ? testing::WithLora(plain, "all-linear", 16) : plain;
        const auto run = [&](int stage, RecomputeConfig recompute) {
          return TrainOn(Backend::kCuda, model, GpuSetup(stage, Dtype::kBF16, fp8, recompute, 1));
        };
        const GpuRun control = run(0, kNoRecompute);
        CHECK(run(0, kNoRecompute) == control);
        CHECK(run(0, kSelectiveRecompute) == control);
        CHECK(run(0, FullRecompute()) == control);
        for (const int stage : {1, 2, 3}) {
          CAPTURE(stage);
          CHECK(run(stage, kSelectiveRecompute) == control);
        }
      }
    }
  }
}

}  // namespace
}  // namespace zeroplan
