// The search against brute force, its bounds against lowered programs.
#include "planner/search/search.h"

#include <doctest/doctest.h>

#include <map>
#include <random>

#include "core/families/gpt2/gpt2.h"
#include "core/families/load_model.h"
#include "cost_models/memory_walk.h"
#include "planner/estimate/choices.h"
#include "planner/estimate/fp8_products.h"
#include "planner/estimate/light_states.h"
#include "tests/planner/search_fixture.h"

namespace zeroplan {
namespace {

constexpr uint64_t kSearchGB = 1'000'000'000;

// Few enough candidates to lower them all.
void Shrink(SearchSpace& space) {
  space.offload_optimizer = {
      {OffloadDevice::kNone, 1}, {OffloadDevice::kCpu, 0.4}, {OffloadDevice::kCpu, 1}};
  space.offload_param = {OffloadDevice::kNone, OffloadDevice::kCpu};
  space.recompute = {kNoRecompute, kSelectiveRecompute, FullRecompute()};
  space.buckets.resize(2);
  space.micro_batches = {1, 3, 8};
  space.grad_accums = {1, 2, 4};
  space.max_step_sequences = 64;
}

double Primary(Objective objective, const StageBest& best) {
  switch (objective) {
    case Objective::kThroughput:
      return *best.estimate.time.tokens_per_second;
    case Objective::kHeadroom:
      return static_cast<double>(best.estimate.footprint.gpu_total());
    case Objective::kFewestGpus:
      return best.candidate->gpus;
  }
  return 0;
}

TEST_CASE("Search: the best of each stage is brute force's") {
  struct Case {
    const char* model;
    int64_t layers;  // of them, so that all choices are lowered soon
    int gpus;
    double gpu_gb;
  };
  // Where much is cut by memory, some, and nothing.
  for (const Case& c : {Case{"gpt2", 3, 2, 2.7}, Case{"gpt2", 3, 1, 1.8},
                        Case{"gpt2-medium", 6, 8, 4}, Case{"gpt2", 3, 8, 100}}) {
    for (Objective objective :
         {Objective::kThroughput, Objective::kHeadroom, Objective::kFewestGpus}) {
      CAPTURE(c.model);
      CAPTURE(c.gpus);
      CAPTURE(ObjectiveName(objective));
      ModelSpec model = LoadModel(c.model);
      model.layers = c.layers;
      SearchFixture fixture(model, c.gpus, objective == Objective::kFewestGpus);
      Shrink(fixture.inputs.space);
      fixture.inputs.objective = objective;
      fixture.Capacity(static_cast<uint64_t>(c.gpu_gb * 1e9));
      const SearchResult found = Search(fixture.inputs);
      const SearchResult all = SearchByBruteForce(fixture.inputs);
      REQUIRE(found.stages.size() == all.stages.size());
      CHECK(found.best.has_value() == all.best.has_value());
      for (size_t s = 0; s < all.stages.size(); ++s) {
        REQUIRE(found.stages[s].candidate.has_value() == all.stages[s].candidate.has_value());
        if (!all.stages[s].candidate || !found.stages[s].proven) continue;
        const double best = Primary(objective, all.stages[s]);
        if (objective == Objective::kThroughput) {
          // Ties go to the simpler choice.
          CHECK(Primary(objective, found.stages[s]) >= TieFloor(best) * (1 - 1e-9));
          CHECK(Primary(objective, found.stages[s]) <= best * (1 + 1e-12));
        } else {
          CHECK(Primary(objective, found.stages[s]) == doctest::Approx(best).epsilon(1e-12));
        }
      }
      CHECK(found.stats.candidates == all.stats.candidates);
      CHECK(found.stats.judged < all.stats.judged);
      CHECK(found.stats.cut_by_memory + found.stats.cut_by_score + found.stats.judged ==
            found.stats.candidates);
    }
  }
}

// Random members of the space, not only those that a search looks at.
std::vector<Candidate> Sample(const SearchSpace& space, size_t count, std::mt19937& random) {
  const std::vector<Candidate> groups = Groups(space);
  std::vector<Candidate> sample;
  while (sample.size() < count) {
    Candidate candidate = groups[random() % groups.size()];
    const std::vector<BatchPair> pairs = BatchPairs(space, candidate.gpus);
    const BatchPair& batch = pairs[random() % pairs.size()];
    candidate.micro_batch = batch.micro_batch;
    candidate.grad_accum = batch.grad_accum;
    sample.push_back(candidate);
  }
  return sample;
}

void CheckBound(const SearchInputs& in, const Candidate& candidate, const MemoryBound& bound) {
  const auto at = std::find(in.space.gpus.begin(), in.space.gpus.end(), candidate.gpus);
  const SearchCluster& cluster = in.clusters[static_cast<size_t>(at - in.space.gpus.begin())];
  const Program program = Lower(in.model, SetupOf(candidate, in.base), in.lower);
  const ChoiceEstimate exact = EstimateProgram(program, cluster.cluster, nullptr);
  CAPTURE(SetupLabel(exact.setup));
  CAPTURE(candidate.gpus);
  CAPTURE(candidate.micro_batch);
  CAPTURE(candidate.grad_accum);
  CAPTURE(RecomputeName(candidate.recompute));
  CAPTURE(candidate.recompute.every);
  CAPTURE(candidate.optimizer.ratio);
  CHECK(bound.gpu_bytes <= exact.footprint.gpu_total());
  CHECK(bound.host_bytes <= exact.footprint.host.total());
  CHECK(bound.nvme_bytes <= exact.footprint.nvme_bytes);
  // And it is worth having.
  CHECK(static_cast<double>(bound.gpu_bytes) >=
        0.4 * static_cast<double>(exact.footprint.gpu_total()));
}

std::vector<ProductsKind> AllProducts(const ModelSpec& model) {
  std::vector<ProductsKind> products = {{}};
  for (const Fp8Recipe recipe : kFp8Recipes) {
    for (const ProductsKind& kind : Fp8Kinds(model, recipe)) products.push_back(kind);
  }
  return products;
}

TEST_CASE("Search: of a thousand candidates cut by memory no bound exceeds the program") {
  size_t checked = 0;
  for (const auto& [model, gpus, gpu_bytes] : {std::tuple{"gpt2", 1, 3 * kSearchGB},
                                               {"gpt2", 4, 4 * kSearchGB},
                                               {"gpt2-medium", 16, 5 * kSearchGB},
                                               {"gpt3-1.3b", 8, 12 * kSearchGB}}) {
    SearchFixture fixture(model, gpus);
    fixture.Capacity(gpu_bytes);
    for (const CutCandidate& cut : CutByMemory(fixture.inputs, 250)) {
      CheckBound(fixture.inputs, cut.candidate, cut.bound);
      ++checked;
    }
    fixture.inputs.space.states = KindsOf(kLightStates, Dtype::kBF16);
    for (const CutCandidate& cut : CutByMemory(fixture.inputs, 250)) {
      CheckBound(fixture.inputs, cut.candidate, cut.bound);
      ++checked;
    }
    fixture.inputs.space.states = {{}};
    fixture.inputs.space.products = AllProducts(fixture.inputs.model);
    for (const CutCandidate& cut : CutByMemory(fixture.inputs, 250)) {
      CheckBound(fixture.inputs, cut.candidate, cut.bound);
      ++checked;
    }
  }
  CHECK(checked == 3000);
}

// What is in eight bits is found where it pays, whatever fits: by brute force too.
TEST_CASE("Search: of products that are allowed the fastest that fits, by brute force too") {
  for (const auto& [name, gpus, gpu_gb] : {std::tuple{"gpt2", 2, 1.8},
                                           {"gpt2", 2, 100.0},
                                           {"llama3.2-1b", 2, 5.0},
                                           {"llama3.2-1b", 2, 7.0},
                                           {"llama3.2-1b", 1, 100.0}}) {
    ModelSpec model = LoadModel(name);
    model.layers = 3;
    SearchFixture fixture(model, gpus);
    SearchInputs& in = fixture.inputs;
    in.base.batch.seq_len = 1024;
    Shrink(in.space);
    in.space.offload_optimizer.resize(1);
    in.space.offload_param.resize(1);
    in.space.products = AllProducts(model);
    fixture.Capacity(static_cast<uint64_t>(gpu_gb * 1e9));
    const SearchResult found = Search(in), all = SearchByBruteForce(in);
    CAPTURE(std::string(name));
    CAPTURE(gpu_gb);
    REQUIRE(found.best.has_value() == all.best.has_value());
    if (!found.best) continue;
    CHECK(found.gap == 0);
    const double speed = Primary(Objective::kThroughput, found.stages[*found.best]);
    const double most = Primary(Objective::kThroughput, all.stages[*all.best]);
    CHECK(speed >= most / (1 + kTieMargin));
    // What is as fast within the margin keeps products of 16 bits.
    const Candidate& best = *found.stages[*found.best].candidate;
    in.space.products = {{}};
    const SearchResult exact = Search(in);
    const bool ties =
        exact.best && Primary(Objective::kThroughput, exact.stages[*exact.best]) >= TieFloor(most);
    CHECK(best.products.fp8 == !ties);
  }
}

// Sequences of 1000 tokens are multiples of 16 by twos alone, so that a larger micro-batch may take
// less memory than a smaller one.
TEST_CASE("Search: where products hang on the micro-batch nothing that fits is cut") {
  ModelSpec model = LoadModel("gpt2");
  model.layers = 3;
  SearchFixture fixture(model, 1);
  SearchInputs& in = fixture.inputs;
  in.base.batch.seq_len = 1000;
  Shrink(in.space);
  in.space.offload_optimizer.resize(1);
  in.space.offload_param.resize(1);
  in.space.stages = {0};
  in.space.grad_accums = {1};
  in.space.micro_batches = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  in.space.products = {{true, Fp8Recipe::kTensor, 0}};
  for (double gpu_gb = 1.4; gpu_gb < 4; gpu_gb *= 1.07) {
    fixture.Capacity(static_cast<uint64_t>(gpu_gb * 1e9));
    CAPTURE(gpu_gb);
    const SearchResult found = Search(in), all = SearchByBruteForce(in);
    REQUIRE(found.best.has_value() == all.best.has_value());
    if (!found.best) continue;
    CHECK(Primary(Objective::kThroughput, found.stages[*found.best]) >=
          Primary(Objective::kThroughput, all.stages[*all.best]) / (1 + kTieMargin));
  }
}

TEST_CASE("Search: of states that are allowed the fastest that fits, by brute force too") {
  for (const double gpu_gb : {1.5, 1.8, 2.4, 100.0}) {
    ModelSpec model = LoadModel("gpt2");
    model.layers = 3;
    SearchFixture fixture(model, 2);
    SearchInputs& in = fixture.inputs;
    Shrink(in.space);
    in.space.offload_optimizer.resize(1);
    in.space.offload_param.resize(1);
    in.space.states = KindsOf(kLightStates, Dtype::kBF16);
    fixture.Capacity(static_cast<uint64_t>(gpu_gb * 1e9));
    const SearchResult found = Search(in), all = SearchByBruteForce(in);
    CAPTURE(gpu_gb);
    REQUIRE(found.best.has_value() == all.best.has_value());
    if (!found.best) continue;
    const double speed = Primary(Objective::kThroughput, found.stages[*found.best]);
    const double most = Primary(Objective::kThroughput, all.stages[*all.best]);
    CHECK(speed >= most / (1 + kTieMargin));
    // What is as fast within the margin keeps more exact states.
    const Candidate& best = *found.stages[*found.best].candidate;
    in.space.states = {{}};
    const SearchResult exact = Search(in);
    const bool ties =
        exact.best && Primary(Objective::kThroughput, exact.stages[*exact.best]) >= TieFloor(most);
    CHECK((best.states == StatesKind{}) == ties);
  }
}

TEST_CASE("Search: of a trillion parameters on 10,240 GPUs few programs prove the answer") {
  const SearchFixture fixture(ModelFromParams(1'000'000'000'000, 1024, Gpt2()), 10'240, false,
                              "dgx-h100");
  const SearchResult result = Search(fixture.inputs);
  REQUIRE(result.best.has_value());
  CHECK(result.gap == 0);
  CHECK(result.stats.lowered <= 40);
}

TEST_CASE("Search: score bounds hold for candidates of any kind") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const auto& [dtype, gpus] : {std::pair{"bf16", 4},
                                    {"fp32", 4},
                                    {"bf16", 32},
                                    {"bf16 summed in fp32", 4},
                                    {"bf16 reduced in fp32", 4},
                                    {"bf16 summed and reduced in fp32", 32}}) {
    const std::string sums = dtype;
    SearchFixture fixture("gpt2", gpus, true);
    SearchInputs& in = fixture.inputs;
    PrecisionConfig& precision = in.base.precision;
    if (sums == "fp32") precision.dtype = precision.grad_accum_dtype = Dtype::kF32;
    if (sums.find("summed") != std::string::npos) precision.grad_accum_dtype = Dtype::kF32;
    precision.fp32_reduction = sums.find("reduced") != std::string::npos;
    in.space.states = KindsOf(kLightStates, precision.dtype);
    if (precision.dtype == Dtype::kBF16) in.space.products = AllProducts(in.model);
    const auto tensors =
        std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(in.model));
    Bounds bounds(in.model, tensors, in.base, in.lower);
    for (const Candidate& candidate : Sample(in.space, 100, random)) {
      const auto at = std::find(in.space.gpus.begin(), in.space.gpus.end(), candidate.gpus);
      const SearchCluster& cluster = in.clusters[static_cast<size_t>(at - in.space.gpus.begin())];
      const GroupBound group = bounds.Group(candidate, cluster.cluster, *cluster.costs);
      const ComputeBound& compute = bounds.Compute(candidate.micro_batch, candidate.recompute,
                                                   *cluster.costs, candidate.products);
      const Program program = Lower(in.model, SetupOf(candidate, in.base), in.lower);
      const StepTime time = StepTimer(*cluster.costs).Time(program);
      CAPTURE(dtype);
      CAPTURE(SetupLabel(program.setup));
      CAPTURE(candidate.gpus);
      CAPTURE(candidate.micro_batch);
      CAPTURE(candidate.grad_accum);
      CHECK(Bounds::StepSeconds(group, compute, candidate.grad_accum) <=
            time.total_seconds * (1 + 1e-9));
      CHECK(Bounds::Memory(group, compute).gpu_bytes <=
            program.arena_bytes[0] + RuntimeBytes(cluster.cluster, OutsideArenasOf(program)));
    }
  }
}

