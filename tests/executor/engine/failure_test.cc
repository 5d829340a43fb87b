// What happens when a rank fails, or a program is wrong.
#include <doctest/doctest.h>

#include "core/base/error.h"
#include "executor/device/arena.h"
#include "executor/engine/engine.h"
#include "tests/executor/engine/tiny_program.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

std::string FailureOf(const Program& program) {
  try {
    Engine engine(program, {});
  } catch (const CheckFailure& failure) {
    return failure.what();
  }
  return "none";
}

TEST_CASE("failure: one rank's error ends the step for all, and every later one") {
  TinyProgram tiny(4);
  const BufferId x = tiny.Floats(4);
  tiny.CopyTo(tiny.Inputs(4), tiny.All(x));
  tiny.Communicate(CollectiveKind::kAllReduce, {tiny.All(x), tiny.All(x)});
  Engine engine(tiny.program(), {});
  engine.Init();
  engine.Step(FillCounting);
  const auto fill = [](int rank, int64_t, std::span<int32_t>, std::span<int32_t>) {
    if (rank == 2) throw Error(ExitCode::kRuntime, "the data ended");
  };
  CHECK_THROWS_WITH_AS(engine.Step(fill), "the data ended", Error);
  CHECK_THROWS_WITH_AS(engine.Step(FillCounting), "the data ended", Error);
  CHECK_THROWS_WITH_AS(engine.Evaluate(FillCounting), "the data ended", Error);
}

TEST_CASE("failure: a swap folder that is not there is named when the engine is built") {
  TinyProgram tiny(2);
  tiny.Add(Space::kFile, 4096);
  EngineOptions options;
  options.swap_dir = "/nonexistent/zeroplan";
  try {
    Engine engine(tiny.program(), options);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    CHECK(std::string(error.what()).find("/nonexistent/zeroplan") != std::string::npos);
  }
}

TEST_CASE("failure: a file arena without room is an error of the run") {
  const TempDir dir;
  TinyProgram tiny(1);
  tiny.Add(Space::kFile, uint64_t{1} << 58);
  EngineOptions options;
  options.swap_dir = dir.path();
  CHECK_THROWS_AS(Engine(tiny.program(), options), Error);
}

TEST_CASE("failure: a reference outside its buffer is found before anything runs") {
  TinyProgram tiny(2);
  const BufferId x = tiny.Floats(4);
  // Rank 0 stays inside, rank 1 does not.
  tiny.CopyTo(tiny.Inputs(1), tiny.All(tiny.Floats(1))).CopyTo(tiny.Inputs(4), {x, 0, 16, 16});
  const std::string message = FailureOf(tiny.program());
  CHECK(message.find("outside") != std::string::npos);
  CHECK(message.find("-->") != std::string::npos);
}

TEST_CASE("failure: sizes that do not match are found before anything runs") {
  for (const auto kind :
       {CollectiveKind::kReduceScatter, CollectiveKind::kAllGather, CollectiveKind::kAllReduce}) {
    TinyProgram tiny(2);
    const BufferId x = tiny.Floats(6), y = tiny.Floats(4);
    tiny.Communicate(kind, {tiny.All(x), tiny.All(y)});
    CHECK(FailureOf(tiny.program()) != "none");
  }
  TinyProgram copy(1);
  copy.CopyTo(copy.Inputs(2), copy.All(copy.Floats(1)));
  CHECK(FailureOf(copy.program()).find("copy of 8 bytes to 4") != std::string::npos);
  TinyProgram past(1);
  past.Floats(4);
  past.Emit(Alloc{past.Floats(4)});
  past.program().arena_bytes[0] -= 4;
  CHECK(FailureOf(past.program()).find("past its arena") != std::string::npos);
}

#ifdef ZEROPLAN_ASAN
TEST_CASE("failure: buffers are poisoned outside their lifetime") {
  TinyProgram tiny(1);
  const BufferId x = tiny.Add(Space::kDevice, 64, Dtype::kF32, false);
  const BufferId y = tiny.Add(Space::kDevice, 64, Dtype::kF32, false);
  tiny.Emit(Alloc{x}).Fill(tiny.All(x)).Emit(Alloc{y}).Emit(Free{x});
  Engine engine(tiny.program(), {});
  engine.Init();
  CHECK(__asan_address_is_poisoned(engine.Peek(0, x).data()));
  CHECK_FALSE(__asan_address_is_poisoned(engine.Peek(0, tiny.program().state_buffer).data()));
  engine.Step(FillCounting);
  CHECK(__asan_address_is_poisoned(engine.Peek(0, x).data()));
  CHECK_FALSE(__asan_address_is_poisoned(engine.Peek(0, y).data()));
  CHECK(__asan_address_is_poisoned(engine.Peek(0, y).data() + 64));
}
#endif

}  // namespace
}  // namespace zeroplan
