// Every number of the advice, from a search or an estimate of its own.
#include "planner/advice/advice.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/base/units.h"
#include "planner/advice/flips.h"
#include "planner/advice/shard_groups.h"
#include "planner/estimate/choices.h"
#include "planner/report/report_text.h"
#include "tests/has.h"
#include "tests/planner/search_fixture.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

constexpr uint64_t kGB = 1'000'000'000;

struct AdviceCase {
  const char* model;
  int gpus;
  const char* hardware;
  uint64_t gpu_bytes;
  int64_t global_batch;  // 0: open
};

// Fewer shares and segments, so that a test takes a second.
void Shrink(SearchSpace& space) {
  space.offload_optimizer = {{OffloadDevice::kNone, 1},
                             {OffloadDevice::kCpu, 0.5},
                             {OffloadDevice::kCpu, 1},
                             {OffloadDevice::kNvme, 1}};
  space.recompute = {kNoRecompute, kSelectiveRecompute, FullRecompute(), FullRecompute(2)};
  space.buckets.resize(1);
  space.gathering.resize(1);
}

// A search with its advice.
struct Advised {
  explicit Advised(const AdviceCase& c) : fixture(c.model, c.gpus, false, c.hardware) {
    if (c.global_batch > 0) SetBatches(fixture.inputs.space, c.global_batch, 1024);
    fixture.Capacity(c.gpu_bytes);
    Shrink(fixture.inputs.space);
    searcher = std::make_unique<Searcher>(fixture.inputs);
    result = searcher->Run();
    REQUIRE(result.best);
    advice = Advise(*searcher, result, fixture.profile);
    for (const AdviceLine& line : advice.lines) lines.push_back(line.text);
  }
  const ChoiceEstimate& best() const { return result.stages[*result.best].estimate; }
  Found now() const {
    return {*result.stages[*result.best].candidate, *best().time.tokens_per_second,
            *best().time.total_seconds, best().footprint.gpu_total()};
  }
  // The lines that begin so.
  std::vector<std::string> Beginning(const std::string& start) const {
    std::vector<std::string> some;
    for (const std::string& line : lines) {
      if (line.rfind(start, 0) == 0) some.push_back(line);
    }
    return some;
  }

  SearchFixture fixture;
  std::unique_ptr<Searcher> searcher;
  SearchResult result;
  Advice advice;
  std::vector<std::string> lines;
};

// By how much the best is faster, from the two rates.
std::string SlowerText(const ChoiceEstimate& other, const ChoiceEstimate& best) {
  const double slower = *best.time.tokens_per_second / *other.time.tokens_per_second - 1;
  if (slower <= -0.0005) return fmt::format("{:.2g} % faster: a tie", -100 * slower / (1 + slower));
  return slower < 0.0005 ? "as fast" : fmt::format("{:.2g} % slower", 100 * slower);
}

// From which memory on stage `stage` fits: that much, and not one byte less.
void CheckFitsFrom(const Advised& advised, const StageBest& stage, const std::string& line) {
  SearchInputs inputs = advised.fixture.inputs;
  inputs.space.stages = {stage.stage};
  Searcher alone(inputs);
  Question question;
  question.objective = Objective::kHeadroom;
  question.gpu_capacity_bytes = UINT64_MAX / 4;
  const std::optional<Found> least = alone.Best(question).found;
  REQUIRE(least);
  CHECK(Has(line, fmt::format("It fits from {} a GPU on",
                              FormatTypedBytes(TypedBytes(least->gpu_bytes, Rounding::kUp)))));
  question.objective = Objective::kThroughput;
  question.gpu_capacity_bytes = least->gpu_bytes;
  CHECK(alone.Best(question).found);
  question.gpu_capacity_bytes = least->gpu_bytes - 1;
  CHECK(!alone.Best(question).found);
}

int CheckOthers(const Advised& advised) {
  int absent = 0;
  for (const StageBest& stage : advised.result.stages) {
    if (stage.stage == advised.best().setup.zero.stage) continue;
    const std::string name = fmt::format("tage {}", stage.stage);
    std::vector<std::string> about;
    for (const std::string& line : advised.lines) {
      const size_t at = line.find(name);
      if (at != std::string::npos && at <= 8) about.push_back(line);  // "About: stage 2"
    }
    CAPTURE(stage.stage);
    REQUIRE(about.size() == 1);
    if (stage.candidate) {
      CHECK(Has(about[0], SlowerText(stage.estimate, advised.best())));
      CHECK(Has(about[0], fmt::format("micro-batch {}", stage.candidate->micro_batch)));
      continue;
    }
    ++absent;
    CHECK(Has(about[0], fmt::format("Stage {} does not fit", stage.stage)));
    const uint64_t short_by = stage.estimate.footprint.gpu_total() -
                              advised.fixture.inputs.clusters[0].cluster.gpu_capacity_bytes;
    CHECK(Has(about[0], fmt::format("GPU memory short by {}", FormatBytes(short_by))));
    CheckFitsFrom(advised, stage, about[0]);
  }
  return absent;
}