TEST_CASE("Search: bounds of selective recompute hold, between those of none and full") {
  for (const char* dtype : {"bf16", "fp32"}) {
    SearchFixture fixture("gpt2-medium", 4);
    SearchInputs& in = fixture.inputs;
    if (std::string(dtype) == "fp32") {
      in.base.precision.dtype = in.base.precision.grad_accum_dtype = Dtype::kF32;
    }
    const auto tensors =
        std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(in.model));
    Bounds bounds(in.model, tensors, in.base, in.lower);
    const SearchCluster& cluster = in.clusters[0];
    const auto memory = [&](Candidate candidate, RecomputeConfig recompute) {
      candidate.recompute = recompute;
      const GroupBound group = bounds.Group(candidate, cluster.cluster, *cluster.costs);
      const ComputeBound& compute =
          bounds.Compute(candidate.micro_batch, recompute, *cluster.costs);
      const Program program = Lower(in.model, SetupOf(candidate, in.base), in.lower);
      CHECK(Bounds::Memory(group, compute).gpu_bytes <=
            program.arena_bytes[0] + RuntimeBytes(cluster.cluster, OutsideArenasOf(program)));
      CHECK(Bounds::StepSeconds(group, compute, candidate.grad_accum) <=
            StepTimer(*cluster.costs).Time(program).total_seconds * (1 + 1e-9));
      return Bounds::Memory(group, compute).gpu_bytes;
    };
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int64_t micro_batch : {1, 8}) {
        CAPTURE(dtype);
        CAPTURE(stage);
        CAPTURE(micro_batch);
        Candidate candidate;
        candidate.gpus = 4;
        candidate.stage = stage;
        candidate.micro_batch = micro_batch;
        const uint64_t selective = memory(candidate, kSelectiveRecompute);
        CHECK(selective < memory(candidate, kNoRecompute));
        CHECK(selective > memory(candidate, FullRecompute()));
      }
    }
  }
}

