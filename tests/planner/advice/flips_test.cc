// Reported flips against searches of the whole space on both sides.
#include "planner/advice/flips.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "hwprofiles/loader.h"
#include "planner/estimate/choices.h"
#include "tests/planner/search_fixture.h"

namespace zeroplan {
namespace {

constexpr uint64_t kFlipGB = 1'000'000'000;

// The answer to the inputs as they are.
Found Now(Searcher& searcher) {
  const std::optional<Found> found = searcher.Best({}).found;
  REQUIRE(found);
  return *found;
}

bool Same(const std::optional<Found>& found, const Found& now) {
  return found && SameKind(found->candidate, now.candidate);
}

TEST_CASE("SameKind: batch, buckets and shares make no other kind") {
  const Candidate a;
  Candidate b = a;
  b.micro_batch = 4;
  b.buckets.reduce = 100;
  CHECK(SameKind(a, b));
  b.recompute = FullRecompute(2);
  CHECK(!SameKind(a, b));
  Candidate c = b;
  c.recompute = FullRecompute();
  CHECK(SameKind(b, c));
  c.recompute = kSelectiveRecompute;
  CHECK(!SameKind(a, c));
  CHECK(!SameKind(b, c));
  c.recompute = FullRecompute(2);
  c.stage = 1;
  CHECK(!SameKind(b, c));
}

struct MemoryCase {
  const char* model;
  int gpus;
  const char* hardware;
  uint64_t gpu_bytes;
  int64_t global_batch;  // 0: open
  bool larger, flips;
};

void CheckMemoryFlip(const MemoryCase& c) {
  CAPTURE(c.model);
  CAPTURE(c.gpu_bytes);
  CAPTURE(c.larger);
  SearchFixture fixture(c.model, c.gpus, false, c.hardware);
  if (c.global_batch > 0) SetBatches(fixture.inputs.space, c.global_batch, 1024);
  fixture.Capacity(c.gpu_bytes);
  Searcher searcher(fixture.inputs);
  const Found now = Now(searcher);
  const std::optional<Flip> flip = MemoryFlip(searcher, now, c.larger);
  REQUIRE(flip.has_value() == c.flips);
  if (!flip) return;
  const auto at = static_cast<uint64_t>(flip->at);
  CAPTURE(at);
  // A searcher that remembers nothing of the bisection.
  Searcher fresh(fixture.inputs);
  Question question;
  auto answer = [&](uint64_t bytes) {
    question.gpu_capacity_bytes = bytes;
    return fresh.Best(question).found;
  };
  // "From `at` on", "below `at`".
  const std::optional<Found> beyond = answer(c.larger ? at : at - 1);
  CHECK(!Same(beyond, now));
  CHECK(Same(answer(c.larger ? at - 1 : at), now));
  REQUIRE(beyond.has_value() == flip->after.has_value());
  if (!beyond) return;
  CHECK(SameKind(beyond->candidate, flip->after->candidate));
  CHECK(beyond->gpu_bytes <= at);
}

TEST_CASE("MemoryFlip: on its two sides the whole space has different answers") {
  const char* h200 = "hgx-h200";
  for (const MemoryCase& c : {MemoryCase{"gpt2", 2, h200, 5 * kFlipGB, 0, true, true},
                              {"gpt2", 2, h200, 6 * kFlipGB, 0, false, true},
                              {"gpt2-medium", 1, h200, 5 * kFlipGB, 64, true, true}}) {
    CheckMemoryFlip(c);
  }
}

TEST_CASE("MemoryFlip: of two nodes; none where all fits without recompute") {
  for (const MemoryCase& c :
       {MemoryCase{"gpt2-xl", 16, "dgx-a100-40gb", 42 * kFlipGB, 64, false, true},
        {"gpt2-xl", 16, "dgx-a100-40gb", 42 * kFlipGB, 64, true, false}}) {
    CheckMemoryFlip(c);
  }
}

TEST_CASE("MemoryFlip: 10B on one GPU, up to a stage that keeps its parameters, down to nothing") {
  CheckMemoryFlip({"gpt2-10b", 1, "hgx-h200", 32 * kFlipGB, 512, true, true});
  CheckMemoryFlip({"gpt2-10b", 1, "hgx-h200", 32 * kFlipGB, 512, false, true});
}

TEST_CASE("BatchFlip: the kind is the present one up to it, and another there") {
  int flips = 0;
  for (const auto& [name, gpus, batch] :
       {std::tuple{"gpt2", 4, 64}, {"gpt2", 2, 32}, {"gpt2-medium", 8, 64}}) {
    ModelSpec model = LoadModel(name);
    model.layers /= 3;
    for (const bool larger : {true, false}) {
      CAPTURE(name);
      CAPTURE(larger);
      SearchFixture fixture(model, gpus);
      SetBatches(fixture.inputs.space, batch, 1024);
      Searcher searcher(fixture.inputs);
      const Found now = Now(searcher);
      const std::optional<Flip> flip = BatchFlip(searcher, now, larger);
      Searcher fresh(fixture.inputs);
      Question question;
      int64_t b = batch;
      for (int i = 0; i < 6; ++i) {
        b = larger ? b * 2 : b / 2;
        if (b < gpus || b % gpus != 0) break;
        question.global_batch = b;
        const std::optional<Found> found = fresh.Best(question).found;
        CAPTURE(b);
        if (flip && b == static_cast<int64_t>(flip->at)) {
          REQUIRE(found);
          CHECK(!Same(found, now));
          CHECK(SameKind(found->candidate, flip->after->candidate));
          ++flips;
          break;
        }
        CHECK(Same(found, now));
      }
    }
  }
  CHECK(flips >= 2);
}

// Stages 2 and 3 of gpt2-xl over two nodes of A100s, with networks of any bandwidth.
class TwoNodes {
 public:
  explicit TwoNodes(const std::string& network = "", int64_t global_batch = 64)
      : fixture("gpt2-xl", 16, false, "dgx-a100-40gb") {
    // Where whole parameters leave little room. With more, stage 2 wins at any bandwidth: its
    // gathers hide behind the next forward pass.
    fixture.Capacity(16 * kFlipGB);
    SetBatches(fixture.inputs.space, global_batch, 1024);
    SearchSpace& space = fixture.inputs.space;
    space.stages = {2, 3};
    space.recompute = {kNoRecompute, kSelectiveRecompute, FullRecompute()};
    space.offload_optimizer = {{OffloadDevice::kNone, 1}, {OffloadDevice::kCpu, 1}};
    // Reductions of whole layers: smaller ones hide so well that stage 3 stays ahead.
    space.buckets.resize(1);
    space.gathering.resize(1);
    if (!network.empty()) {
      ApplyNetwork(fixture.profile, network);
      costs_ = std::make_unique<CostModel>(fixture.profile, ClusterShape{16, 8});
      fixture.inputs.clusters[0].costs = costs_.get();
    }
  }
  ScaledLink Scaled() const { return {&fixture.profile, /*network=*/true}; }
  double present() const { return fixture.profile.network->bandwidth_per_node.value; }

