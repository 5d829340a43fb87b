// How ranks that share a process run and fail together, and when a rank drains, with ranks that
// only write down what they are told.
#include "executor/engine/local_ranks.h"

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "tests/executor/engine/tiny_program.h"

namespace zeroplan {
namespace {

using Words = std::vector<std::string>;

class NotingRank : public RankRunner {
 public:
  NotingRank(const Program& program, int rank) : RankRunner(program, rank, false) {}

  StepTimes Finish() override {
    said.emplace_back("finish");
    return {};
  }
  void Abort(const std::exception_ptr&) noexcept override { ++aborts; }
  void Interrupt(const std::exception_ptr&) noexcept override { ++interrupts; }
  Standing standing() const override { return {rank_, PlaceText(), false}; }
  std::vector<TraceSpan> spans() const override { return {}; }
  std::array<uint64_t, kSpaces> PatternHighWater() const override { return {}; }
  std::span<const std::byte> Peek(BufferId) override { return {}; }

  Words said;
  int aborts = 0, interrupts = 0;

 protected:
  void Issue(Section section, When, int) override { said.emplace_back(SectionName(section)); }
  RankFiles& files() override { return files_; }
  const ArenaBases& bases() const override { return bases_; }

 private:
  const SwapFile no_file_;
  RankFiles files_{program_, rank_, no_file_};
  const ArenaBases bases_{};
};

LocalRanks::MakeRank Noting(const Program& program) {
  return [&program](int rank) { return std::make_unique<NotingRank>(program, rank); };
}

int AbortsOf(const LocalRanks& ranks, int rank) {
  return dynamic_cast<const NotingRank&>(ranks.of(rank)).aborts;
}

TEST_CASE("rank: drains once after a step, and not before the first") {
  const TinyProgram tiny(1);
  NotingRank rank(tiny.program(), 0);
  rank.Drain();
  rank.Complete(Section::kInit);
  CHECK(rank.said == Words{"init", "finish"});
  rank.said.clear();
  rank.Run(Section::kMicroStep);
  rank.Run(Section::kOptimizerStep);
  rank.Finish();
  rank.Run(Section::kMicroStep);
  rank.Run(Section::kOptimizerStep);
  rank.Drain();
  rank.Drain();
  rank.Complete(Section::kEval);
  rank.Drain();
  CHECK(rank.said == Words{"micro_step", "optimizer_step", "finish", "micro_step", "optimizer_step",
                           "drain", "finish", "eval", "finish"});
}

TEST_CASE("local ranks: each is called with its index, on a thread of its own") {
  const TinyProgram tiny(3);
  LocalRanks ranks(4, 3, LocalRanks::Threads::kOwn, Noting(tiny.program()));
  CHECK(ranks.first() == 4);
  CHECK(ranks.count() == 3);
  std::array<RankRunner*, 3> called{};
  std::array<std::thread::id, 3> threads;
  ranks.OnEvery([&](RankRunner& rank, int index) {
    called.at(static_cast<size_t>(index)) = &rank;
    threads.at(static_cast<size_t>(index)) = std::this_thread::get_id();
  });
  for (int index = 0; index < 3; ++index) {
    CHECK(called.at(static_cast<size_t>(index)) == &ranks.of(4 + index));
    CHECK(threads.at(static_cast<size_t>(index)) != std::this_thread::get_id());
  }
  CHECK(&ranks.front() == &ranks.of(4));
  CHECK_THROWS_WITH_AS(ranks.of(3), doctest::Contains("another process"), CheckFailure);
  CHECK_THROWS_WITH_AS(ranks.of(7), doctest::Contains("another process"), CheckFailure);
}

TEST_CASE("local ranks: the only rank of a process runs where it is called") {
  const TinyProgram tiny(2);
  LocalRanks ranks(1, 1, LocalRanks::Threads::kCallers, Noting(tiny.program()));
  std::thread::id thread;
  ranks.OnEvery([&](RankRunner&, int) { thread = std::this_thread::get_id(); });
  CHECK(thread == std::this_thread::get_id());
  CHECK_THROWS_AS(LocalRanks(0, 2, LocalRanks::Threads::kCallers, Noting(tiny.program())),
                  CheckFailure);
}

TEST_CASE("local ranks: the first failure aborts its rank, and stays") {
  const TinyProgram tiny(3);
  for (const auto threads : {LocalRanks::Threads::kOwn, LocalRanks::Threads::kCallers}) {
    const int count = threads == LocalRanks::Threads::kOwn ? 3 : 1;
    LocalRanks ranks(0, count, threads, Noting(tiny.program()));
    const int bad = count - 1;
    const auto fail = [&](RankRunner&, int index) {
      if (index == bad) throw Error(ExitCode::kRuntime, "the disk is full");
    };
    CHECK_THROWS_WITH_AS(ranks.OnEvery(fail), "the disk is full", Error);
    for (int rank = 0; rank < count; ++rank) CHECK(AbortsOf(ranks, rank) == (rank == bad ? 1 : 0));
    bool ran = false;
    CHECK_THROWS_WITH_AS(ranks.OnEvery([&](RankRunner&, int) { ran = true; }), "the disk is full",
                         Error);
    CHECK_FALSE(ran);
    CHECK(AbortsOf(ranks, bad) == 1);
  }
}

TEST_CASE("local ranks: of several failures one counts") {
  const TinyProgram tiny(4);
  LocalRanks ranks(0, 4, LocalRanks::Threads::kOwn, Noting(tiny.program()));
  CHECK_THROWS_AS(ranks.OnEvery([](RankRunner&, int index) {
    throw Error(ExitCode::kRuntime, std::to_string(index));
  }),
                  Error);
  int aborts = 0;
  for (int rank = 0; rank < 4; ++rank) aborts += AbortsOf(ranks, rank);
  CHECK(aborts == 1);
}

TEST_CASE("local ranks: what fails while a rank is made is thrown") {
  const TinyProgram tiny(2);
  const auto make = [&](int rank) -> std::unique_ptr<RankRunner> {
    if (rank == 1) throw Error(ExitCode::kRuntime, "no memory for rank 1");
    return std::make_unique<NotingRank>(tiny.program(), rank);
  };
  CHECK_THROWS_WITH_AS(LocalRanks(0, 2, LocalRanks::Threads::kOwn, make), "no memory for rank 1",
                       Error);
}

}  // namespace
}  // namespace zeroplan
