// A family that nothing but its own files knows is planned and trained like GPT-2.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "core/program/communicators.h"
#include "cost_models/memory_walk.h"
#include "cost_models/step_time.h"
#include "executor/checkpoint/hf_export.h"
#include "executor/checkpoint/hf_weights.h"
#include "planner/estimate/choices.h"
#include "planner/estimate/estimate.h"
#include "planner/search/bounds.h"
#include "tests/agreement/engine_gradients.h"
#include "tests/core/families/made_up/made_up.h"
#include "tests/core/lowering/matrix.h"
#include "tests/executor/device/temp_dir.h"
#include "tests/planner/search_fixture.h"

namespace zeroplan {
namespace {

using testing::MadeUp;

ModelSpec MadeUpModel() {
  const TempDir folder;
  const std::filesystem::path file = std::filesystem::path(folder.path()) / "config.json";
  std::ofstream(file) << testing::kMadeUpConfig;
  const ModelFamily* const families[] = {&MadeUp()};
  ModelSpec model = ReadHuggingFaceConfig(file, nullptr, families);
  model.padded_vocab = 40;
  return model;
}

// Of 20 steps; `grad_accum` micro-steps over `ranks` ranks see the same 8 sequences in all.
std::vector<double> Losses(int stage, int ranks, int64_t grad_accum, RecomputeConfig recompute,
                           testing::Offload offload = testing::Offload::kNone) {
  TrainSetup setup = testing::BaseSetup(stage, ranks, Dtype::kF32, grad_accum, recompute);
  setup.batch.micro_batch = 8 / (ranks * grad_accum);
  testing::SetOffload(setup, offload);
  setup.optimizer.lr = 3e-3;
  setup.optimizer.weight_decay = 0.1;
  const Program program = Lower(MadeUpModel(), setup);
  EngineOptions options;
  options.threads_per_rank = 1;
  options.swap_dir = "/tmp";
  Engine engine(program, options);
  engine.Init();
  std::vector<double> losses;
  for (uint64_t step = 0; step < 20; ++step) {
    losses.push_back(engine.Step(testing::RandomBatch(program, step)).loss_sum);
  }
  testing::MemoryState saved(program.layout);
  std::vector<StateSink*> sinks(static_cast<size_t>(ranks), &saved);
  engine.Save(sinks);
  const StepState state = engine.state();
  engine.Load(saved, true, &state);
  engine.Evaluate(testing::RandomBatch(program, 20));
  // Every section has run.
  CHECK(engine.high_water().touched_bytes == program.arena_bytes);
  return losses;
}

TEST_CASE("made-up family: gradients are the slopes of the engine's own loss") {
  for (const RecomputeConfig& recompute : {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
    for (bool flash_attention : {true, false}) {
      CAPTURE(RecomputeName(recompute));
      CAPTURE(flash_attention);
      LowerOptions options;
      options.flash_attention = flash_attention;
      options.logits_chunk_bytes = 7 * 40 * 4;  // chunks of 6, 6 and 4 rows of logits
      const Program program =
          Lower(MadeUpModel(), testing::BaseSetup(0, 1, Dtype::kF32, 1, recompute), options);
      // As for GPT-2 (gradient_test.cc).
      testing::ForEachEngineSlope(
          program, 2, [](const ParamTensor& tensor, double slope, double gradient) {
            CAPTURE(tensor.name);
            CHECK(std::abs(slope - gradient) < 2e-5 + 1e-4 * std::abs(gradient));
          });
    }
  }
}

TEST_CASE("made-up family: stages, recompute, offload and accumulation follow stage 0") {
  const std::vector<double> control = Losses(0, 1, 1, kNoRecompute);
  CHECK(control.back() < control.front());
  const auto follows = [&](const std::vector<double>& losses) {
    for (size_t i = 0; i < control.size(); ++i) {
      CAPTURE(i);
      // Sums in another order, grown by 20 steps of Adam (parity_test.cc).
      CHECK(std::abs(losses[i] - control[i]) <= 2e-4 * control[i]);
    }
  };
  for (int stage = 0; stage <= 3; ++stage) {
    for (const RecomputeConfig& recompute : {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
      for (int64_t grad_accum : {1, 2}) {
        CAPTURE(stage);
        CAPTURE(RecomputeName(recompute));
        CAPTURE(grad_accum);
        follows(Losses(stage, 2, grad_accum, recompute));
      }
    }
    CAPTURE(stage);
    follows(Losses(stage, 1, 4, kNoRecompute));
    if (stage > 0) follows(Losses(stage, 2, 2, kNoRecompute, testing::Offload::kRatio));
  }
}

TEST_CASE("made-up family: weights leave and come back as Hugging Face has them") {
  const ModelSpec model = MadeUpModel();
  const auto table = BuildParamTable(model);
  const Program program = Lower(model, testing::BaseSetup(0, 1, Dtype::kF32, 1, kNoRecompute));
  testing::MemoryState state(program.layout);
  testing::RandomState(table, 3).WriteTo(state);
  const TempDir folder;
  WriteHfWeights(folder.path(), model, table, state);
  const HfWeightsSource back(folder.path(), model, table);
  for (size_t t = 0; t < table.size(); ++t) {
    CAPTURE(table[t].name);
    const auto real = static_cast<size_t>(table[t].unpadded_rows * table[t].shape[1]);
    std::vector<float> read(real);
    back.Read({static_cast<int>(t), StateKind::kMaster, 0, real}, read);
    CHECK(std::equal(read.begin(), read.end(), state.master(t).begin()));
  }
}

// A size at which the planner's figures mean something.
ModelSpec LargeModel() {
  ModelSpec model = ModelFromParams(400'000'000, 1024, MadeUp());
  model.heads = model.hidden / 64;
  return model;
}

TEST_CASE("made-up family: every choice is estimated, and its classes add up") {
  SearchFixture fixture("gpt2", 4);
  EstimateInputs inputs;
  inputs.model = LargeModel();
  inputs.cluster = fixture.inputs.clusters[0].cluster;
  inputs.costs = fixture.inputs.clusters[0].costs;
  inputs.lower = fixture.inputs.lower;
  TrainSetup base;
  base.batch = {2, 2, 4, 1024};
  ChoiceSpace space;
  space.recompute = {kNoRecompute, kSelectiveRecompute, FullRecompute()};
  inputs.setups = EnumerateSetups(base, space);
  for (const ChoiceEstimate& choice : EstimateChoices(inputs).choices) {
    CAPTURE(SetupLabel(choice.setup));
    uint64_t sum = 0;
    for (const uint64_t bytes : choice.memory.class_bytes) sum += bytes;
    CHECK(sum == choice.memory.arena(Space::kDevice));
    REQUIRE(choice.time.mfu);
    CHECK(*choice.time.mfu > 0);
    CHECK(*choice.time.mfu < 1);
  }
}

TEST_CASE("made-up family: the planner's bounds hold") {
  SearchFixture fixture("gpt2", 4);
  SearchInputs& in = fixture.inputs;
  in.model = LargeModel();
  const auto tensors = std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(in.model));
  Bounds bounds(in.model, tensors, in.base, in.lower);
  const SearchCluster& cluster = in.clusters[0];
  for (int stage = 0; stage <= 3; ++stage) {
    for (const RecomputeConfig& recompute : {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
      for (const int64_t micro_batch : {1, 8}) {
        CAPTURE(stage);
        CAPTURE(RecomputeName(recompute));
        CAPTURE(micro_batch);
        Candidate candidate;
        candidate.gpus = 4;
        candidate.stage = stage;
        candidate.recompute = recompute;
        candidate.micro_batch = micro_batch;
        const GroupBound group = bounds.Group(candidate, cluster.cluster, *cluster.costs);
        const ComputeBound& compute = bounds.Compute(micro_batch, recompute, *cluster.costs);
        const Program program = Lower(in.model, SetupOf(candidate, in.base), in.lower);
        CHECK(Bounds::Memory(group, compute).gpu_bytes <=
              program.arena_bytes[0] + RuntimeBytes(cluster.cluster, CommunicatorCount(program)));
        CHECK(Bounds::StepSeconds(group, compute, candidate.grad_accum) <=
              StepTimer(*cluster.costs).Time(program).total_seconds * (1 + 1e-9));
      }
    }
  }
}

}  // namespace
}  // namespace zeroplan
