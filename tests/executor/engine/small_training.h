// A small model that the engine trains for a few steps: what tests of every backend compare.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/lowering/lower.h"
#include "core/program/verify.h"
#include "executor/engine/engine.h"
#include "tests/agreement/memory_state.h"
#include "tests/first_moments.h"
#include "tests/tiny_model.h"

namespace zeroplan::small_training {

inline constexpr int kSteps = 3;

inline ModelSpec SmallModel() {
  return testing::TinyModel({.name = "small",
                             .layers = 2,
                             .hidden = 32,
                             .ffn = 128,
                             .vocab = 60,
                             .padded_vocab = 64,
                             .positions = 16});
}

inline TrainSetup Setup(int stage, int world_size, int64_t grad_accum) {
  TrainSetup setup;
  setup.zero.stage = stage;
  setup.zero.param_persistence_threshold = 100;
  // Smaller than a layer, so that there are several buckets and units cut by their borders.
  setup.zero.reduce_bucket_elements = 5000;
  setup.precision.dtype = Dtype::kF32;
  setup.precision.grad_accum_dtype = Dtype::kF32;
  setup.batch = {1, grad_accum, world_size, 16};
  setup.optimizer.lr = 1e-2;
  return setup;
}

// The same tokens in every step: global sample k counts up from k.
struct CountingBatch {
  int world_size;
  void operator()(int rank, int64_t micro_step, std::span<int32_t> inputs,
                  std::span<int32_t> targets) const {
    const int64_t sample = micro_step * world_size + rank;
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = static_cast<int32_t>((sample + 3 * static_cast<int64_t>(i)) % 60);
      targets[i] = static_cast<int32_t>((inputs[i] + 3) % 60);
    }
  }
};

// How far the first moments of runs that do the same lie apart at most (FarthestTensor): fp32 adds
// in other orders; 16 bits round each activation and gradient at other places, grown by kSteps
// steps.
inline double MomentTolerance(Dtype dtype) { return dtype == Dtype::kF32 ? 1e-3 : 0.2; }

struct Outcome {
  std::vector<StepState> steps;
  double eval_loss = 0;
  std::array<uint64_t, kSpaces> touched{}, planned{};
  testing::FirstMoments moments;  // after the last step
};

inline Outcome Train(const Program& program, EngineOptions options = {}) {
  options.threads_per_rank = 1;
  Engine engine(program, options);
  engine.Init();
  const CountingBatch batch{program.setup.batch.world_size};
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) outcome.steps.push_back(engine.Step(batch));
  outcome.eval_loss = engine.Evaluate(batch);
  outcome.touched = engine.high_water().touched_bytes;
  outcome.planned = program.arena_bytes;
  testing::MemoryState saved(program.layout);
  const std::vector<StateSink*> sinks(static_cast<size_t>(engine.local_rank_count()), &saved);
  engine.Save(sinks);
  outcome.moments = testing::ReadFirstMoments(saved, *program.layout.tensors);
  return outcome;
}
inline Outcome Train(const TrainSetup& setup, const EngineOptions& options = {},
                     const LowerOptions& lower = {}) {
  const Program program = Lower(SmallModel(), setup, lower);
  VerifyOrThrow(program);
  return Train(program, options);
}

}  // namespace zeroplan::small_training
