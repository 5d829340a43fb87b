// The search of another runtime's choices against a sweep of them, and against what was measured.
#include "planner/runtimes/runtime_search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>

#include "core/base/error.h"
#include "core/config/reader_state.h"
#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/estimate/choices.h"
#include "planner/footprint.h"
#include "planner/runtimes/fitted.h"
#include "planner/search/search.h"
#include "tests/planner/runtimes/runtime_rows.h"

namespace zeroplan {
namespace {

constexpr uint64_t kGB = 1'000'000'000;

// Searches of a model on machines of the default profile.
struct Scenario {
  Scenario(OtherRuntime runtime, ModelSpec model, int gpus, uint64_t gpu_bytes,
           std::optional<int64_t> global_batch)
      : profile(LoadProfile(std::string(kDefaultProfile))) {
    inputs.runtime = runtime;
    inputs.model = std::move(model);
    inputs.hardware = &profile;
    inputs.compile.layers = true;
    Cluster& cluster = inputs.cluster;
    cluster.gpus = cluster.gpus_per_node = gpus;
    cluster.gpu_capacity_bytes = gpu_bytes;
    cluster.gpu_reserve_bytes = kGpuReserveBytes;
    cluster.host_capacity_bytes = 600 * kGB;
    space = DefaultSpace(inputs.model, gpus, 8, false);
    base.batch.seq_len = 1024;
    base.batch.world_size = gpus;
    SetBatches(space, global_batch, base.batch.seq_len);
  }
  void MakeSetups(const RuntimeKeys& keys = {}) {
    inputs.setups = RuntimeSetups(inputs.runtime, inputs.model, space, base, keys);
  }

