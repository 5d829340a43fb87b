// The engine's gradients are those of the loss it computes, tensor by tensor: against differences
// of its own losses, and against the reference model, which is itself held against differences.
#include <doctest/doctest.h>

#include "core/lowering/lower.h"
#include "executor/engine/engine.h"
#include "tests/agreement/engine_gradients.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

using testing::Tensors;
using testing::Values;

constexpr int64_t kLayers = 2;

EngineOptions OneThread() {
  EngineOptions options;
  options.threads_per_rank = 1;
  return options;
}

// Gradients persist, and can be looked at, where they are whole and in place: stage 0.
TrainSetup Stage0(int ranks, int64_t grad_accum, RecomputeConfig recompute) {
  return testing::BaseSetup(0, ranks, Dtype::kF32, grad_accum, recompute);
}

TEST_CASE("gradients: the reference model's are the slopes of its loss") {
  const Program program = Lower(testing::TinyModel(kLayers), Stage0(1, 1, kNoRecompute));
  const auto& table = *program.layout.tensors;
  const auto batch = testing::GlobalBatch(program, 3);
  const testing::ReferenceModel model(program.model);
  Tensors weights = testing::RandomState(table, 5).weights, grads;
  model.Loss(weights, batch, &grads);
  std::mt19937 random(6);
  for (size_t t = 0; t < table.size(); ++t) {
    CAPTURE(table[t].name);
    CHECK(testing::LargestMagnitude(grads[t]) > 1e-3);
    for (size_t i : testing::Sample(grads[t], 6, random)) {
      double& weight = weights[t][i];
      const double at = weight;
      const double slope = testing::Slope(
          [&](double h) {
            weight = at + h;
            return model.Loss(weights, batch);
          },
          1e-3);
      weight = at;
      // The loss is known to about 1e-15, so the slope to 1e-12; 1e-12/30 of a fifth derivative,
      // which may be some thousands, comes on top.
      CHECK(std::abs(slope - grads[t][i]) < 1e-9);
    }
  }
}

// A sum of n fp32 terms in any order is off by at most n * 2^-24 of the sum of their magnitudes,
// typically by its root. The longest sums here have 60 terms, and an element passes through some 40
// kernels: sqrt(60 * 40) * 2^-24 = 3e-6 of the tensor's largest gradient; five times that.
constexpr double kFp32Gradient = 1.5e-5;

TEST_CASE("gradients: every element is the reference model's") {
  struct Case {
    RecomputeConfig recompute;
    bool flash_attention;
  };
  for (int ranks : {1, 2}) {
    for (const Case& c :
         {Case{kNoRecompute, true}, Case{FullRecompute(), true}, Case{FullRecompute(2), true},
          Case{kSelectiveRecompute, true}, Case{kNoRecompute, false}, Case{FullRecompute(), false},
          Case{kSelectiveRecompute, false}}) {
      CAPTURE(ranks);
      CAPTURE(RecomputeName(c.recompute));
      CAPTURE(c.flash_attention);
      LowerOptions options;
      options.flash_attention = c.flash_attention;
      options.logits_chunk_bytes = 7 * 40 * 4;  // chunks of 6, 6 and 4 rows of logits
      const Program program =
          Lower(testing::TinyModel(kLayers), Stage0(ranks, 3, c.recompute), options);
      const auto& table = *program.layout.tensors;
      const testing::RandomState start(table, 5);
      testing::MemoryState state(program.layout);
      start.WriteTo(state);
      Engine engine(program, OneThread());
      engine.Init();
      engine.Load(state, true, nullptr);
      const double loss = engine.Step(testing::RandomBatch(program, 3)).loss_sum;

      Tensors expected;
      const testing::ReferenceModel model(program.model);
      const double expected_loss =
          model.Loss(start.weights, testing::GlobalBatch(program, 3), &expected);
      CHECK(std::abs(loss - expected_loss) < 1e-6 * expected_loss);
      for (int rank = 0; rank < ranks; ++rank) {
        const Tensors grads = testing::EngineGradients(program, engine, rank);
        for (size_t t = 0; t < table.size(); ++t) {
          CAPTURE(table[t].name);
          double worst = 0;
          for (size_t i = 0; i < grads[t].size(); ++i) {
            worst = std::max(worst, std::abs(grads[t][i] - expected[t][i]));
          }
          CHECK(worst < kFp32Gradient * testing::LargestMagnitude(expected[t]));
        }
      }
    }
  }
}

TEST_CASE("gradients: the slopes of the engine's own loss") {
  const Program program = Lower(testing::TinyModel(kLayers), Stage0(1, 1, kNoRecompute));
  // A row's loss is about 4 and known to 2^-23 of that, the mean of 16 rows to a quarter: 1e-7.
  // Over h = 1/32 that is 5e-6 of slope. The fifth derivative reaches some hundreds (positions,
  // whose embedding passes through all layers): 1e-5 of slope.
  testing::ForEachEngineSlope(
      program, 3, [](const ParamTensor& tensor, double slope, double gradient) {
        CAPTURE(tensor.name);
        CHECK(std::abs(slope - gradient) < 2e-5 + 1e-4 * std::abs(gradient));
      });
}

TEST_CASE("gradients: the same slopes where activations are tiled, computed again and moved") {
  LowerOptions tiles;
  tiles.tile_rows = 5;
  using enum RecomputeKind;
  for (const RecomputeConfig& homes :
       {RecomputeConfig{kProducts, 0, 0, kNone, {OffloadDevice::kCpu}},
        RecomputeConfig{kFull, 1, 2, kSelective, {OffloadDevice::kCpu, 1}}}) {
    CAPTURE(testing::HomesName(homes));
    testing::ForEachEngineSlope(
        Lower(testing::TinyModel(3), Stage0(1, 1, homes), tiles), 3,
        [](const ParamTensor& tensor, double slope, double gradient) {
          CAPTURE(tensor.name);
          CHECK(std::abs(slope - gradient) < 2e-5 + 1e-4 * std::abs(gradient));
        });
  }
}

}  // namespace
}  // namespace zeroplan