TEST_CASE("Search: what it reports is the lowered program's memory, to the byte") {
  SearchFixture fixture("gpt2-xl", 4);
  fixture.Capacity(24 * kSearchGB);
  const SearchResult result = Search(fixture.inputs);
  REQUIRE(result.best);
  for (const StageBest& best : result.stages) {
    if (!best.candidate) continue;
    const Program program = Lower(fixture.inputs.model, best.estimate.setup, fixture.inputs.lower);
    CHECK(best.estimate.footprint.gpu_total() ==
          program.arena_bytes[0] +
              RuntimeBytes(fixture.inputs.clusters[0].cluster, OutsideArenasOf(program)));
    CHECK(best.estimate.footprint.gpu_total() <= 24 * kSearchGB);
    CHECK(best.estimate.fits);
  }
}

TEST_CASE("Search: nothing fits is a value, with what comes closest") {
  SearchFixture fixture("gpt3-13b", 1);
  fixture.Capacity(2 * kSearchGB, 8 * kSearchGB);
  fixture.inputs.clusters[0].cluster.nvme_capacity_bytes = 1 * kSearchGB;
  const SearchResult result = Search(fixture.inputs);
  CHECK(!result.best);
  for (const StageBest& best : result.stages) {
    CHECK(!best.candidate);
    CHECK(!best.estimate.fits);
    CHECK(best.estimate.why_not.find("short by") != std::string::npos);
  }
}

