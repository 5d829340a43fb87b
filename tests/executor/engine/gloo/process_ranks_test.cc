// A program's ranks as processes against its ranks as threads: the same bits, the same traffic.
// Each "process" is a thread with a group and an engine of its own.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "executor/engine/engine.h"
#include "tests/agreement/memory_state.h"
#include "tests/executor/engine/small_training.h"
#include "tests/executor/process/thread_ranks.h"

namespace zeroplan {
namespace {

using small_training::CountingBatch;
using small_training::kSteps;

struct Ended {
  std::vector<std::string> states;  // after each step, as bytes
  double eval_loss = 0;
  Engine::Traffic traffic;
  std::array<uint64_t, kSpaces> touched{};
};

bool Same(const Engine::Traffic& a, const Engine::Traffic& b) {
  return a.collective_bytes == b.collective_bytes && a.scalar_bytes == b.scalar_bytes;
}

Ended Train(const Program& program, ProcessGroup* group, testing::MemoryState& saved,
            const testing::MemoryState* start) {
  Engine engine(program, {.group = group, .threads_per_rank = 1});
  engine.Init();
  if (start != nullptr) engine.Load(*start, true, nullptr);
  engine.TakeTraffic();
  const CountingBatch batch{program.setup.batch.world_size};
  Ended ended;
  for (int step = 0; step < kSteps; ++step) {
    const StepState state = engine.Step(batch);
    ended.states.emplace_back(reinterpret_cast<const char*>(&state), sizeof state);
  }
  ended.traffic = engine.TakeTraffic();
  ended.eval_loss = engine.Evaluate(batch);
  ended.touched = engine.high_water().touched_bytes;
  const std::vector<StateSink*> sinks(static_cast<size_t>(engine.local_rank_count()), &saved);
  engine.Save(sinks);
  return ended;
}

void CheckSameState(const Program& program, const testing::MemoryState& got,
                    const testing::MemoryState& want) {
  for (size_t t = 0; t < program.layout.tensors->size(); ++t) {
    CAPTURE(t);
    CHECK(std::memcmp(got.master(t).data(), want.master(t).data(),
                      want.master(t).size() * sizeof(float)) == 0);
  }
}

// Threads and processes, each from the start and then from what the other has left.
void CheckBothWays(const Program& program) {
  const int ranks = program.setup.batch.world_size;
  const std::vector<std::string> no_errors(static_cast<size_t>(ranks));
  testing::MemoryState of_threads(program.layout), of_processes(program.layout);
  const Ended threads = Train(program, nullptr, of_threads, nullptr);
  std::mutex mutex;
  const auto errors = AsRanks(ranks, [&](TcpGroup& group) {
    const Ended process = Train(program, &group, of_processes, nullptr);
    group.Barrier();
    const std::lock_guard lock(mutex);
    CHECK(process.states == threads.states);
    CHECK(process.eval_loss == threads.eval_loss);
    CHECK(Same(process.traffic, threads.traffic));
    CHECK(process.touched == threads.touched);
  });
  CHECK(errors == no_errors);
  CheckSameState(program, of_processes, of_threads);

  testing::MemoryState threads_on(program.layout), processes_on(program.layout);
  Train(program, nullptr, threads_on, &of_processes);
  const auto more = AsRanks(ranks, [&](TcpGroup& group) {
    Train(program, &group, processes_on, &of_threads);
    group.Barrier();
  });
  CHECK(more == no_errors);
  CheckSameState(program, processes_on, threads_on);
}

TEST_CASE("ranks that are processes train as threads do, to the bit, at every stage") {
  for (const int ranks : {2, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(ranks);
      CAPTURE(stage);
      CheckBothWays(Lower(small_training::SmallModel(), small_training::Setup(stage, ranks, 2),
                          {.checkpoints = true}));
    }
  }
}

TEST_CASE("ranks that are processes train as threads do in shard groups of half the ranks") {
  for (const int stage : {1, 2, 3}) {
    for (const int across : {0, 1, 2}) {
      if (across > stage) continue;  // nothing of it is partitioned
      CAPTURE(stage);
      CAPTURE(across);
      TrainSetup setup = small_training::Setup(stage, 4, 2);
      setup.zero.shard_group = 2;
      setup.zero.across_stage = across;
      CheckBothWays(Lower(small_training::SmallModel(), setup, {.checkpoints = true}));
    }
  }
}

TEST_CASE("ranks that are processes send quantized blocks as threads copy them") {
  TrainSetup setup = small_training::Setup(3, 4, 2);
  setup.zero.shard_group = 2;
  setup.zero.quantized_weights = setup.zero.quantized_gradients = true;
  CheckBothWays(Lower(small_training::SmallModel(), setup, {.checkpoints = true}));
}

TEST_CASE("a rank that fails in a step ends the others, named") {
  const Program program = Lower(small_training::SmallModel(), small_training::Setup(3, 3, 1), {});
  const auto errors = AsRanks(3, [&](TcpGroup& group) {
    Engine engine(program, {.group = &group, .threads_per_rank = 1});
    engine.Init();
    const CountingBatch batch{3};
    engine.Step(batch);
    engine.Step([&](int rank, int64_t m, std::span<int32_t> inputs, std::span<int32_t> targets) {
      if (rank == 2) throw Error(ExitCode::kRuntime, "the data is gone");
      batch(rank, m, inputs, targets);
    });
  });
  CHECK(errors == std::vector<std::string>{"rank 2: the data is gone", "rank 2: the data is gone",
                                           "the data is gone"});
}

}  // namespace
}  // namespace zeroplan
