// What every family of models has to stand, whatever its graph: gradients, stages, weights,
// figures.
#pragma once

#include <doctest/doctest.h>

#include <cmath>

#include "core/lowering/lower.h"
#include "cost_models/memory_walk.h"
#include "cost_models/step_time.h"
#include "executor/checkpoint/hf_export.h"
#include "executor/checkpoint/hf_weights.h"
#include "planner/estimate/choices.h"
#include "planner/estimate/estimate.h"
#include "planner/search/bounds.h"
#include "tests/agreement/engine_gradients.h"
#include "tests/core/lowering/matrix.h"
#include "tests/planner/search_fixture.h"
#include "tests/temp_dir.h"

namespace zeroplan::testing {

// Of 20 steps; `grad_accum` micro-steps over `ranks` ranks see the same 8 sequences in all.
inline std::vector<double> LossesOf(const ModelSpec& model, int stage, int ranks,
                                    int64_t grad_accum, RecomputeConfig recompute,
                                    Offload offload = Offload::kNone) {
  TrainSetup setup = BaseSetup(stage, ranks, Dtype::kF32, grad_accum, recompute);
  setup.batch.micro_batch = 8 / (ranks * grad_accum);
  SetOffload(setup, offload);
  setup.optimizer.lr = 3e-3;
  setup.optimizer.weight_decay = 0.1;
  const Program program = Lower(model, setup);
  EngineOptions options;
  options.threads_per_rank = 1;
  options.swap_dir = "/tmp";
  Engine engine(program, options);
  engine.Init();
  std::vector<double> losses;
  for (uint64_t step = 0; step < 20; ++step) {
    losses.push_back(engine.Step(RandomBatch(program, step)).loss_sum);
  }
  MemoryState saved(program.layout);
  std::vector<StateSink*> sinks(static_cast<size_t>(ranks), &saved);
  engine.Save(sinks);
  const StepState state = engine.state();
  engine.Load(saved, true, &state);
  engine.Evaluate(RandomBatch(program, 20));
  // Every section has run.
  CHECK(engine.high_water().touched_bytes == program.arena_bytes);
  return losses;
}

// Gradients are the slopes of the engine's own loss.
inline void CheckGradients(const ModelSpec& model, double step = 1.0 / 32) {
  for (const RecomputeConfig& recompute : {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
    for (bool flash_attention : {true, false}) {
      CAPTURE(RecomputeName(recompute));
      CAPTURE(flash_attention);
      LowerOptions options;
      options.flash_attention = flash_attention;
      options.logits_chunk_bytes = 7 * 40 * 4;  // chunks of 6, 6 and 4 rows of logits
      const Program program = Lower(model, BaseSetup(0, 1, Dtype::kF32, 1, recompute), options);
      // As for GPT-2 (gradient_test.cc).
      ForEachEngineSlope(
          program, 2,
          [](const ParamTensor& tensor, double slope, double gradient) {
            CAPTURE(tensor.name);
            CHECK(std::abs(slope - gradient) < 2e-5 + 1e-4 * std::abs(gradient));
          },
          step);
    }
  }
}

// Stages, recompute, offload and accumulation follow stage 0.
inline void CheckStages(const ModelSpec& model) {
  const std::vector<double> control = LossesOf(model, 0, 1, 1, kNoRecompute);
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
        follows(LossesOf(model, stage, 2, grad_accum, recompute));
      }
    }
    CAPTURE(stage);
    follows(LossesOf(model, stage, 1, 4, kNoRecompute));
    if (stage > 0) follows(LossesOf(model, stage, 2, 2, kNoRecompute, Offload::kRatio));
  }
}

// Weights leave and come back as Hugging Face has them.
inline void CheckWeights(const ModelSpec& model) {
  const auto table = BuildParamTable(model);
  const Program program = Lower(model, BaseSetup(0, 1, Dtype::kF32, 1, kNoRecompute));
  MemoryState state(program.layout);
  RandomState(table, 3).WriteTo(state);
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

// Every choice of a model of some size is estimated, and its classes add up.
inline void CheckEstimates(const ModelSpec& model) {
  SearchFixture fixture("gpt2", 4);
  EstimateInputs inputs;
  inputs.model = model;
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

// The planner's bounds hold for a model of some size.
inline void CheckBounds(const ModelSpec& model) {
  SearchFixture fixture("gpt2", 4);
  SearchInputs& in = fixture.inputs;
  in.model = model;
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
              program.arena_bytes[0] + RuntimeBytes(cluster.cluster, OutsideArenasOf(program)));
        CHECK(Bounds::StepSeconds(group, compute, candidate.grad_accum) <=
              StepTimer(*cluster.costs).Time(program).total_seconds * (1 + 1e-9));
      }
    }
  }
}

}  // namespace zeroplan::testing