TEST_CASE("Search: excluded choices are not taken; extra memory is left free") {
  SearchFixture fixture("gpt2", 2);
  Shrink(fixture.inputs.space);
  fixture.inputs.excluded = [](const TrainSetup& setup) { return setup.zero.stage != 3; };
  SearchResult result = Search(fixture.inputs);
  REQUIRE(result.best);
  CHECK(result.stages[*result.best].stage == 3);
  fixture.inputs.excluded = nullptr;
  fixture.Capacity(8 * kSearchGB);
  const auto with_extra = [](const ChoiceEstimate& estimate) {
    const auto sequences = static_cast<uint64_t>(estimate.setup.batch.micro_batch);
    return estimate.footprint.gpu_total() + kSearchGB + sequences * kSearchGB / 2;
  };
  const SearchResult plain = Search(fixture.inputs);
  REQUIRE(plain.best);
  fixture.inputs.extra_memory = [](const TrainSetup&) {
    return ExtraMemory{kSearchGB, kSearchGB / 2};
  };
  result = Search(fixture.inputs);
  REQUIRE(result.best);
  CHECK(with_extra(plain.stages[*plain.best].estimate) > 8 * kSearchGB);
  CHECK(with_extra(result.stages[*result.best].estimate) <= 8 * kSearchGB);
}

