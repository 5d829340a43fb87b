// Programs that searches share: what they say is what the choice's own program says.
#include "planner/search/lowered_programs.h"

#include <doctest/doctest.h>

#include "core/program/collectives.h"
#include "planner/search/search.h"
#include "tests/planner/search_fixture.h"

namespace zeroplan {
namespace {

// Of gpt2 with 3 layers on 8 GPUs.
SearchFixture SmallFixture() {
  ModelSpec model = LoadModel("gpt2");
  model.layers = 3;
  return SearchFixture(model, 8);
}

LoweredPrograms ProgramsOf(const SearchInputs& inputs, uint64_t most_bytes) {
  return LoweredPrograms(inputs.model, inputs.base, inputs.lower, most_bytes);
}

std::vector<Candidate> SomeCandidates() {
  std::vector<Candidate> all;
  for (const int stage : {0, 2, 3}) {
    for (const OffloadDevice device : {OffloadDevice::kNone, OffloadDevice::kCpu}) {
      if (stage == 0 && device != OffloadDevice::kNone) continue;
      for (const RecomputeConfig& recompute : {kNoRecompute, FullRecompute()}) {
        for (const int64_t accum : {1, 2, 3, 7}) {
          Candidate c;
          c.gpus = 8;
          c.stage = stage;
          c.optimizer.device = device;
          c.recompute = recompute;
          c.micro_batch = 2;
          c.grad_accum = accum;
          all.push_back(c);
        }
      }
    }
  }
  return all;
}

TEST_CASE("a lowered choice has the memory, the time and the size of its program") {
  const SearchFixture fixture = SmallFixture();
  const SearchInputs& in = fixture.inputs;
  LoweredPrograms programs = ProgramsOf(in, LoweredPrograms::kMostBytes);
  // An update's speed hangs on how much of its states the host's caches hold.
  HardwareProfile profile = fixture.profile;
  profile.node.host_updates.emplace();
  profile.node.host_updates->rows = {{1e8, 0.5e-3}, {10e9, 200e-3}};
  const CostModel costs(profile, ClusterShape{8, 8});
  StepTimer timer(costs);
  for (const Candidate& c : SomeCandidates()) {
    CAPTURE(SetupOf(c, in.base).zero.stage);
    CAPTURE(c.grad_accum);
    const Program program = Lower(in.model, SetupOf(c, in.base), in.lower);
    const std::shared_ptr<const LoweredChoice> lowered = programs.Of(c);
    CHECK(lowered->arena_bytes == program.arena_bytes);
    CHECK(lowered->live_peak_bytes == program.live_peak_bytes);
    CHECK(lowered->outside == OutsideArenasOf(program));
    CHECK(timer.Play(lowered->step).Of(c.grad_accum).total_seconds ==
          timer.Time(program).total_seconds);
    if (c.grad_accum > 3) continue;
    size_t instructions = 0;
    for (const auto& section : program.sections) instructions += section.size();
    CHECK(lowered->instructions == instructions);
  }
}

TEST_CASE("what is counted of a program is its size, whatever was lowered before") {
  SearchFixture fixture = SmallFixture();
  SearchInputs& in = fixture.inputs;
  for (const uint64_t chunk_bytes : {in.lower.logits_chunk_bytes, uint64_t{50'000'000}}) {
    in.lower.logits_chunk_bytes = chunk_bytes;
    LoweredPrograms programs = ProgramsOf(in, LoweredPrograms::kMostBytes);
    for (const int64_t micro_batch : {3, 1, 64, 2, 17, 40, 4}) {
      for (Candidate c : SomeCandidates()) {
        c.micro_batch = micro_batch;
        for (const OffloadDevice param : {OffloadDevice::kNone, OffloadDevice::kNvme}) {
          if (c.stage < 3 && param != OffloadDevice::kNone) continue;
          c.param = param;
          CAPTURE(chunk_bytes);
          CAPTURE(micro_batch);
          c.grad_accum = std::min<int64_t>(c.grad_accum, 3);
          const Program program = Lower(in.model, SetupOf(c, in.base), in.lower);
          const auto lowered = programs.Of(c);
          size_t instructions = 0;
          for (const auto& section : program.sections) instructions += section.size();
          CHECK(lowered->instructions == instructions);
          CHECK(lowered->arena_bytes == program.arena_bytes);
          CHECK(lowered->live_peak_bytes == program.live_peak_bytes);
          CHECK(lowered->outside.graph_bytes == OutsideArenasOf(program).graph_bytes);
        }
      }
    }
  }
}

TEST_CASE("a choice is lowered once, until there are too many others") {
  const SearchFixture fixture = SmallFixture();
  const std::vector<Candidate> all = SomeCandidates();
  LoweredPrograms programs = ProgramsOf(fixture.inputs, LoweredPrograms::kMostBytes);
  const auto first = programs.Of(all[0]);
  CHECK(programs.Of(all[0]) == first);
  CHECK(programs.Of(all[1]) != first);
  CHECK(programs.Of(all[2]) == programs.Of(all[3]));  // 3 micro-steps and 7
  CHECK(programs.Of(all[0]) == first);

  LoweredPrograms few = ProgramsOf(fixture.inputs, 1);
  const auto one = few.Of(all[0]);
  CHECK(few.Of(all[0]) == one);
  const auto other = few.Of(all[1]);
  CHECK(few.Of(all[1]) == other);
  const auto again = few.Of(all[0]);
  CHECK(again != one);
  CHECK(again->arena_bytes == one->arena_bytes);
}

TEST_CASE("a searcher like another answers as one of its own, at the same cost") {
  const SearchFixture fixture = SmallFixture();
  Searcher first(fixture.inputs);
  const SearchResult result = first.Run();
  REQUIRE(result.best);
  SearchInputs inputs = fixture.inputs;
  inputs.space.stages = {2, 3};
  Searcher like(inputs, first), alone(inputs);
  for (const Objective objective : {Objective::kThroughput, Objective::kHeadroom}) {
    Question question;
    question.objective = objective;
    question.instruction_budget = 200'000;
    const Answer shared = like.Best(question), own = alone.Best(question);
    REQUIRE(shared.found);
    REQUIRE(own.found);
    CHECK(shared.found->candidate == own.found->candidate);
    CHECK(shared.found->step_seconds == own.found->step_seconds);
    CHECK(shared.found->gpu_bytes == own.found->gpu_bytes);
    CHECK(shared.gap == own.gap);
  }
  CHECK(like.instructions_lowered() == alone.instructions_lowered());
}

}  // namespace
}  // namespace zeroplan
