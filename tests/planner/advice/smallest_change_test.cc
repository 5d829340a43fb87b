// The smallest change against all changes there are.
#include "planner/advice/smallest_change.h"

#include <doctest/doctest.h>

#include <bit>
#include <deque>

#include "core/base/error.h"
#include "core/base/units.h"
#include "tests/planner/search_fixture.h"
#include "tests/tiny_model.h"

namespace zeroplan {
namespace {

constexpr uint64_t kMB = 1'000'000;

// A model quick to lower, with activations that weigh as much as its states.
ModelSpec TinyModel() {
  return testing::TinyModel({.layers = 4,
                             .hidden = 512,
                             .heads = 8,
                             .ffn = 2048,
                             .vocab = 4096,
                             .padded_vocab = 4096,
                             .positions = 256});
}

// What was asked: stage 0, nothing offloaded, no recompute, micro-batch 16.
class Asked {
 public:
  explicit Asked(int gpus) : fixture("gpt2", gpus) {
    SearchInputs& in = fixture.inputs;
    // A communicator more or less would outweigh all that so small a model holds.
    for (SearchCluster& at : in.clusters) at.cluster.communicator_bytes = 0;
    in.model = TinyModel();
    in.base.batch.seq_len = 256;
    full = DefaultSpace(in.model, gpus, 8, false);
    full.offload_optimizer = {{OffloadDevice::kNone, 1}, {OffloadDevice::kCpu, 1}};
    full.offload_param = {OffloadDevice::kNone, OffloadDevice::kCpu};
    full.recompute = {kNoRecompute, FullRecompute()};
    full.buckets.resize(1);
    full.gathering.resize(1);
    full.micro_batches = {1, 4, 16};
    full.grad_accums = {1};
    full.max_step_sequences = 1 << 20;
    in.space = full;
    in.space.stages = {0};
    in.space.offload_optimizer = {{OffloadDevice::kNone, 1}};
    in.space.offload_param = {OffloadDevice::kNone};
    in.space.recompute = {kNoRecompute};
    in.space.micro_batches = {16};
  }

  // GPU memory of a choice, runtime included.
  uint64_t Bytes(const Candidate& candidate) const {
    const Program program =
        Lower(fixture.inputs.model, SetupOf(candidate, fixture.inputs.base), fixture.inputs.lower);
    return program.arena_bytes[0] +
           RuntimeBytes(ClusterFor(candidate.gpus), OutsideArenasOf(program));
  }
  Cluster ClusterFor(int gpus) const {
    Cluster cluster = fixture.inputs.clusters[0].cluster;
    cluster.gpus = gpus;
    cluster.gpus_per_node = std::min(gpus, 8);
    cluster.runtime_bytes = RuntimeBytes(fixture.profile, gpus);
    return cluster;
  }
  std::optional<Change> Smallest() {
    return SmallestChange(fixture.inputs, full, [this](int gpus, SearchInputs& inputs) {
      if (gpus > most_gpus) throw Error(ExitCode::kUsage, "no more GPUs");
      costs_.emplace_back(fixture.profile, ClusterShape{gpus, std::min(gpus, 8)});
      inputs.clusters = {{ClusterFor(gpus), &costs_.back()}};
      inputs.space.gpus = {gpus};
    });
  }

  SearchFixture fixture;
  SearchSpace full;
  int most_gpus = 1 << 20;

