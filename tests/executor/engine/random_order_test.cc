#include <doctest/doctest.h>

#include <set>

#include "executor/engine/cpu_rank.h"
#include "executor/engine/engine.h"
#include "tests/executor/engine/tiny_program.h"

namespace zeroplan {
namespace {

constexpr int kSeeds = 40;

EngineOptions Seeded(int seed) {
  EngineOptions options;
  options.random_order_seed = static_cast<uint64_t>(seed);
  options.record_trace = true;
  return options;
}

// A transfer on one stream and its use on another; sum holds x as the use saw it.
struct TransferAndUse {
  TinyProgram tiny{2};
  BufferId x, sum;

  explicit TransferAndUse(bool wait) : x(tiny.Floats(4)), sum(tiny.Floats(4)) {
    const EventId arrived = tiny.NewEvent();
    tiny.In(Section::kInit).Fill(tiny.All(x)).Fill(tiny.All(sum));
    tiny.In(Section::kMicroStep).On(Stream::kHostToDevice);
    tiny.CopyTo(tiny.Inputs(4), tiny.All(x)).Emit(RecordEvent{arrived});
    tiny.On(Stream::kCompute);
    if (wait) tiny.Emit(WaitEvent{arrived});
    tiny.AddTo(tiny.All(x), tiny.All(sum));
  }
  std::vector<float> Run(const EngineOptions& options) const {
    Engine engine(tiny.program(), options);
    engine.Init();
    engine.Step(FillCounting);
    return PeekFloats(engine, 1, sum);
  }
};

TEST_CASE("random order: a missing wait shows, a present one does not") {
  const TransferAndUse complete(true), incomplete(false);
  const std::vector<float> expected = complete.Run({});
  CHECK(expected == std::vector<float>{101, 102, 103, 104});
  CHECK(incomplete.Run({}) == expected);  // list order hides it
  int wrong = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    CHECK(complete.Run(Seeded(seed)) == expected);
    wrong += incomplete.Run(Seeded(seed)) != expected ? 1 : 0;
  }
  CHECK(wrong > 0);
  CHECK(wrong < kSeeds);
}

TEST_CASE("random order: the same on all ranks, so that collectives on two streams match") {
  TinyProgram tiny(3);
  const BufferId a = tiny.Floats(2), b = tiny.Floats(2);
  const EventId copied = tiny.NewEvent();
  tiny.CopyTo(tiny.Inputs(2), tiny.All(a)).CopyTo(tiny.Inputs(2), tiny.All(b));
  tiny.Emit(RecordEvent{copied});
  for (int i = 0; i < 4; ++i) {
    tiny.On(Stream::kGather).Emit(WaitEvent{copied});
    tiny.Communicate(CollectiveKind::kAllReduce, {tiny.All(a), tiny.All(a)});
    tiny.On(Stream::kReduce).Emit(WaitEvent{copied});
    tiny.Communicate(CollectiveKind::kAllReduce, {tiny.All(b), tiny.All(b)});
  }
  std::set<std::vector<int32_t>> orders;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    Engine engine(tiny.program(), Seeded(seed));
    engine.Init();
    engine.Step(FillCounting);
    CHECK(PeekFloats(engine, 2, a) == PeekFloats(engine, 0, b));
    CHECK(PeekFloats(engine, 2, a)[0] == 303 * 27);
    std::vector<int32_t> order;
    for (const ExecutedInstruction& executed : engine.ExecutedTrace(0)) {
      order.push_back(executed.index);
    }
    std::vector<int32_t> other;
    for (const ExecutedInstruction& executed : engine.ExecutedTrace(2)) {
      other.push_back(executed.index);
    }
    CHECK(order == other);
    orders.insert(order);
  }
  CHECK(orders.size() > 8);
}

TEST_CASE("random order: every instruction once, in list order within a stream") {
  Program program;
  program.event_count = 2;
  std::vector<Instruction>& section = program.section(Section::kDrain);
  for (int i = 0; i < 60; ++i) {
    const auto stream = static_cast<Stream>(i % kStreams);
    Op op = WaitEvent{static_cast<EventId>(i % 2)};
    if (i % 3 == 0) op = RecordEvent{static_cast<EventId>(i % 2)};
    section.push_back({op, stream, kOnly});
  }
  RandomOrder random_order(program, 5);
  for (int round = 0; round < 20; ++round) {
    std::vector<size_t> order;
    random_order.Run(Section::kDrain, kOnly,
                     [&](Section, size_t index, bool) { order.push_back(index); });
    REQUIRE(order.size() == section.size());
    CHECK(std::set<size_t>(order.begin(), order.end()).size() == section.size());
    std::array<int, kStreams> last;
    last.fill(-1);
    std::vector<bool> done(section.size());
    for (const size_t index : order) {
      auto& before = last[static_cast<size_t>(section[index].stream)];
      CHECK(before < static_cast<int>(index));
      before = static_cast<int>(index);
      if (const auto* wait = std::get_if<WaitEvent>(&section[index].op)) {
        // The last record before it in the list has run.
        for (size_t i = index; i-- > 0;) {
          const auto* record = std::get_if<RecordEvent>(&section[i].op);
          if (record == nullptr || record->event != wait->event) continue;
          CHECK(done[i]);
          break;
        }
      }
      done[index] = true;
    }
  }
}