TEST_CASE("SearchSpace: a given global batch is met exactly; else steps stay within the limit") {
  SearchFixture fixture("gpt2", 8);
  SearchSpace space = fixture.inputs.space;
  SetBatches(space, 96, 1024);
  const std::vector<BatchPair> pairs = BatchPairs(space, 8);
  CHECK(pairs.size() == 6);  // 12 = 1x12, 2x6, 3x4, 4x3, 6x2, 12x1
  for (const BatchPair& pair : pairs) CHECK(pair.micro_batch * pair.grad_accum * 8 == 96);
  CHECK(BatchPairs(space, 7).empty());
  SetBatches(space, std::nullopt, 1024);
  for (const BatchPair& pair : BatchPairs(space, 8)) {
    CHECK(pair.micro_batch * pair.grad_accum * 8 <= 512);
  }
  // Of few GPUs each has 65,536 tokens at most, unless the batch is given.
  for (const int gpus : {1, 2, 4}) {
    SearchSpace few = DefaultSpace(fixture.inputs.model, gpus, 8, false);
    SetBatches(few, std::nullopt, 1024);
    CHECK(few.max_step_sequences == 64 * gpus);
    SetBatches(few, 512, 1024);
    CHECK(BatchPairs(few, gpus).size() > 1);
  }
  // More GPUs than sequences: one each all the same.
  CHECK(BatchPairs(space, 4096).size() == 1);
  SearchSpace large = DefaultSpace(LoadModel("gpt2-10b"), 16, 8, false);
  CHECK(CountCandidates(large) >= 100'000);
}

}  // namespace
}  // namespace zeroplan