 private:
  std::deque<CostModel> costs_;
};

Candidate Choice(int gpus, int stage, int64_t micro_batch, RecomputeConfig recompute = kNoRecompute,
                 OffloadDevice optimizer = OffloadDevice::kNone) {
  Candidate c;
  c.gpus = gpus;
  c.stage = stage;
  c.micro_batch = micro_batch;
  c.recompute = recompute;
  c.optimizer = {optimizer, 1};
  return c;
}

// Bit 0 micro-batch, 1 recompute, 2 stage, 3 offload: where `c` is not what was asked.
unsigned Changes(const Candidate& c, const SearchSpace& asked) {
  auto in = [](const auto& list, const auto& value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  };
  return (in(asked.micro_batches, c.micro_batch) ? 0u : 1u) |
         (in(asked.recompute, c.recompute) ? 0u : 2u) | (in(asked.stages, c.stage) ? 0u : 4u) |
         (in(asked.offload_optimizer, c.optimizer) && in(asked.offload_param, c.param) ? 0u : 8u);
}

void CheckFits(const Asked& asked, const Change& change) {
  const uint64_t capacity = asked.fixture.inputs.clusters[0].cluster.gpu_capacity_bytes;
  CHECK(asked.Bytes(change.found.candidate) == change.found.gpu_bytes);
  CHECK(change.found.gpu_bytes <= capacity);
  CHECK(change.estimate.footprint.gpu_total() == change.found.gpu_bytes);
  CHECK(change.estimate.fits);
}

TEST_CASE("SmallestChange: a smaller micro-batch") {
  Asked asked(2);
  asked.full.recompute = {kNoRecompute};
  asked.fixture.Capacity(asked.Bytes(Choice(2, 0, 4)));
  const std::optional<Change> change = asked.Smallest();
  REQUIRE(change);
  CHECK(change->options == "⟦micro_batch⟧ 4");  // 4 is faster than 1
  CheckFits(asked, *change);
  // One byte less and it is 1.
  asked.fixture.Capacity(asked.Bytes(Choice(2, 0, 4)) - 1);
  asked.full.stages = {0};
  CHECK(asked.Smallest()->options == "⟦micro_batch⟧ 1");
}

TEST_CASE("SmallestChange: recompute") {
  Asked asked(2);
  asked.full.micro_batches = {16};
  asked.fixture.Capacity(asked.Bytes(Choice(2, 0, 16, FullRecompute())));
  const std::optional<Change> change = asked.Smallest();
  REQUIRE(change);
  CHECK(change->options == "⟦checkpointing⟧ full");
  CheckFits(asked, *change);
}

TEST_CASE("SmallestChange: selective recompute where it is enough") {
  Asked asked(2);
  asked.full.micro_batches = {16};
  asked.full.recompute = {kNoRecompute, kSelectiveRecompute, FullRecompute()};
  asked.full.stages = {0};
  asked.fixture.Capacity(asked.Bytes(Choice(2, 0, 16, kSelectiveRecompute)));
  const std::optional<Change> change = asked.Smallest();
  REQUIRE(change);
  CHECK(change->options == "⟦checkpointing⟧ selective");
  CheckFits(asked, *change);
}

TEST_CASE("SmallestChange: another stage") {
  Asked asked(8);
  asked.fixture.inputs.space.micro_batches = {1};
  asked.fixture.Capacity(asked.Bytes(Choice(8, 2, 1)));
  const std::optional<Change> change = asked.Smallest();
  REQUIRE(change);
  CHECK(std::popcount(Changes(change->found.candidate, asked.fixture.inputs.space)) == 1);
  CHECK(change->found.candidate.stage >= 2);
  CHECK(change->options == fmt::format("⟦stage⟧ {}", change->found.candidate.stage));
  CheckFits(asked, *change);
}

TEST_CASE("SmallestChange: offload") {
  Asked asked(1);
  asked.fixture.inputs.space.stages = {2};
  asked.fixture.inputs.space.micro_batches = {1};
  asked.fixture.Capacity(asked.Bytes(Choice(1, 2, 1, kNoRecompute, OffloadDevice::kCpu)));
  const std::optional<Change> change = asked.Smallest();
  REQUIRE(change);
  CHECK(change->options == "⟦offload_optimizer⟧ cpu");
  CheckFits(asked, *change);
}

TEST_CASE("SmallestChange: host memory where the host alone is short") {
  Asked asked(1);
  SearchInputs& in = asked.fixture.inputs;
  in.space.stages = {2};
  in.space.micro_batches = {1};
  in.space.offload_optimizer = {{OffloadDevice::kCpu, 1}};
  asked.full = in.space;
  const Candidate choice = Choice(1, 2, 1, kNoRecompute, OffloadDevice::kCpu);
  const uint64_t needs =
      FootprintOf(Lower(in.model, SetupOf(choice, in.base), in.lower), asked.ClusterFor(1))
          .host.total();
  asked.fixture.Capacity(asked.Bytes(choice), needs / 3);
  const std::optional<Change> change = asked.Smallest();
  REQUIRE(change);
  REQUIRE(change->options.starts_with("⟦host_memory⟧ "));
  // Typed, it fits; an eighth of what there is less would not.
  const uint64_t typed =
      ParseBytes(change->options.substr(change->options.find(' ') + 1), "host_memory");
  CHECK(typed >= needs);
  CHECK(typed - needs / 3 / 8 < needs);
  CHECK(change->estimate.fits);
}

TEST_CASE("SmallestChange: lighter optimizer states, the most exact that fit") {
  Asked asked(2);
  asked.full = asked.fixture.inputs.space;
  const auto with = [](StatesKind states) {
    Candidate choice = Choice(2, 0, 16);
    choice.states = states;
    return choice;
  };
  const Candidate split = with({MasterWeights::kSplit, Dtype::kF32});
  const Candidate eight = with({MasterWeights::kFp32, Dtype::kDynamic8});
  const Candidate sixteen = with({MasterWeights::kParam, Dtype::kBF16});
  asked.fixture.Capacity(asked.Bytes(split));
  std::optional<Change> change = asked.Smallest();
  REQUIRE(change);
  CHECK(change->options == "⟦allow⟧ split-masters");
  CheckFits(asked, *change);
  asked.fixture.Capacity(asked.Bytes(split) - 1);
  REQUIRE(asked.Bytes(eight) < asked.Bytes(split));
  CHECK(asked.Smallest()->options == "⟦allow⟧ 8bit-states");
  asked.fixture.Capacity(asked.Bytes(eight) - 1);
  REQUIRE(asked.Bytes(sixteen) < asked.Bytes(eight));
  change = asked.Smallest();
  REQUIRE(change);
  CHECK(change->options == "⟦allow⟧ bf16-states");
  CHECK(change->found.candidate.states == sixteen.states);
  CheckFits(asked, *change);
  // States that are said stay.
  asked.fixture.inputs.space.states = asked.full.states = {eight.states};
  asked.fixture.inputs.space.states_fixed = asked.full.states_fixed = true;
  change = asked.Smallest();
  CHECK((!change || change->found.candidate.states == eight.states));
}

TEST_CASE("SmallestChange: more GPUs, doubled until they do, with what was asked") {
  Asked asked(2);
  asked.fixture.inputs.space.stages = {3};
  asked.full = asked.fixture.inputs.space;
  asked.fixture.Capacity(asked.Bytes(Choice(8, 3, 16)));
  REQUIRE(asked.Bytes(Choice(4, 3, 16)) > asked.Bytes(Choice(8, 3, 16)));
  std::optional<Change> change = asked.Smallest();
  REQUIRE(change);
  CHECK(change->options == "⟦gpus⟧ 8");
  CheckFits(asked, *change);
  // The hardware ends at 4.
  asked.most_gpus = 4;
  CHECK(!asked.Smallest());
}

TEST_CASE("SmallestChange: none where not even the runtime fits") {
  Asked asked(1);
  asked.fixture.Capacity(RuntimeBytes(asked.fixture.profile, 1));
  CHECK(!asked.Smallest());
}

// The fewest changes among all choices that fit, by lowering each.
std::optional<int> FewestChanges(const Asked& asked, int gpus) {
  std::optional<int> fewest;
  const uint64_t capacity = asked.fixture.inputs.clusters[0].cluster.gpu_capacity_bytes;
  for (Candidate c : Groups(asked.full)) {
    for (const BatchPair& batch : BatchPairs(asked.full, gpus)) {
      c.micro_batch = batch.micro_batch;
      c.grad_accum = batch.grad_accum;
      const int changes = std::popcount(Changes(c, asked.fixture.inputs.space));
      if ((!fewest || changes < *fewest) && asked.Bytes(c) <= capacity) fewest = changes;
    }
  }
  return fewest;
}

TEST_CASE("SmallestChange: nothing with fewer changes fits, whatever the memory") {
  std::array<int, 5> seen{};
  for (const auto& [gpus, stage] : {std::pair{2, 0}, {8, 0}, {1, 1}}) {
    Asked asked(gpus);
    asked.fixture.inputs.space.stages = {stage};
    const uint64_t most = asked.Bytes(Choice(gpus, stage, 16));
    const uint64_t least = asked.ClusterFor(gpus).runtime_bytes;
    asked.most_gpus = gpus;
    for (int step = 1; step <= 16; ++step) {
      asked.fixture.Capacity(most - (most - least) * static_cast<uint64_t>(step) / 17);
      CAPTURE(gpus);
      CAPTURE(step);
      const std::optional<int> fewest = FewestChanges(asked, gpus);
      const std::optional<Change> change = asked.Smallest();
      REQUIRE(change.has_value() == fewest.has_value());
      if (!change) continue;
      CAPTURE(change->options);
      CHECK(std::popcount(Changes(change->found.candidate, asked.fixture.inputs.space)) == *fewest);
      CheckFits(asked, *change);
      ++seen[static_cast<size_t>(*fewest)];
    }
  }
  CHECK(seen[0] == 0);
  for (size_t changes : {1, 2, 3}) {
    CAPTURE(changes);
    CHECK(seen[changes] >= 2);
  }
}

}  // namespace
}  // namespace zeroplan