  SearchFixture fixture;

 private:
  std::unique_ptr<CostModel> costs_;
};

// The stage that a search of its own finds with `--network TEXT`.
int StageWith(const std::string& network, int64_t global_batch = 64) {
  const TwoNodes nodes(network, global_batch);
  Searcher searcher(nodes.fixture.inputs);
  return Now(searcher).candidate.stage;
}

std::string Gigabits(double bytes_per_second) {
  return fmt::format("{:.6f}Gb", bytes_per_second * 8 / 1e9);
}

TEST_CASE("BandwidthFlip: stage 3 gives way to stage 2 where the network is slow") {
  const TwoNodes nodes;
  Searcher searcher(nodes.fixture.inputs);
  const Found now = Now(searcher);
  REQUIRE(now.candidate.stage == 3);
  const std::optional<Flip> slower = BandwidthFlip(searcher, now, nodes.Scaled(), false);
  REQUIRE(slower);
  REQUIRE(slower->after);
  CHECK(slower->after->candidate.stage == 2);
  CHECK(slower->at < 1);
  const double crossover = slower->at * nodes.present();
  CHECK(StageWith(Gigabits(crossover * 1.03)) == 3);
  CHECK(StageWith(Gigabits(crossover / 1.03)) == 2);
}

TEST_CASE("BandwidthFlip: and comes back from the slow side at the same bandwidth") {
  const TwoNodes fast, slow("50Gb");
  Searcher from_fast(fast.fixture.inputs), from_slow(slow.fixture.inputs);
  const Found now = Now(from_slow);
  REQUIRE(now.candidate.stage == 2);
  const std::optional<Flip> up = BandwidthFlip(from_slow, now, slow.Scaled(), true);
  REQUIRE(up);
  CHECK(up->after->candidate.stage == 3);
  const double crossover = up->at * slow.present();
  CHECK(StageWith(Gigabits(crossover * 1.03)) == 3);
  CHECK(StageWith(Gigabits(crossover / 1.03)) == 2);
  const std::optional<Flip> down = BandwidthFlip(from_fast, Now(from_fast), fast.Scaled(), false);
  REQUIRE(down);
  CHECK(crossover == doctest::Approx(down->at * fast.present()).epsilon(0.03));
}

TEST_CASE("BandwidthFlip: nothing where a slower network changes nothing") {
  const TwoNodes nodes("50Gb");
  Searcher searcher(nodes.fixture.inputs);
  const Found now = Now(searcher);
  REQUIRE(now.candidate.stage == 2);
  CHECK(!BandwidthFlip(searcher, now, nodes.Scaled(), false));
  for (const double scale : {0.25, 1.0 / 64}) CHECK(StageWith(Gigabits(scale * 50e9 / 8)) == 2);
}

TEST_CASE("BandwidthFlip: nothing where one stage alone fits") {
  TwoNodes nodes;
  nodes.fixture.Capacity(5 * kFlipGB,
                         kFlipGB);  // no room for whole parameters, nor for states on hosts
  Searcher searcher(nodes.fixture.inputs);
  const Found now = Now(searcher);
  REQUIRE(now.candidate.stage == 3);
  for (const bool faster : {true, false}) {
    CHECK(!BandwidthFlip(searcher, now, nodes.Scaled(), faster));
  }
}

}  // namespace
}  // namespace zeroplan
