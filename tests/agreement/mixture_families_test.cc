// Mixtures of experts are planned and trained like other models: gradients, stages, weights,
// figures; their auxiliary losses; the same routing when a layer is computed again.
#include <doctest/doctest.h>

#include <memory>

#include "core/families/load_model.h"
#include "core/families/mixtral/mixtral.h"
#include "core/families/olmoe/olmoe.h"
#include "core/families/qwen2_moe/qwen2_moe.h"
#include "core/families/qwen3_moe/qwen3_moe.h"
#include "tests/agreement/family_checks.h"
#include "tests/core/families/tiny_mixture.h"

namespace zeroplan {
namespace {

// Without auxiliary losses, which are those of a micro-batch: cut otherwise, they are others.
std::vector<ModelSpec> TinyMixtures() {
  std::vector<ModelSpec> models = {testing::TinyMixture(Qwen3Moe()), testing::TinyMixture(Olmoe()),
                                   testing::TinyMixture(Mixtral()),
                                   testing::TinyMixture(Qwen2Moe())};
  // The first layer has one MLP; a token goes to one expert alone.
  ModelSpec& mixed = models.emplace_back(testing::TinyMixture(Qwen3Moe()));
  mixed.name = "mixed";
  mixed.layers = 3;
  mixed.dense_layers = "0";
  mixed.experts_per_token = 1;
  mixed.normalized_gates = false;
  return models;
}

std::vector<ModelSpec> LargeMixtures() {
  return {LoadModel("olmoe-1b-7b"), LoadModel("mixtral-8x7b"), LoadModel("qwen1.5-moe-a2.7b")};
}

// A token that changes its experts makes the loss jump, so every token goes to all of them;
// experts_test.cc and mixture_transformers_test.cc have gradients of a choice.
TEST_CASE("mixture families: gradients are the slopes of the engine's own loss") {
  for (ModelSpec model : TinyMixtures()) {
    model.experts_per_token = model.experts;
    CAPTURE(model.family->name());
    CAPTURE(model.name);
    // The loss bends most where an expert and a shared one follow one another.
    testing::CheckGradients(model, model.shared_ffn > 0 ? 1.0 / 128 : 1.0 / 64);
  }
}

TEST_CASE("mixture families: stages, recompute, offload and accumulation follow stage 0") {
  for (const ModelSpec& model : TinyMixtures()) {
    CAPTURE(model.family->name());
    CAPTURE(model.name);
    testing::CheckStages(model);
  }
}

TEST_CASE("mixture families: weights leave and come back as Hugging Face has them") {
  for (const ModelSpec& model : TinyMixtures()) {
    CAPTURE(model.family->name());
    CAPTURE(model.name);
    testing::CheckWeights(model);
  }
}

TEST_CASE("mixture families: every choice is estimated, and its classes add up") {
  for (const ModelSpec& model : LargeMixtures()) {
    CAPTURE(model.name);
    testing::CheckEstimates(model);
  }
}

TEST_CASE("mixture families: the planner's bounds hold") {
  for (const ModelSpec& model : LargeMixtures()) {
    CAPTURE(model.name);
    testing::CheckBounds(model);
  }
}

// The loss with auxiliary losses, whose slopes the gradients must be.
double WholeLoss(const Program& program, Engine& engine, const FillBatch& batch) {
  const double loss = engine.Step(batch).loss_sum;
  const std::vector<double> totals = engine.RouterTotals();
  return loss + (static_cast<double>(program.model.router_aux_loss) * totals[0] +
                 static_cast<double>(program.model.router_z_loss) * totals[1]) /
                    totals[2];
}

// Routing's choice is no part of the slope: every token goes to all experts, whose shares change.
TEST_CASE("mixture families: gradients of the auxiliary losses are their slopes") {
  ModelSpec model = testing::TinyMixture(Qwen2Moe());
  model.experts_per_token = model.experts;
  model.router_aux_loss = 0.5f;
  model.router_z_loss = 0.25f;
  const Program program = Lower(model, testing::BaseSetup(0, 1, Dtype::kF32, 1, kNoRecompute));
  const auto& table = *program.layout.tensors;
  const testing::RandomState start(table, 5);
  testing::MemoryState state(program.layout);
  start.WriteTo(state);
  EngineOptions options;
  options.threads_per_rank = 1;
  Engine engine(program, options);
  engine.Init();
  engine.Load(state, true, nullptr);
  const StepState begun = engine.state();
  const FillBatch batch = testing::RandomBatch(program, 3);
  engine.Step(batch);
  const testing::Tensors grads = testing::EngineGradients(program, engine, 0);
  std::mt19937 random(7);
  for (size_t t = 0; t < table.size(); ++t) {
    CAPTURE(table[t].name);
    for (const size_t i : testing::Sample(grads[t], 2, random)) {
      const auto at = static_cast<float>(start.weights[t][i]);
      const auto put = [&](float weight) {
        state.Write({static_cast<int>(t), StateKind::kMaster, i, 1}, {&weight, 1});
      };
      const double slope = testing::Slope(
          [&](double h) {
            put(at + static_cast<float>(h));
            engine.Load(state, true, &begun);
            return WholeLoss(program, engine, batch);
          },
          1.0 / 32);
      put(at);
      CHECK(std::abs(slope - grads[t][i]) < 3e-5 + 2e-4 * std::abs(grads[t][i]));
    }
  }
}

// Losses, and what routing was like, of some steps in bf16 with both auxiliary losses.
struct RoutedRun {
  std::vector<double> losses, totals;
};
RoutedRun TrainRouted(const ModelSpec& model, const TrainSetup& setup) {
  const Program program = Lower(model, setup);
  EngineOptions options;
  options.threads_per_rank = 1;
  options.swap_dir = "/tmp";
  Engine engine(program, options);
  engine.Init();
  RoutedRun trained;
  for (uint64_t step = 0; step < 6; ++step) {
    trained.losses.push_back(engine.Step(testing::RandomBatch(program, step)).loss_sum);
    const std::vector<double> totals = engine.RouterTotals();
    trained.totals.insert(trained.totals.end(), totals.begin(), totals.end());
  }
  return trained;
}

TEST_CASE("mixture families: recompute and offload route and train the same, bit by bit") {
  for (ModelSpec model : TinyMixtures()) {
    CAPTURE(model.family->name());
    CAPTURE(model.name);
    model.router_aux_loss = 0.01f;
    model.router_z_loss = 0.001f;
    TrainSetup setup = testing::BaseSetup(0, 2, Dtype::kBF16, 2, kNoRecompute);
    setup.optimizer.lr = 3e-3;
    const RoutedRun control = TrainRouted(model, setup);
    const auto experts = static_cast<double>(ExpertLayers(model) * model.experts_per_token);
    const BatchSpec& batch = setup.batch;
    double rows = 0;
    const auto one = control.totals.size() / 6;
    for (size_t i = 3; i < one; ++i) rows += control.totals[i];
    CHECK(rows == experts * static_cast<double>(batch.global_batch() * batch.seq_len));
    for (const RecomputeConfig& recompute :
         {kSelectiveRecompute, kProductsRecompute, FullRecompute(), FullRecompute(2)}) {
      CAPTURE(RecomputeName(recompute));
      CAPTURE(recompute.every);
      for (const OffloadDevice home : {OffloadDevice::kNone, OffloadDevice::kCpu}) {
        setup.recompute = recompute;
        setup.recompute.offload.device = home;
        const RoutedRun again = TrainRouted(model, setup);
        CHECK(again.losses == control.losses);
        CHECK(again.totals == control.totals);
      }
    }
  }
}

// Losses of six steps in bf16; after the third the run is saved and goes on in another engine,
// which may have another stage.
std::vector<double> LossesOfResumed(const ModelSpec& model, TrainSetup setup, int stage_after,
                                    uint64_t order_seed) {
  std::vector<double> losses;
  std::unique_ptr<testing::MemoryState> saved;
  StepState state;
  for (int half = 0; half < 2; ++half) {
    if (half == 1) setup.zero.stage = stage_after;
    const Program program = Lower(model, setup);
    EngineOptions options;
    options.threads_per_rank = 1;
    options.random_order_seed = order_seed;
    Engine engine(program, options);
    engine.Init();
    if (saved) engine.Load(*saved, true, &state);
    for (int step = 0; step < 3; ++step) {
      const auto seed = static_cast<uint64_t>(3 * half + step);
      losses.push_back(engine.Step(testing::RandomBatch(program, seed)).loss_sum);
    }
    if (half == 1) break;
    engine.Drain();
    state = engine.state();
    saved = std::make_unique<testing::MemoryState>(program.layout);
    const std::vector<StateSink*> sinks(static_cast<size_t>(setup.batch.world_size), saved.get());
    engine.Save(sinks);
  }
  return losses;
}

TEST_CASE("mixture families: resumed, at another stage, in any legal order: the same bits") {
  for (ModelSpec model : TinyMixtures()) {
    CAPTURE(model.family->name());
    CAPTURE(model.name);
    model.router_aux_loss = 0.01f;
    for (const int stage : {0, 2, 3}) {
      CAPTURE(stage);
      TrainSetup setup = testing::BaseSetup(stage, 2, Dtype::kBF16, 2, FullRecompute());
      setup.optimizer.lr = 3e-3;
      const std::vector<double> whole = TrainRouted(model, setup).losses;
      CHECK(LossesOfResumed(model, setup, stage, 0) == whole);
      CHECK(LossesOfResumed(model, setup, stage, 41) == whole);
    }
    // Stages 1 and 2 sum gradients alike.
    const TrainSetup setup = testing::BaseSetup(2, 2, Dtype::kBF16, 1, kNoRecompute);
    CHECK(LossesOfResumed(model, setup, 1, 7) == TrainRouted(model, setup).losses);
  }
}

TEST_CASE("mixture families: frozen routers and frozen experts stay, the rest learns") {
  for (ModelSpec model : TinyMixtures()) {
    CAPTURE(model.family->name());
    const bool mixtral = model.family == &Mixtral();
    const bool shared = model.shared_ffn > 0;
    for (const std::string& frozen :
         {std::string(mixtral  ? "*.block_sparse_moe.gate.weight"
                      : shared ? "*.mlp.gate.weight,*.shared_expert_gate.weight"
                               : "*.mlp.gate.weight"),
          std::string("*.experts.*")}) {
      CAPTURE(frozen);
      model.frozen = frozen;
      CheckFrozen(model, "test");
      const Program program = Lower(model, testing::BaseSetup(3, 2, Dtype::kF32, 1, kNoRecompute));
      VerifyOrThrow(program);
      EngineOptions options;
      options.threads_per_rank = 1;
      Engine engine(program, options);
      engine.Init();
      const auto weights = [&] {
        testing::MemoryState state(program.layout);
        std::vector<StateSink*> sinks(2, &state);
        engine.Save(sinks);
        return state;
      };
      const testing::MemoryState before = weights();
      for (uint64_t step = 0; step < 3; ++step) engine.Step(testing::RandomBatch(program, step));
      const testing::MemoryState after = weights();
      const auto& table = *program.layout.tensors;
      int kept = 0;
      for (size_t t = 0; t < table.size(); ++t) {
        CAPTURE(table[t].name);
        CHECK((before.master(t) == after.master(t)) == !table[t].trainable);
        kept += table[t].trainable ? 0 : 1;
      }
      CHECK(kept > 0);
    }
  }
}

}  // namespace
}  // namespace zeroplan
