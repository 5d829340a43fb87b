// The search of another runtime's choices against a sweep of them, and against what was measured.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <random>

#include "core/base/error.h"
#include "core/config/reader_state.h"
#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/estimate/choices.h"
#include "planner/footprint.h"
#include "planner/runtimes/fitted.h"
#include "planner/runtimes/runtimes.h"
#include "planner/search/enumerated_search.h"
#include "tests/planner/runtimes/runtime_rows.h"

namespace zeroplan {
namespace {

constexpr uint64_t kGB = 1'000'000'000;

// Searches of a model on machines of the default profile.
struct Scenario {
  Scenario(const Runtime& runtime, ModelSpec model, int gpus, uint64_t gpu_bytes,
           std::optional<int64_t> global_batch)
      : profile(LoadProfile(std::string(kDefaultProfile))) {
    inputs.runtime = &runtime;
    inputs.model = std::move(model);
    inputs.hardware = &profile;
    inputs.recipe.compile.layers = true;
    Cluster cluster;
    cluster.gpus = cluster.gpus_per_node = gpus;
    cluster.gpu_capacity_bytes = gpu_bytes;
    cluster.gpu_reserve_bytes = kGpuReserveBytes;
    cluster.host_capacity_bytes = 600 * kGB;
    inputs.clusters = {{cluster, nullptr}};
    inputs.space = DefaultSpace(inputs.model, gpus, 8, false);
    inputs.base.batch.seq_len = 1024;
    inputs.base.batch.world_size = gpus;
    SetBatches(inputs.space, global_batch, inputs.base.batch.seq_len);
  }
  Cluster& cluster() { return inputs.clusters.front().cluster; }
  std::vector<TrainSetup> Setups() const { return inputs.runtime->Choices(inputs, inputs.space); }
  ChoiceEstimate Judged(const TrainSetup& setup, const TorchRecipe& recipe) {
    return inputs.runtime->Judge({inputs.model, {}, recipe, &profile})->Estimate(setup, cluster());
  }

