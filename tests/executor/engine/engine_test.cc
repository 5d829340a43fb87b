#include "executor/engine/engine.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <cstddef>
#include <filesystem>
#include <thread>

#include "core/base/error.h"
#include "machine/detect.h"
#include "tests/executor/engine/tiny_program.h"

namespace zeroplan {
namespace {

using Floats = std::vector<float>;

TEST_CASE("engine: copies, kernels and an all-reduce on any number of ranks") {
  for (const int world : {1, 2, 3, 4, 8}) {
    CAPTURE(world);
    TinyProgram tiny(world);
    const BufferId x = tiny.Floats(4), sum = tiny.Floats(4);
    tiny.In(Section::kInit).Fill(tiny.All(sum));
    tiny.In(Section::kMicroStep).CopyTo(tiny.Inputs(4), tiny.All(x));
    tiny.Communicate(CollectiveKind::kAllReduce, {tiny.All(x), tiny.All(x)});
    tiny.AddTo(tiny.All(x), tiny.All(sum));
    Engine engine(tiny.program(), {});
    engine.Init();
    engine.Step(FillCounting);
    engine.Step(FillCounting);
    const auto ranks = static_cast<float>(world);
    for (int rank = 0; rank < world; ++rank) {
      const Floats values = PeekFloats(engine, rank, sum);
      for (size_t i = 0; i < 4; ++i) {
        const float once = ranks * static_cast<float>(i + 1) + 50 * ranks * (ranks - 1);
        CHECK(values[i] == 2 * once);
      }
    }
  }
}

TEST_CASE("engine: a rank has no more threads than cores that the process may use") {
  cpu_set_t all, one;
  REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
  const int cores = QueryHost().cores;
  const auto threads_of_engine = [] {
    const auto threads = [] {
      const std::filesystem::directory_iterator tasks("/proc/self/task");
      return std::distance(begin(tasks), end(tasks));
    };
    const auto before = threads();
    TinyProgram tiny(1);
    tiny.Floats(1);
    const Engine engine(tiny.program(), {});
    return threads() - before;
  };
  const auto with_all = threads_of_engine();
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
  }
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  const auto with_one = threads_of_engine();
  REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
  CHECK(with_all - with_one == cores - 1);
}

TEST_CASE("engine: rank strides give every rank its own shard") {
  TinyProgram tiny(4);
  const BufferId x = tiny.Floats(4), shard = tiny.Floats(1), whole = tiny.Floats(4);
  tiny.CopyTo(tiny.Inputs(4), tiny.All(x));
  // One element a rank, out of place; then gathered in place.
  tiny.Communicate(CollectiveKind::kReduceScatter, {tiny.All(x), tiny.All(shard)});
  tiny.CopyTo(tiny.All(shard), {whole, 0, 4, 4});
  tiny.Communicate(CollectiveKind::kAllGather, {{whole, 0, 4, 4}, tiny.All(whole)});
  Engine engine(tiny.program(), {});
  engine.Init();
  engine.Step(FillCounting);
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(PeekFloats(engine, rank, whole) == Floats{604, 608, 612, 616});
  }
}

TEST_CASE("engine: instructions belong to kinds of micro-steps") {
  for (const int64_t grad_accum : {1, 2, 4}) {
    CAPTURE(grad_accum);
    TinyProgram tiny(1, 4, grad_accum);
    const BufferId x = tiny.Floats(1), every = tiny.Floats(1), first = tiny.Floats(1),
                   later = tiny.Floats(1), last = tiny.Floats(1), steps = tiny.Floats(1);
    tiny.In(Section::kInit);
    for (const BufferId id : {every, first, later, last, steps}) tiny.Fill(tiny.All(id));
    tiny.In(Section::kMicroStep).CopyTo(tiny.Inputs(1), tiny.All(x));
    tiny.AddTo(tiny.All(x), tiny.All(every));
    tiny.When(kWritesGrads).AddTo(tiny.All(x), tiny.All(first));
    tiny.When(kAddsGrads).AddTo(tiny.All(x), tiny.All(later));
    tiny.When(kReduces).AddTo(tiny.All(x), tiny.All(last));
    // In other sections the set means nothing.
    tiny.In(Section::kOptimizerStep).When(kMiddle).AddTo(tiny.All(x), tiny.All(steps));
    Engine engine(tiny.program(), {});
    engine.Init();
    engine.Step(FillCounting);
    // Micro-step m has 10 m + 1.
    const auto g = static_cast<float>(grad_accum);
    CHECK(PeekFloats(engine, 0, every)[0] == g + 10 * g * (g - 1) / 2);
    CHECK(PeekFloats(engine, 0, first)[0] == 1);
    CHECK(PeekFloats(engine, 0, later)[0] == PeekFloats(engine, 0, every)[0] - 1);
    CHECK(PeekFloats(engine, 0, last)[0] == 10 * (g - 1) + 1);
    CHECK(PeekFloats(engine, 0, steps)[0] == 10 * (g - 1) + 1);
  }
}