TEST_CASE("Advise: every other stage has its paragraph, with its loss or its shortage") {
  int absent = 0;
  for (const AdviceCase& c : {AdviceCase{"gpt2", 2, "hgx-h200", 6 * kGB, 64},
                              {"gpt2-medium", 1, "dgx-2", 5 * kGB, 32},
                              {"gpt2-large", 16, "dgx-a100-40gb", 4 * kGB, 64}}) {
    CAPTURE(c.model);
    const Advised advised(c);
    absent += CheckOthers(advised);
    const std::string& chosen = advised.lines[0];
    CHECK(Has(chosen, "Chosen: " + SetupLabel(advised.best().setup)));
    CHECK(
        Has(chosen, fmt::format("{} of {} a GPU", FormatBytes(advised.best().footprint.gpu_total()),
                                FormatBytes(c.gpu_bytes))));
  }
  CHECK(absent >= 3);
}

void CheckCrossovers(const Advised& advised, bool network) {
  Searcher fresh(advised.fixture.inputs);
  const Answers answers =
      AnswersByBandwidth(fresh, advised.now(), {&advised.fixture.profile, network});
  std::vector<std::string> expected;
  for (const AnswerRange& range : answers.ranges) {
    const SearchInputs& in = advised.fixture.inputs;
    const Sharding sharding = ShardingOf(range.found.front().candidate, in.space);
    if (sharding == ShardingOf(advised.now().candidate, in.space)) continue;
    expected.push_back(fmt::format(
        "from {} to {} the answer {}", FormatBandwidth(range.from, network),
        FormatBandwidth(range.to, network), HasText(in, sharding, in.clusters.front().cluster)));
  }
  const std::vector<std::string> lines = advised.Beginning("Crossover ");
  REQUIRE(lines.size() == expected.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    CHECK(Has(lines[i], expected[i]));
    CHECK(Has(lines[i], network ? "⟦network⟧ sets it" : "⟦intra_node_bandwidth⟧ sets it"));
  }
  CHECK(advised.Beginning("No crossover").size() == (expected.empty() ? 1 : 0));
}

TEST_CASE("Advise: the crossover over the network has the ranges' numbers") {
  const Advised advised({"gpt2-xl", 16, "dgx-a100-40gb", 16 * kGB, 64});
  CheckCrossovers(advised, true);
  CHECK(!advised.Beginning("Crossover ").empty());
}

TEST_CASE("Advise: within a node the GPUs' own link is the question") {
  const Advised advised({"gpt2", 4, "hgx-h200", 100 * kGB, 64});
  CheckCrossovers(advised, false);
}

TEST_CASE("Advise: where one stage alone fits the text says that no bandwidth changes it") {
  SearchFixture fixture("gpt2-xl", 16, false, "dgx-a100-40gb");
  SetBatches(fixture.inputs.space, 64, 1024);
  fixture.Capacity(5 * kGB, kGB);
  Shrink(fixture.inputs.space);
  Searcher searcher(fixture.inputs);
  const SearchResult result = searcher.Run();
  REQUIRE(result.best);
  int said = 0;
  for (const AdviceLine& advised : Advise(searcher, result, fixture.profile).lines) {
    const std::string& line = advised.text;
    CHECK(!line.starts_with("Crossover "));
    if (!line.starts_with("No crossover between nodes")) continue;
    ++said;
    CHECK(Has(line, wording::kTheAnswerStaysWithoutShard));
    CHECK(Has(line, "between nodes"));
  }
  CHECK(said == 1);
}

TEST_CASE("Advise: where a step waits for the network, what people use beyond ZeRO is named") {
  // 400 Gb/s a node.
  const Advised slow({"gpt2-xl", 16, "p4d-24xlarge", 40 * kGB, 16});
  const TimeEstimate& time = slow.best().time;
  REQUIRE(*time.exposed_comm_seconds > 0.25 * *time.total_seconds);
  const auto beyond = slow.Beginning("Beyond ZeRO alone. ");
  REQUIRE(beyond.size() == 1);
  CHECK(Has(beyond.front(), fmt::format("{:.0f} % of a step is waiting for communication",
                                        100 * *time.exposed_comm_seconds / *time.total_seconds)));
  CHECK(Lacks(beyond.front(), "A step of"));
  const Advised fast({"gpt2-xl", 16, "dgx-a100-40gb", 40 * kGB, 512});
  REQUIRE(*fast.best().time.exposed_comm_seconds < 0.2 * *fast.best().time.total_seconds);
  CHECK(fast.Beginning("Beyond ZeRO alone. ").empty());
}

TEST_CASE("Advise: one GPU has no link to ask about") {
  const Advised advised({"gpt2", 1, "hgx-h200", 6 * kGB, 16});
  for (const std::string& line : advised.lines) {
    CAPTURE(line);
    CHECK(line.find("rossover") == std::string::npos);
    CHECK(line.find("bandwidth") == std::string::npos);
  }
}

TEST_CASE("FormatBandwidth: networks in bits, links in bytes") {
  CHECK(FormatBandwidth(3.125e9, true) == "25 Gb/s");
  CHECK(FormatBandwidth(400e9, true) == "3200 Gb/s");
  CHECK(FormatBandwidth(300e9, false) == "300 GB/s");
  CHECK(FormatBandwidth(18.44e9, false) == "18.4 GB/s");
}

}  // namespace
}  // namespace zeroplan