  HardwareProfile profile;
  RuntimeSearchInputs inputs;
  SearchSpace space;
  TrainSetup base;
};

const RuntimeJudged& BestOf(const RuntimeSearchResult& result) {
  REQUIRE(result.best);
  return *result.stages[*result.best].best;
}

TEST_CASE("SearchRuntime: no choice of a sweep is better") {
  std::mt19937 random(20261122);
  const auto draw = [&random](auto... values) {
    const std::array list = {values...};
    return list[random() % list.size()];
  };
  int searched = 0, nothing = 0;
  for (int i = 0; i < 24; ++i) {
    const OtherRuntime runtime = i % 3 == 2 ? OtherRuntime::kFsdp2 : OtherRuntime::kDeepSpeed;
    ModelSpec model = LoadModel(draw("gpt2", "gpt2-medium", "gpt2-large", "llama3.2-1b"));
    model.layers = draw(1, 2, 3);
    const int gpus = draw(1, 2, 4);
    const double gpu_gb = draw(3.2, 4.0, 5.0, 6.5, 9.0, 14.0, 40.0);
    Scenario scenario(runtime, model, gpus, static_cast<uint64_t>(gpu_gb * 1e9), draw(8, 24, 48));
    scenario.inputs.cluster.host_capacity_bytes = draw(8, 20, 600) * kGB;
    scenario.space.micro_batches = {1, 2, 6, 12};
    if (draw(0, 1) == 1) scenario.space.offload_optimizer = {{}, {OffloadDevice::kCpu, 1}};
    scenario.MakeSetups();
    CAPTURE(i);
    CAPTURE(model.name);
    CAPTURE(gpus);
    CAPTURE(gpu_gb);
    const RuntimeSearchResult found = SearchRuntime(scenario.inputs);
    const RuntimeSearchResult swept = SweepRuntime(scenario.inputs);
    REQUIRE(found.best.has_value() == swept.best.has_value());
    REQUIRE(found.stages.size() == swept.stages.size());
    const auto compare = [](const RuntimeJudged& a, const RuntimeJudged& b) {
      CAPTURE(SetupLabel(a.choice.setup));
      CAPTURE(SetupLabel(b.choice.setup));
      CAPTURE(b.choice.setup.batch.micro_batch);
      // One margin is cut, within another the simplest is taken.
      CHECK(RuntimeMerit(a) >= RuntimeMerit(b) * (1 - 2.1 * kRuntimeTieMargin));
    };
    for (size_t stage = 0; stage < found.stages.size(); ++stage) {
      REQUIRE(found.stages[stage].best.has_value() == swept.stages[stage].best.has_value());
      if (found.stages[stage].best) compare(*found.stages[stage].best, *swept.stages[stage].best);
    }
    const RuntimeSearchStats& stats = found.stats;
    CHECK(stats.candidates == scenario.inputs.setups.size());
    if (!found.best) {
      ++nothing;
      continue;
    }
    ++searched;
    compare(BestOf(found), BestOf(swept));
    // What is said of it is what EstimateRuntime says.
    const TorchMachine machine(scenario.profile, scenario.inputs.cluster.shape());
    const RuntimeChoice alone =
        EstimateRuntime(runtime, scenario.inputs.model, scenario.inputs.cluster,
                        {BestOf(found).choice.setup}, scenario.inputs.compile, &machine)
            .choices.front();
    CHECK(alone.fits());
    CHECK(alone.footprint.DeviceBytes() == BestOf(found).choice.footprint.DeviceBytes());
    CHECK(alone.time->step_seconds == BestOf(found).choice.time->step_seconds);
  }
  CHECK(searched >= 12);
  CHECK(nothing >= 1);
}

TEST_CASE("SearchRuntime: room for the margins of error comes before speed") {
  Scenario scenario(OtherRuntime::kDeepSpeed, LoadModel("gpt3-1.3b"), 2, 24 * kGB, 96);
  scenario.MakeSetups();
  const RuntimeJudged best = BestOf(SearchRuntime(scenario.inputs));
  const double capacity = 24e9 - static_cast<double>(kGpuReserveBytes);
  uint64_t tensors = 0;
  for (const TorchPeak& peak : best.choice.footprint.peaks) {
    tensors = std::max(tensors, peak.allocated_bytes);
  }
  const auto context = static_cast<double>(best.choice.footprint.context_bytes);
  CHECK(static_cast<double>(tensors) / (1 - kDeepSpeedMargins.allocated) + context <= capacity);
  CHECK(best.choice.fits());
  RuntimeJudged judged = best;
  const auto merit = [&judged](MemoryRoom room) {
    judged.room = room;
    return RuntimeMerit(judged);
  };
  CHECK(merit(MemoryRoom::kAmple) > merit(MemoryRoom::kTight));
  CHECK(merit(MemoryRoom::kTight) > merit(MemoryRoom::kEmptiesCache));
  CHECK(merit(MemoryRoom::kEmptiesCache) > 100 * merit(MemoryRoom::kAtRisk));
  CHECK(merit(MemoryRoom::kNone) == 0);
}

// Runs of DeepSpeed that trained 96 sequences a step within one limit of the allocator.
TEST_CASE("SearchRuntime: beside measured runs of one scenario it chooses what is as good") {
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
    Scenario scenario(OtherRuntime::kDeepSpeed, LoadModel(measured.model), measured.gpus, 0, 96);
    Cluster& cluster = scenario.inputs.cluster;
    // The runs' limit is the allocator's: what lies outside it comes on top.
    cluster.gpu_capacity_bytes = static_cast<uint64_t>(measured.limit_gib * (1 << 30)) +
                                 ContextBytes(1, measured.gpus) + kGpuReserveBytes;
    scenario.MakeSetups();
    const RuntimeJudged best = BestOf(SearchRuntime(scenario.inputs));
    const TorchMachine machine(scenario.profile, cluster.shape());
    int compared = 0;
    for (const DeepSpeedRow& row : rows) {
      const uint64_t limit = row.run.limit_bytes.value_or(0);
      if (row.run.model.name != measured.model || row.out_of_memory ||
          row.run.setup.batch.world_size != measured.gpus ||
          limit != static_cast<uint64_t>(measured.limit_gib * (1 << 30))) {
        continue;
      }
      ++compared;
      const RuntimeChoice ran =
          EstimateRuntime(OtherRuntime::kDeepSpeed, scenario.inputs.model, cluster, {row.run.setup},
                          {row.run.compiled, false}, &machine)
              .choices.front();
      CAPTURE(row.label);
      CHECK(row.step_seconds * 1e3 >= measured.best_milliseconds - 0.1);
      CHECK(best.choice.time->step_seconds <= ran.time->step_seconds * 1.05);
      // What ran at half the speed of the best, or less, is no choice.
      if (row.step_seconds * 1e3 < 1.4 * measured.best_milliseconds) continue;
      CHECK(best.choice.time->step_seconds < 0.8 * row.step_seconds);
    }
    CHECK(compared >= 2);
    CHECK(best.choice.time->step_seconds * 1e3 <= 1.1 * measured.best_milliseconds);
  }
}

TEST_CASE("RuntimeSetups: what DeepSpeed and FSDP2 have, and what is fixed") {
  Scenario deepspeed(OtherRuntime::kDeepSpeed, LoadModel("gpt2"), 2, 80 * kGB, 16);
  deepspeed.MakeSetups();
  int in_part = 0;
  for (const TrainSetup& setup : deepspeed.inputs.setups) {
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
  Scenario fsdp2(OtherRuntime::kFsdp2, LoadModel("gpt2"), 2, 80 * kGB, 16);
  fsdp2.MakeSetups();
  for (const TrainSetup& setup : fsdp2.inputs.setups) {
    CHECK(setup.zero.stage >= 2);
    CHECK(setup.zero.offload_optimizer.device == setup.zero.offload_param.device);
  }
  // Selective recompute is torchtitan's, of layers without biases.
  const auto selective = [](Scenario& scenario, bool asked) {
    scenario.space.recompute = {kNoRecompute, kSelectiveRecompute, FullRecompute()};
    RuntimeKeys keys;
    keys.selective = asked;
    scenario.MakeSetups(keys);
    return std::any_of(
        scenario.inputs.setups.begin(), scenario.inputs.setups.end(),
        [](const TrainSetup& s) { return s.recompute.kind == RecomputeKind::kSelective; });
  };
  Scenario llama(OtherRuntime::kFsdp2, LoadModel("llama3.2-1b"), 2, 80 * kGB, 16);
  CHECK(selective(llama, true));
  CHECK_FALSE(selective(llama, false));
  CHECK_FALSE(selective(fsdp2, true));
  // A config's keys stay, but for what it leaves open.
  RuntimeKeys keys;
  keys.others = ReaderZeroDefaults(2);
  keys.others->allgather_bucket_elements = 7'000'000;
  keys.reduce_buckets = {9'000'000};
  keys.overlap_comm = {false};
  deepspeed.space.stages = {2};
  deepspeed.MakeSetups(keys);
  for (const TrainSetup& setup : deepspeed.inputs.setups) {
    CHECK(setup.zero.allgather_bucket_elements == 7'000'000);
    CHECK(setup.zero.reduce_bucket_elements == 9'000'000);
    CHECK_FALSE(setup.zero.overlap_comm);
  }
  // What a runtime cannot do is left to be refused by name.
  fsdp2.space.stages = {1};
  fsdp2.MakeSetups();
  REQUIRE(fsdp2.inputs.setups.size() == 1);
  CHECK_THROWS_WITH_AS(SearchRuntime(fsdp2.inputs), doctest::Contains("stage 1"), Error);
}

}  // namespace
}  // namespace zeroplan