  HardwareProfile profile;
  SearchInputs inputs;
};

const ChoiceEstimate& BestOf(const SearchResult& result) {
  REQUIRE(result.best);
  return result.stages[*result.best].estimate;
}

TEST_CASE("EnumeratedSearch: no choice of a sweep is better") {
  std::mt19937 random(20261122);
  const auto draw = [&random](auto... values) {
    const std::array list = {values...};
    return list[random() % list.size()];
  };
  int searched = 0, nothing = 0;
  for (int i = 0; i < 24; ++i) {
    const Runtime& runtime = i % 3 == 2 ? Fsdp2Runtime() : DeepSpeedRuntime();
    ModelSpec model = LoadModel(draw("gpt2", "gpt2-medium", "gpt2-large", "llama3.2-1b"));
    model.layers = draw(1, 2, 3);
    const int gpus = draw(1, 2, 4);
    const double gpu_gb = draw(3.2, 4.0, 5.0, 6.5, 9.0, 14.0, 40.0);
    Scenario scenario(runtime, model, gpus, static_cast<uint64_t>(gpu_gb * 1e9), draw(8, 24, 48));
    scenario.cluster().host_capacity_bytes = draw(8, 20, 600) * kGB;
    scenario.inputs.space.micro_batches = {1, 2, 6, 12};
    if (draw(0, 1) == 1) scenario.inputs.space.offload_optimizer = {{}, {OffloadDevice::kCpu, 1}};
    CAPTURE(i);
    CAPTURE(model.name);
    CAPTURE(gpus);
    CAPTURE(gpu_gb);
    const SearchResult found = EnumeratedSearch(scenario.inputs).Run();
    EnumeratedSearch sweep(scenario.inputs);
    const SearchResult swept = sweep.Run(/*sweep=*/true);
    REQUIRE(found.best.has_value() == swept.best.has_value());
    REQUIRE(found.stages.size() == swept.stages.size());
    const auto compare = [&runtime](const ChoiceEstimate& a, const ChoiceEstimate& b) {
      CAPTURE(SetupLabel(a.setup));
      CAPTURE(SetupLabel(b.setup));
      CAPTURE(b.setup.batch.micro_batch);
      // Within a margin the simplest is taken.
      CHECK(runtime.Merit(a) >= runtime.Merit(b) * (1 - 1.1 * kEnumeratedTieMargin));
    };
    const std::unique_ptr<ChoiceJudge> judge = runtime.Judge(
        {scenario.inputs.model, {}, scenario.inputs.recipe, &scenario.profile, nullptr});
    for (const JudgedChoice& judged : sweep.Judged()) {
      const TrainSetup setup = SetupOf(judged.found.candidate, scenario.inputs.base);
      CAPTURE(SetupLabel(setup));
      CHECK(judge->LeastMicroStepSeconds(setup, scenario.cluster()) *
                static_cast<double>(setup.batch.grad_accum) <=
            judged.found.step_seconds * (1 + 1e-4));
    }
    Question question;
    const Answer answer = EnumeratedSearch(scenario.inputs).Best(question);
    REQUIRE(answer.found.has_value() == found.best.has_value());
    if (answer.found) {
      CHECK(answer.found->merit >= runtime.Merit(BestOf(found)) * (1 - 1.1 * kEnumeratedTieMargin));
    }
    for (size_t stage = 0; stage < found.stages.size(); ++stage) {
      const StageBest &of = found.stages[stage], &all = swept.stages[stage];
      REQUIRE(of.candidate.has_value() == all.candidate.has_value());
      if (of.candidate) compare(of.estimate, all.estimate);
    }
    const SearchStats& stats = found.stats;
    CHECK(stats.candidates == scenario.Setups().size());
    CHECK(stats.candidates == stats.cut_by_memory + stats.cut_by_score + stats.judged);
    if (!found.best) {
      ++nothing;
      continue;
    }
    ++searched;
    compare(BestOf(found), BestOf(swept));
    // What is said of it is what is said of it alone.
    const ChoiceEstimate alone = scenario.Judged(BestOf(found).setup, scenario.inputs.recipe);
    CHECK(alone.fits);
    CHECK(alone.footprint == BestOf(found).footprint);
    CHECK(alone.time.total_seconds == BestOf(found).time.total_seconds);
  }
  CHECK(searched >= 12);
  CHECK(nothing >= 1);
}

// At stage 0 the optimizer's step decides, whatever the micro-batch; what the allocator keeps
// beside it is less with some larger ones. At stage 3 the host is short, by less where it has no
// parameters.
TEST_CASE(
    "EnumeratedSearch: where nothing fits it shows the smallest batch, by the scarcest memory") {
  Scenario scenario(DeepSpeedRuntime(), LoadModel("qwen2.5-7b"), 2, 24 * kGB, 24);
  scenario.cluster().host_capacity_bytes = 120 * kGB;
  scenario.inputs.base.batch.seq_len = 4096;
  scenario.inputs.space.micro_batches = {1, 6, 12};
  scenario.inputs.space.offload_optimizer = {{}, {OffloadDevice::kCpu, 1}};
  scenario.inputs.space.offload_param = {OffloadDevice::kNone, OffloadDevice::kCpu};
  const SearchResult found = EnumeratedSearch(scenario.inputs).Run();
  CHECK_FALSE(found.best);
  REQUIRE(found.stages.size() == 4);
  for (const StageBest& stage : found.stages) CHECK_FALSE(stage.candidate);
  CHECK(found.stages.front().estimate.setup.batch.micro_batch == 1);
  const ZeroConfig& last = found.stages.back().estimate.setup.zero;
  CHECK(last.offload_optimizer.device == OffloadDevice::kCpu);
  CHECK(last.offload_param.device == OffloadDevice::kNone);
}

// One play of a judge serves many numbers of micro-steps.
TEST_CASE("a judge says of every accumulation what is said of it alone") {
  ModelSpec model = LoadModel("gpt2-medium");
  model.layers = 2;
  for (const Runtime* runtime : {&DeepSpeedRuntime(), &Fsdp2Runtime(), &DdpRuntime()}) {
    // What fits, and what makes the allocator give back what it has.
    for (const double gpu_gb : {40.0, 3.5}) {
      Scenario scenario(*runtime, model, 2, static_cast<uint64_t>(gpu_gb * 1e9), 48);
      const std::unique_ptr<ChoiceJudge> judge =
          runtime->Judge({model, {}, scenario.inputs.recipe, &scenario.profile});
      int compared = 0;
      for (TrainSetup setup : scenario.Setups()) {
        if (setup.batch.micro_batch != 2) continue;
        for (const int64_t micro_steps : {7, 3, 100, 2, 1, 4}) {
          setup.batch.grad_accum = micro_steps;
          CAPTURE(SetupLabel(setup));
          CAPTURE(gpu_gb);
          CAPTURE(micro_steps);
          const ChoiceEstimate one = judge->Estimate(setup, scenario.cluster());
          const ChoiceEstimate alone = scenario.Judged(setup, scenario.inputs.recipe);
          CHECK(one.footprint == alone.footprint);
          CHECK(one.why_not == alone.why_not);
          CHECK(one.time.total_seconds == alone.time.total_seconds);
          CHECK(one.time.exposed_offload_seconds == alone.time.exposed_offload_seconds);
          ++compared;
        }
      }
      CHECK(compared >= 6);
    }
  }
}

TEST_CASE("searches like one another answer as each does alone") {
  ModelSpec model = LoadModel("gpt2-medium");
  model.layers = 2;
  Scenario scenario(DeepSpeedRuntime(), model, 4, 5 * kGB, 8);
  EnumeratedSearch first(scenario.inputs);
  const auto compare = [&](const SearchInputs& inputs) {
    const std::unique_ptr<ChoiceSearch> like = first.Like(inputs, /*same_gpus=*/true);
    EnumeratedSearch alone(inputs);
    const std::optional<Found> found = like->Best({}).found, expected = alone.Best({}).found;
    REQUIRE(found.has_value() == expected.has_value());
    if (!found) return 0.0;
    CHECK(found->candidate == expected->candidate);
    CHECK(found->step_seconds == expected->step_seconds);
    CHECK(like->EstimateCandidate(found->candidate).footprint ==
          alone.EstimateCandidate(found->candidate).footprint);
    return found->step_seconds;
  };
  const double here = compare(scenario.inputs);
  CHECK(here > 0);
  SearchInputs hosts = scenario.inputs;
  hosts.clusters.front().cluster.host_capacity_bytes = 9 * kGB;
  compare(hosts);
  SearchInputs nodes = scenario.inputs;
  nodes.clusters.front().cluster.gpus_per_node = 2;
  CHECK(compare(nodes) > here);
  SearchInputs longer = scenario.inputs;
  longer.base.batch.seq_len = 512;
  CHECK(compare(longer) < here);
  SearchInputs compiled = scenario.inputs;
  compiled.recipe.compile.layers = false;
  CHECK(compare(compiled) != here);
}

TEST_CASE("EnumeratedSearch: room for the margins of error comes before speed") {
  Scenario scenario(DeepSpeedRuntime(), LoadModel("gpt3-1.3b"), 2, 24 * kGB, 96);
  const ChoiceEstimate best = BestOf(EnumeratedSearch(scenario.inputs).Run());
  const double capacity = 24e9 - static_cast<double>(kGpuReserveBytes);
  const TorchFootprint& torch = *best.footprint.torch;
  const auto context = static_cast<double>(torch.context_bytes);
  CHECK(static_cast<double>(torch.TensorBytes()) / (1 - kDeepSpeedMargins.allocated) + context <=
        capacity);
  CHECK(best.fits);
  ChoiceEstimate judged = best;
  const auto merit = [&judged](MemoryRoom room) {
    judged.room = room;
    return DeepSpeedRuntime().Merit(judged);
  };
  CHECK(merit(MemoryRoom::kAmple) > merit(MemoryRoom::kTight));
  CHECK(merit(MemoryRoom::kTight) > merit(MemoryRoom::kEmptiesCache));
  CHECK(merit(MemoryRoom::kEmptiesCache) > 100 * merit(MemoryRoom::kAtRisk));
  CHECK(merit(MemoryRoom::kAmple) > 100 * merit(MemoryRoom::kTight));
  CHECK(merit(MemoryRoom::kNone) == 0);
}

// Runs of DeepSpeed that trained 96 sequences a step within one limit of the allocator.
TEST_CASE("EnumeratedSearch: beside measured runs of one scenario it chooses what is as good") {
  struct Measured {
    const char* model;
    int gpus;
    double limit_gib;
    double best_milliseconds;
  };
  const std::vector<DeepSpeedRow> rows = LoadDeepSpeedRows();
  for (const Measured& measured : {Measured{"gpt3-1.3b", 2, 22.35, 902.1},
                                   {"gpt2-xl", 2, 37.25, 1110.5},
                                   {"gpt3-2.7b", 1, 37.25, 4340.3}}) {
    CAPTURE(measured.model);
    Scenario scenario(DeepSpeedRuntime(), LoadModel(measured.model), measured.gpus, 0, 96);
    Cluster& cluster = scenario.cluster();
    // The runs' limit is the allocator's: what lies outside it comes on top.
    cluster.gpu_capacity_bytes = static_cast<uint64_t>(measured.limit_gib * (1 << 30)) +
                                 ContextBytes(1, measured.gpus, 0) + kGpuReserveBytes;
    // The runs had no margin of error free.
    EnumeratedSearch search(scenario.inputs);
    search.Run();
    double best_seconds = std::numeric_limits<double>::infinity();
    for (const JudgedChoice& judged : search.Judged()) {
      if (judged.fits) best_seconds = std::min(best_seconds, judged.found.step_seconds);
    }
    int compared = 0;
    for (const DeepSpeedRow& row : rows) {
      const uint64_t limit = row.run.limit_bytes.value_or(0);
      if (row.run.model.name != measured.model || row.out_of_memory ||
          row.run.setup.batch.world_size != measured.gpus ||
          limit != static_cast<uint64_t>(measured.limit_gib * (1 << 30))) {
        continue;
      }
      ++compared;
      const ChoiceEstimate ran =
          scenario.Judged(row.run.setup, {.compile = {row.run.recipe.compile.layers, false}});
      CAPTURE(row.label);
      CHECK(row.step_seconds * 1e3 >= measured.best_milliseconds - 0.1);
      CHECK(best_seconds <= *ran.time.total_seconds * 1.05);
      // What ran at half the speed of the best, or less, is no choice.
      if (row.step_seconds * 1e3 < 1.4 * measured.best_milliseconds) continue;
      CHECK(best_seconds < 0.8 * row.step_seconds);
    }
    CHECK(compared >= 2);
    CHECK(best_seconds * 1e3 <= 1.1 * measured.best_milliseconds);
  }
}

TEST_CASE("Choices: what DeepSpeed and FSDP2 have, and what is fixed") {
  Scenario deepspeed(DeepSpeedRuntime(), LoadModel("gpt2"), 2, 80 * kGB, 16);
  int in_part = 0;
  for (const TrainSetup& setup : deepspeed.Setups()) {
    ValidateSetup(setup, "test");
    CHECK(setup.batch.global_batch() == 16);
    const ZeroConfig& zero = setup.zero;
    CHECK(zero.max_live_parameters == ReaderZeroDefaults(zero.stage).max_live_parameters);
    if (zero.offload_optimizer.ratio < 1) {
      ++in_part;
      CHECK(zero.stage == 3);
      // DeepSpeed places whole sub-groups.
      CHECK(zero.sub_group_elements * 10 <= deepspeed.inputs.model.ParamCount());
    }
  }
  CHECK(in_part > 0);
  Scenario fsdp2(Fsdp2Runtime(), LoadModel("gpt2"), 2, 80 * kGB, 16);
  for (const TrainSetup& setup : fsdp2.Setups()) {
    CHECK(setup.zero.stage >= 2);
    CHECK(setup.zero.offload_optimizer.device == setup.zero.offload_param.device);
  }
  // Selective recompute is torchtitan's, of layers without biases.
  const auto selective = [](Scenario& scenario, bool asked) {
    scenario.inputs.space.recompute = {kNoRecompute, kSelectiveRecompute, FullRecompute()};
    scenario.inputs.for_torchtitan = asked;
    const std::vector<TrainSetup> setups = scenario.Setups();
    return std::any_of(setups.begin(), setups.end(), [](const TrainSetup& s) {
      return s.recompute.kind == RecomputeKind::kSelective;
    });
  };
  Scenario llama(Fsdp2Runtime(), LoadModel("llama3.2-1b"), 2, 80 * kGB, 16);
  CHECK(selective(llama, true));
  CHECK_FALSE(selective(llama, false));
  CHECK_FALSE(selective(fsdp2, true));
  // A config's keys stay, but for what it leaves open.
  ZeroConfig given = ReaderZeroDefaults(2);
  given.allgather_bucket_elements = 7'000'000;
  given.reduce_bucket_elements = 9'000'000;
  given.overlap_comm = false;
  deepspeed.inputs.given_zero = given;
  deepspeed.inputs.space.stages = {2};
  for (const TrainSetup& setup : deepspeed.Setups()) {
    CHECK(setup.zero.allgather_bucket_elements == 7'000'000);
    CHECK(setup.zero.reduce_bucket_elements == 9'000'000);
    CHECK_FALSE(setup.zero.overlap_comm);
  }
  // What a runtime cannot do is left to be refused by name.
  fsdp2.inputs.space.stages = {1};
  REQUIRE(fsdp2.Setups().size() == 1);
  CHECK_THROWS_WITH_AS(EnumeratedSearch(fsdp2.inputs).Run(), doctest::Contains("stage 1"), Error);
}

TEST_CASE("objectives: most memory left, of DeepSpeed and FSDP2 too") {
  for (const Runtime* runtime : {&DeepSpeedRuntime(), &Fsdp2Runtime()}) {
    Scenario scenario(*runtime, LoadModel("gpt2"), 2, 80 * kGB, 16);
    const uint64_t fastest = BestOf(EnumeratedSearch(scenario.inputs).Run()).footprint.gpu_total();
    scenario.inputs.objective = Objective::kHeadroom;
    CHECK(BestOf(EnumeratedSearch(scenario.inputs).Run()).footprint.gpu_total() < fastest);
  }
}

}  // namespace
}  // namespace zeroplan
