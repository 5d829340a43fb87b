// Reported flips against searches of the whole space on both sides.
#include "planner/advice/flips.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "core/base/units.h"
#include "hwprofiles/fields.h"
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
};

TEST_CASE("AnswersByMemory: at every memory a search of its own has the answer of its range") {
  const char* h200 = "hgx-h200";
  int changes = 0;
  for (const MemoryCase& c : {MemoryCase{"gpt2", 2, h200, 5 * kFlipGB, 0},
                              {"gpt2-medium", 1, h200, 5 * kFlipGB, 64},
                              {"gpt2-xl", 16, "dgx-a100-40gb", 42 * kFlipGB, 64},
                              {"gpt2-10b", 1, h200, 32 * kFlipGB, 512}}) {
    CAPTURE(c.model);
    SearchFixture fixture(c.model, c.gpus, false, c.hardware);
    if (c.global_batch > 0) SetBatches(fixture.inputs.space, c.global_batch, 1024);
    fixture.Capacity(c.gpu_bytes);
    Searcher searcher(fixture.inputs);
    const Found now = Now(searcher);
    const Answers answers = AnswersByMemory(searcher, now);
    REQUIRE(!answers.ranges.empty());
    double last = 0;
    for (const AnswerRange& range : answers.ranges) {
      CHECK(range.from >= last);
      last = range.to;
      for (const double share : {0.0, 0.3, 0.9, 1.0}) {
        const auto bytes = static_cast<uint64_t>(range.from + share * (range.to - range.from));
        if (bytes == 0) continue;
        CAPTURE(bytes);
        Question question;
        question.gpu_capacity_bytes = bytes;
        // It remembers nothing of the sweep.
        const Answer answer = Searcher(fixture.inputs, searcher).Best(question);
        REQUIRE(answer.found.has_value() == !range.found.empty());
        if (!answer.found || answer.gap > 0) continue;
        CHECK(std::any_of(range.found.begin(), range.found.end(), [&](const Found& found) {
          return SameKind(found.candidate, answer.found->candidate);
        }));
      }
      changes += !range.found.empty() && !Same(range.found.front(), now);
    }
  }
  CHECK(changes >= 4);
}

TEST_CASE(
    "AnswersByMemory: the last range below is where nothing fits, to the byte's four digits") {
  SearchFixture fixture("gpt2", 1);
  SearchSpace& space = fixture.inputs.space;
  space.stages = {0};
  space.offload_optimizer.resize(1);
  space.offload_param.resize(1);
  space.recompute = {kNoRecompute};
  fixture.Capacity(8 * kFlipGB);
  Searcher searcher(fixture.inputs);
  const Answers answers = AnswersByMemory(searcher, Now(searcher));
  REQUIRE(!answers.ranges.empty());
  const AnswerRange& last = answers.ranges.front();
  CHECK(last.from == 0);
  CHECK(last.found.empty());
  Question question;
  question.gpu_capacity_bytes = static_cast<uint64_t>(last.to);
  CHECK(!searcher.Best(question).found);
  question.gpu_capacity_bytes = TypedBytes(static_cast<uint64_t>(last.to) + 1, Rounding::kUp);
  CHECK(searcher.Best(question).found);
}