TEST_CASE("engine: init finds the start state on the host; a step returns what it left there") {
  TinyProgram tiny(2, 4, 2);
  const Ref device = tiny.All(tiny.program().state_buffer);
  const Ref host = tiny.All(tiny.program().state_host_buffer);
  const Ref loss{tiny.program().state_buffer, offsetof(StepState, loss_sum), 8, 0};
  tiny.In(Section::kInit).CopyTo(host, device);
  // The batch's first two words become the loss, a double; it is summed over ranks.
  tiny.In(Section::kMicroStep).CopyTo(tiny.Inputs(2), loss);
  tiny.In(Section::kOptimizerStep);
  tiny.Communicate(CollectiveKind::kAllReduce, {loss, loss}, true, Dtype::kF64);
  tiny.CopyTo(device, host);
  Engine engine(tiny.program(), {});
  engine.Init();
  const float loss_scale = engine.state().loss_scale;
  CHECK(loss_scale > 0);
  const StepState after =
      engine.Step([](int rank, int64_t, std::span<int32_t> inputs, std::span<int32_t>) {
        const auto bits = std::bit_cast<uint64_t>(rank == 0 ? 6.0 : 10.0);
        inputs[0] = static_cast<int32_t>(bits);
        inputs[1] = static_cast<int32_t>(bits >> 32);
      });
  // Kernel step_scalars would make a mean of it; this program has none.
  CHECK(after.loss_sum == 16.0);
  CHECK(after.loss_scale == loss_scale);
}

TEST_CASE("engine: a request to stop reaches every rank after the same step") {
  TinyProgram tiny(3);
  constexpr uint64_t kAt = offsetof(StepState, stop_requested);
  const Ref device{tiny.program().state_buffer, kAt, 8, 0};
  const Ref host{tiny.program().state_host_buffer, kAt, 8, 0};
  tiny.In(Section::kOptimizerStep).CopyTo(host, device);
  tiny.Communicate(CollectiveKind::kAllReduce, {device, device}, true, Dtype::kF64);
  tiny.CopyTo(device, host);
  Engine engine(tiny.program(), {});
  engine.Init();
  CHECK(engine.Step(FillCounting).stop_requested == 0);
  engine.RequestStop();
  CHECK(engine.Step(FillCounting).stop_requested > 0);
  for (int rank = 0; rank < 3; ++rank) {
    const auto* state = reinterpret_cast<const StepState*>(
        engine.Peek(rank, tiny.program().state_host_buffer).data());
    CHECK(state->stop_requested == 1);
  }
}

TEST_CASE("engine: evaluation averages over ranks and leaves the state as it was") {
  TinyProgram tiny(4);
  const Ref state = tiny.All(tiny.program().state_host_buffer);
  const BufferId drained = tiny.Floats(1), one = tiny.Floats(1);
  tiny.In(Section::kInit).Fill(tiny.All(drained));
  tiny.In(Section::kMicroStep).CopyTo(tiny.Inputs(1), tiny.All(one));
  tiny.In(Section::kDrain).AddTo(tiny.All(one), tiny.All(drained));
  const Ref loss{tiny.program().state_host_buffer, offsetof(StepState, loss_sum), 8, 0};
  tiny.In(Section::kEval).Fill(state).CopyTo(tiny.Inputs(2), loss);
  tiny.Communicate(CollectiveKind::kAllReduce, {loss, loss}, true, Dtype::kF64);
  Engine engine(tiny.program(), {});
  engine.Init();
  engine.Step([](int, int64_t, std::span<int32_t> inputs, std::span<int32_t>) {
    inputs[0] = FloatWord(1);
  });
  const StepState before = engine.state();
  const auto evaluate = [&] {
    return engine.Evaluate([](int rank, int64_t, std::span<int32_t> inputs, std::span<int32_t>) {
      const auto bits = std::bit_cast<uint64_t>(static_cast<double>(rank));
      inputs[0] = static_cast<int32_t>(bits);
      inputs[1] = static_cast<int32_t>(bits >> 32);
    });
  };
  CHECK(evaluate() == 1.5);
  CHECK(engine.state().loss_scale == before.loss_scale);
  CHECK(engine.state().loss_sum == before.loss_sum);
  // What the step left under way is finished once, before the first evaluation.
  CHECK(evaluate() == 1.5);
  CHECK(PeekFloats(engine, 0, drained)[0] == 1);
}

TEST_CASE("engine: logits of one row, widened") {
  TinyProgram tiny(2);
  tiny.program().logits_host_buffer = tiny.Add(Space::kPinned, 8, Dtype::kBF16);
  const Ref position{tiny.program().state_host_buffer, offsetof(StepState, position), 4, 0};
  const BufferId seen = tiny.Floats(1);
  tiny.In(Section::kGenerate).CopyTo(position, tiny.All(seen));
  tiny.CopyTo({tiny.program().tokens_host_buffer, 0, 8, 0},
              tiny.All(tiny.program().logits_host_buffer));
  Engine engine(tiny.program(), {});
  engine.Init();
  // Two bf16 values a word: 1.0 is 0x3f80, 2.0 is 0x4000.
  const std::vector<int32_t> tokens = {0x40003f80, 0x3f804000, 3};
  CHECK(engine.Logits(tokens, 2) == Floats{1, 2, 2, 1});
  CHECK(std::bit_cast<int32_t>(PeekFloats(engine, 1, seen)[0]) == 2);
  CHECK(engine.state().position == 0);
  CHECK_THROWS_AS(engine.Logits(tokens, 3), CheckFailure);
}