TEST_CASE("random order: a micro-step leaves to the next one what nothing in it waits for") {
  // A reduction, a copy that waits for it, and the event after both, for the next micro-step's end.
  Program program;
  program.event_count = 2;
  std::vector<Instruction>& list = program.section(Section::kMicroStep);
  const auto add = [&](Op op, Stream stream, uint8_t when) { list.push_back({op, stream, when}); };
  add(LaunchKernel{KernelId::kFill}, Stream::kCompute, kEvery);
  add(WaitEvent{1}, Stream::kCompute, kMiddle | kLast);
  add(LaunchKernel{KernelId::kFill}, Stream::kCompute, kEvery);
  add(Collective{CollectiveKind::kReduceScatter, Dtype::kF32}, Stream::kReduce, kEvery);
  add(RecordEvent{0}, Stream::kReduce, kEvery);
  add(WaitEvent{0}, Stream::kDeviceToHost, kEvery);
  add(Copy{}, Stream::kDeviceToHost, kEvery);
  add(RecordEvent{1}, Stream::kDeviceToHost, kEvery);
  add(WaitEvent{1}, Stream::kCompute, kOnly | kLast);
  std::set<size_t> left;  // how many instructions the first micro-step left
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    RandomOrder random_order(program, seed);
    for (const When kind : {kFirst, kMiddle, kMiddle, kLast}) {
      size_t from_before = 0, own = 0;
      bool waited = false;
      random_order.Run(Section::kMicroStep, kind, [&](Section, size_t index, bool was_left) {
        (was_left ? from_before : own) += 1;
        if (!was_left && index == 1) waited = true;
        // The event in front of the second kernel is the micro-step's before this one.
        if (was_left) CHECK(!waited);
      });
      if (kind == kMiddle) left.insert(from_before);
      if (kind == kLast) CHECK(own == list.size());
    }
  }
  // The reduction with all that follows it; the copy; an event alone; nothing.
  CHECK(left.count(0) == 1);
  CHECK(left.count(5) == 1);
  CHECK(left.size() == 6);
}

TEST_CASE("random order: what is left may wait for what the micro-step before its own recorded") {
  // The host waits for the copy of the micro-step before, and its own copy waits for the host.
  Program program;
  program.event_count = 2;
  std::vector<Instruction>& list = program.section(Section::kMicroStep);
  const auto add = [&](Op op, Stream stream, uint8_t when) { list.push_back({op, stream, when}); };
  add(LaunchKernel{KernelId::kFill}, Stream::kCompute, kEvery);
  add(WaitEvent{0}, Stream::kHost, kMiddle | kLast);
  add(RecordEvent{1}, Stream::kHost, kEvery);
  add(WaitEvent{1}, Stream::kDeviceToHost, kEvery);
  add(RecordEvent{0}, Stream::kDeviceToHost, kEvery);
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    RandomOrder random_order(program, seed);
    size_t ran = 0;
    for (const When kind : {kFirst, kMiddle, kMiddle, kLast}) {
      CHECK_NOTHROW(
          random_order.Run(Section::kMicroStep, kind, [&](Section, size_t, bool) { ++ran; }));
    }
    CHECK(ran == 4 * list.size() - 1);
  }
}

TEST_CASE("random order: a wait whose record is in another micro-step is for a carried event") {
  TinyProgram tiny(1, 4, 3);
  const EventId event = tiny.NewEvent();
  tiny.On(Stream::kCompute).When(kLast).Emit(RecordEvent{event});
  tiny.On(Stream::kGather).When(kEvery).Emit(WaitEvent{event});
  Engine engine(tiny.program(), Seeded(3));
  engine.Init();
  engine.Step(FillCounting);
  CHECK(engine.ExecutedTrace(0).size() == 4);
}

}  // namespace
}  // namespace zeroplan