TEST_CASE("TypedBytes: four digits, and what they print is what one types") {
  CHECK(TypedBytes(69'123'456'789, Rounding::kUp) == 69'130'000'000);
  CHECK(TypedBytes(69'123'456'789, Rounding::kDown) == 69'120'000'000);
  CHECK(TypedBytes(69'120'000'000, Rounding::kUp) == 69'120'000'000);
  for (const uint64_t bytes : {69'120'000'000ULL, 107'200'000'000ULL, 1'358'000'000'000ULL,
                               9'600'000'000ULL, 500'000'000ULL}) {
    CHECK(ParseBytes(FormatTypedBytes(bytes), "") == bytes);
  }
  CHECK(FormatTypedBytes(69'100'000'000) == "69.1 GB");
}

TEST_CASE("AnswersByBatch: the kind is the present one up to the first change, and another there") {
  int flips = 0;
  for (const auto& [name, gpus, batch] :
       {std::tuple{"gpt2", 4, 64}, {"gpt2", 2, 32}, {"gpt2-medium", 8, 64}}) {
    ModelSpec model = LoadModel(name);
    model.layers /= 3;
    CAPTURE(name);
    SearchFixture fixture(model, gpus);
    SetBatches(fixture.inputs.space, batch, 1024);
    Searcher searcher(fixture.inputs);
    const Found now = Now(searcher);
    const Answers answers = AnswersByBatch(searcher, now);
    for (size_t i = 0; i < answers.ranges.size(); ++i) {
      const AnswerRange& range = answers.ranges[i];
      Question question;
      question.global_batch = static_cast<int64_t>(range.from);
      const std::optional<Found> found = Searcher(fixture.inputs, searcher).Best(question).found;
      REQUIRE(found);
      CHECK(SameKind(found->candidate, range.found.front().candidate));
      const bool end = i == 0 || i + 1 == answers.ranges.size();
      if (!end) CHECK(Same(found, now));
      flips += !Same(found, now);
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
    space.groupings.resize(1);
    if (!network.empty()) {
      ApplyNetwork(fixture.profile, network);
      costs_ = std::make_unique<CostModel>(fixture.profile, ClusterShape{16, 8});
      fixture.inputs.clusters[0].costs = costs_.get();
    }
  }
  OtherLink Link() const { return {&fixture.profile, /*network=*/true}; }

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

TEST_CASE("AnswersByBandwidth: a search of the whole space has each range's stage at its ends") {
  int crossovers = 0;
  for (const char* network : {"", "50Gb"}) {
    const TwoNodes nodes(network);
    Searcher searcher(nodes.fixture.inputs);
    const Answers answers = AnswersByBandwidth(searcher, Now(searcher), nodes.Link());
    REQUIRE(!answers.ranges.empty());
    const AnswerRange* last = nullptr;
    for (const AnswerRange& range : answers.ranges) {
      CHECK(StageWith(Gigabits(range.from)) == range.found.front().candidate.stage);
      CHECK(StageWith(Gigabits(range.to)) == range.found.front().candidate.stage);
      if (last != nullptr) {
        ++crossovers;
        CHECK(range.from <= last->to * 1.03);
      }
      last = &range;
    }
  }
  CHECK(crossovers >= 2);
}

TEST_CASE("AnswersByBandwidth: where groups are searched, each range has its groups at its ends") {
  TwoNodes nodes("50Gb");
  SearchSpace& space = nodes.fixture.inputs.space;
  space.groupings = {{}, {8, 0}, {8, 1}, {4, 1}};
  Searcher searcher(nodes.fixture.inputs);
  const Answers answers = AnswersByBandwidth(searcher, Now(searcher), nodes.Link());
  REQUIRE(!answers.ranges.empty());
  for (const AnswerRange& range : answers.ranges) {
    for (const double rate : {range.from, range.to}) {
      TwoNodes typed(Gigabits(rate));
      typed.fixture.inputs.space.groupings = space.groupings;
      Searcher own(typed.fixture.inputs);
      CHECK(Now(own).candidate.grouping.ranks == range.found.front().candidate.grouping.ranks);
    }
  }
}

TEST_CASE(
    "BestAtBandwidth: with the present rate no worse than the present answer, whatever the "
    "budget") {
  TwoNodes nodes("50Gb");
  Searcher searcher(nodes.fixture.inputs);
  const Found now = Now(searcher);
  nodes.fixture.inputs.effort = 1e-6;
  // It remembers nothing of the answer.
  Searcher hasty(nodes.fixture.inputs, searcher);
  const double present = nodes.Link().Typed(nodes.Link().present());
  const Answer answer = hasty.BestAtBandwidth(now, nodes.Link(), present, Budget::kPart);
  REQUIRE(answer.found);
  CHECK(answer.found->merit >= now.merit * (1 - 1e-9));
}

TEST_CASE("AnswersByBandwidth: one range where one stage alone fits") {
  TwoNodes nodes;
  nodes.fixture.Capacity(5 * kFlipGB,
                         kFlipGB);  // no room for whole parameters, nor for states on hosts
  Searcher searcher(nodes.fixture.inputs);
  const Found now = Now(searcher);
  REQUIRE(now.candidate.stage == 3);
  const Answers answers = AnswersByBandwidth(searcher, now, nodes.Link());
  REQUIRE(answers.ranges.size() == 1);
  CHECK(answers.ranges[0].from < nodes.Link().present() / 15);
}

TEST_CASE("OtherLink: rates are those of the options, three digits, within what is physical") {
  const HardwareProfile pcie = LoadProfile("8x-a100-80gb-pcie");
  const OtherLink link = {&pcie, false};
  CHECK(link.Typed(11.4567e9) == 11.5e9);
  CHECK(link.Typed(1) == figure_rules::kLink.low);
  HardwareProfile typed = pcie;
  ApplyGpuLink(typed, "11.5GB/s");
  CHECK(link.Profile(11.5e9).node.gpu_link.value == typed.node.gpu_link.value);
  CHECK(!link.Profile(11.5e9).node.collectives);
}

}  // namespace
}  // namespace zeroplan