TEST_CASE("engine: traffic by the ring's formula, copies by direction, scalars apart") {
  TinyProgram tiny(4);
  const BufferId x = tiny.Floats(4), part = tiny.Floats(1), host = tiny.Floats(4, Space::kPageable);
  tiny.CopyTo(tiny.Inputs(4), tiny.All(x));
  tiny.Communicate(CollectiveKind::kAllReduce, {tiny.All(x), tiny.All(x)});
  tiny.Communicate(CollectiveKind::kReduceScatter, {tiny.All(x), tiny.All(part)});
  tiny.Communicate(CollectiveKind::kAllGather, {tiny.All(part), tiny.All(x)});
  tiny.Communicate(CollectiveKind::kAllReduce, {tiny.All(x), tiny.All(x)}, true);
  tiny.CopyTo(tiny.All(x), tiny.All(host)).CopyTo(tiny.All(part), {host, 0, 4, 0});
  tiny.CopyTo({x, 0, 4, 0}, tiny.All(part));
  Engine engine(tiny.program(), {});
  engine.Init();
  engine.Step(FillCounting);
  const Engine::Traffic traffic = engine.TakeTraffic();
  CHECK(traffic.collective_bytes == 24 + 12 + 12);
  CHECK(traffic.scalar_bytes == 24);
  CHECK(traffic.host_to_device_bytes == 16);
  CHECK(traffic.device_to_host_bytes == 20);
  CHECK(engine.TakeTraffic().collective_bytes == 0);
}

TEST_CASE("engine: high water is what instructions touched, and the pattern agrees") {
  TinyProgram tiny(2);
  const BufferId x = tiny.Floats(4);
  const BufferId unused = tiny.Add(Space::kDevice, 4096, Dtype::kF32, false);
  tiny.Emit(Alloc{unused}).CopyTo(tiny.Inputs(2), {x, 0, 8, 8}).Emit(Free{unused});
  EngineOptions options;
  options.pattern_arenas = true;
  Engine engine(tiny.program(), options);
  engine.Init();
  engine.Step(FillCounting);
  const uint64_t end = tiny.program().buffers[x].offset + 16;
  CHECK(engine.high_water().touched_bytes[0] == end);
  CHECK(engine.PatternHighWater()[0] == end);
  CHECK(engine.high_water().touched_bytes[static_cast<size_t>(Space::kPageable)] == 0);
}

TEST_CASE("engine: the trace says what ran, and when") {
  TinyProgram tiny(2, 4, 2);
  const BufferId x = tiny.Floats(1);
  tiny.CopyTo(tiny.Inputs(1), tiny.All(x)).When(kLast).Fill(tiny.All(x));
  tiny.In(Section::kOptimizerStep).Fill(tiny.All(x));
  EngineOptions options;
  options.record_trace = true;
  Engine engine(tiny.program(), options);
  engine.Init();
  engine.Step(FillCounting);
  const std::vector<ExecutedInstruction> trace = engine.ExecutedTrace(1);
  REQUIRE(trace.size() == 4);
  CHECK(trace[0].repetition == 0);
  CHECK(trace[1].index == 0);
  CHECK(trace[1].repetition == 1);
  CHECK(trace[2].index == 1);
  CHECK(trace[3].section == Section::kOptimizerStep);
  const std::vector<TraceSpan> spans = engine.SpanTrace(0);
  REQUIRE(spans.size() == 4);
  for (size_t i = 0; i < spans.size(); ++i) {
    CHECK(spans[i].begin_seconds <= spans[i].end_seconds);
    if (i > 0) CHECK(spans[i - 1].end_seconds <= spans[i].begin_seconds);
  }
}

TEST_CASE("engine: batches are filled on the ranks' own threads") {
  TinyProgram tiny(2);
  Engine engine(tiny.program(), {});
  engine.Init();
  std::array<std::thread::id, 2> ids;
  for (int i = 0; i < 2; ++i) {
    const auto before = ids;
    engine.Step([&](int rank, int64_t, std::span<int32_t> inputs, std::span<int32_t> targets) {
      CHECK(inputs.size() == 4);
      CHECK(targets.size() == 4);
      ids[static_cast<size_t>(rank)] = std::this_thread::get_id();
    });
    if (i > 0) CHECK(before == ids);
  }
  CHECK(ids[0] != ids[1]);
  CHECK(ids[0] != std::this_thread::get_id());
}

}  // namespace
}  // namespace zeroplan
