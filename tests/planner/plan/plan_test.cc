// A plan's numbers in place of auto, its memory, and its config: all of one program.
#include <doctest/doctest.h>

#include <map>
#include <tuple>

#include "core/config/deepspeed_reader.h"
#include "core/config/deepspeed_writer.h"
#include "core/families/load_model.h"
#include "core/program/fingerprint.h"
#include "cost_models/memory_walk.h"
#include "planner/estimate/choices.h"
#include "planner/plan/plan_file.h"
#include "tests/planner/plan_fixture.h"
#include "tests/planner/search_fixture.h"

namespace zeroplan {
namespace {

constexpr uint64_t kGB = 1'000'000'000;

int CheckResolved(const ModelSpec& model, TrainSetup setup) {
  int checked = 0;
  ChoiceSpace space;
  space.recompute = {kNoRecompute, kSelectiveRecompute, FullRecompute(), FullRecompute(2)};
  for (const TrainSetup& choice : EnumerateSetups(setup, space)) {
    CAPTURE(SetupLabel(choice));
    CAPTURE(choice.batch.world_size);
    CAPTURE(choice.batch.grad_accum);
    const Program program = Lower(model, choice, {});
    const TrainSetup resolved = ResolveAuto(program);
    CHECK(resolved.zero.reduce_bucket_elements != kAuto);
    CHECK(resolved.zero.prefetch_bucket_elements != kAuto);
    CHECK(Fingerprint(Lower(model, resolved, {})) == Fingerprint(program));
    ++checked;
  }
  return checked;
}

TEST_CASE("ResolveAuto: the numbers lower to the program that auto lowers to") {
  ModelSpec model = SmallModel();
  model.layers = 4;
  int checked = 0;
  for (int gpus : {1, 2, 8}) {
    for (int accum : {1, 2, 5}) {
      TrainSetup setup;
      setup.batch.seq_len = 32;
      setup.batch.world_size = gpus;
      setup.batch.grad_accum = accum;
      checked += CheckResolved(model, setup);
      // All gathered, and none but the embeddings.
      setup.zero.param_persistence_threshold = 0;
      checked += CheckResolved(model, setup);
      setup.zero.param_persistence_threshold = 10'000;
      checked += CheckResolved(model, setup);
    }
  }
  CHECK(checked > 1000);
  TrainSetup setup;
  setup.batch.seq_len = 1024;
  setup.batch.world_size = 8;
  setup.batch.grad_accum = 2;
  CheckResolved(LoadModel("gpt2"), setup);
}

struct PlanCase {
  const char* model;
  int64_t layers;  // of its layers
  int gpus;
  const char* hardware;
  uint64_t gpu_bytes;
};
constexpr PlanCase kCases[] = {{"gpt2", 6, 1, "hgx-h200", 3 * kGB},
                               {"gpt2", 6, 8, "hgx-h200", 80 * kGB},
                               {"gpt2-medium", 8, 2, "dgx-2", 4 * kGB},
                               {"gpt2-large", 12, 16, "dgx-a100-40gb", 5 * kGB}};

// The plan of one stage; none if it does not fit.
std::optional<Plan> SearchStage(const PlanCase& c, int stage, bool deepspeed) {
  ModelSpec model = LoadModel(c.model);
  model.layers = c.layers;
  SearchFixture fixture(model, c.gpus, false, c.hardware);
  fixture.Capacity(c.gpu_bytes);
  fixture.inputs.space.stages = {stage};
  if (deepspeed) {
    fixture.inputs.excluded = [](const TrainSetup& s) { return !DeepSpeedCannot(s).empty(); };
  }
  const Searcher searcher(fixture.inputs);
  const SearchResult result = Search(fixture.inputs);
  if (!result.best) return std::nullopt;
  return MakePlan(searcher, result);
}

// Searched for once: several tests look at it.
const std::optional<Plan>& PlanStage(const PlanCase& c, int stage, bool deepspeed) {
  static std::map<std::tuple<const PlanCase*, int, bool>, std::optional<Plan>> plans;
  const auto [at, fresh] = plans.try_emplace({&c, stage, deepspeed});
  if (fresh) at->second = SearchStage(c, stage, deepspeed);
  return at->second;
}

TEST_CASE("MakePlan: its memory is that of its program, and nothing is left to auto") {
  int planned = 0;
  for (const PlanCase& c : kCases) {
    for (int stage : {0, 1, 2, 3}) {
      const std::optional<Plan>& plan = PlanStage(c, stage, false);
      if (!plan) continue;
      ++planned;
      CAPTURE(c.model);
      CAPTURE(SetupLabel(plan->setup));
      const Program program = Lower(plan->model, plan->setup, plan->lower);
      CHECK(plan->choice.footprint.gpu_total() ==
            program.arena_bytes[0] + RuntimeBytes(plan->cluster, OutsideArenasOf(program)));
      CHECK(plan->choice.footprint.gpu_total() <= c.gpu_bytes);
      CHECK(plan->setup.zero.stage == stage);
      CHECK(plan->setup.zero.reduce_bucket_elements != kAuto);
      CHECK(plan->setup.zero.prefetch_bucket_elements != kAuto);
      CHECK(plan->cluster.gpus == c.gpus);
      CHECK(plan->setup.batch.world_size == c.gpus);
      CHECK(*plan->choice.time.total_seconds > 0);
    }
  }
  CHECK(planned >= 13);
}

TEST_CASE("MakePlan: a config written of it reads back to the same program") {
  int written = 0;
  for (const bool deepspeed : {true, false}) {
    for (const PlanCase& c : kCases) {
      for (int stage : {0, 1, 2, 3}) {
        const std::optional<Plan>& plan = PlanStage(c, stage, deepspeed);
        if (!plan) continue;
        ++written;
        CAPTURE(c.model);
        CAPTURE(deepspeed);
        CAPTURE(SetupLabel(plan->setup));
        const std::string text = deepspeed ? WriteDeepSpeedConfig(plan->setup, plan->model.layers)
                                           : WriteConfig(plan->setup, plan->model.layers);
        ReadContext context;
        context.world_size = c.gpus;
        context.seq_len = plan->setup.batch.seq_len;
        context.layers = plan->model.layers;
        const TrainSetup back = ReadDeepSpeedConfig(text, "config", context).setup;
        CHECK(Fingerprint(Lower(plan->model, back, plan->lower)) ==
              Fingerprint(Lower(plan->model, plan->setup, plan->lower)));
      }
    }
  }
  CHECK(written >= 24);
}

}  // namespace
}  // namespace zeroplan
