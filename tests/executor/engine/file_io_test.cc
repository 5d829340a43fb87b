// FileIo: the swap file and checkpoints.
#include <doctest/doctest.h>

#include <map>
#include <mutex>

#include "core/base/error.h"
#include "executor/engine/engine.h"
#include "executor/engine/rank_runner.h"
#include "tests/executor/engine/tiny_program.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

// Every element of every state has a value of its own.
float ValueOf(int tensor, StateKind state, uint64_t element) {
  return static_cast<float>(100'000 * tensor + 10'000 * static_cast<int>(state)) +
         static_cast<float>(element);
}

class CountingSource : public StateSource {
 public:
  void Read(const TensorRange& range, std::span<float> out) const override {
    REQUIRE(out.size() == range.count);
    for (uint64_t i = 0; i < range.count; ++i) {
      out[i] = ValueOf(range.tensor, range.state, range.begin + i);
    }
  }
};

class MemorySink : public StateSink {
 public:
  void Write(const TensorRange& range, std::span<const float> values) override {
    REQUIRE(values.size() == range.count);
    for (uint64_t i = 0; i < range.count; ++i) {
      const Key key{range.tensor, range.state, range.begin + i};
      REQUIRE(written.count(key) == 0);
      written[key] = values[i];
    }
  }
  using Key = std::tuple<int, StateKind, uint64_t>;
  std::map<Key, float> written;
};

// Three tensors of 100, 64 and 70 elements; gaps of alignment after the first, padding at the end.
Unit MakeUnit(uint64_t shards) {
  Unit unit{};
  unit.slots = {{0, 0, 100}, {1, 128, 64}, {2, 192, 70}};
  unit.elements = 262;
  unit.param_elements = 234;
  unit.shard_elements = AlignUp(CeilDiv(unit.elements, shards), kShardAlignElements);
  unit.padded_elements = unit.shard_elements * shards;
  return unit;
}

// Load reads all states of the one unit to host memory, save writes them, both in pieces.
struct CheckpointProgram {
  TinyProgram tiny;
  std::array<BufferId, 3> states;
  uint64_t shard;

  CheckpointProgram(int world, uint64_t shards) : tiny(world) {
    ParamLayout& layout = tiny.program().layout;
    layout.units = {MakeUnit(shards)};
    layout.shards = shards;
    shard = layout.units[0].shard_elements;
    for (int s = 0; s < 3; ++s) {
      states[static_cast<size_t>(s)] = tiny.Floats(shard, Space::kPageable);
      const Ref whole = tiny.All(states[static_cast<size_t>(s)]);
      for (const bool write : {false, true}) {
        tiny.In(write ? Section::kSave : Section::kLoad);
        for (uint64_t begin = 0; begin < shard; begin += 48) {
          const uint64_t count = std::min<uint64_t>(48, shard - begin);
          FileIo io{write, FileTarget::kCheckpoint, {whole.buffer, begin * 4, count * 4, 0}};
          io.unit = 0;
          io.state = static_cast<StateKind>(s);
          io.begin = begin;
          io.count = count;
          tiny.Emit(io);
        }
      }
    }
  }
};

TEST_CASE("checkpoint: shards are cut into tensors; padding reads 0 and is not written") {
  for (const int world : {1, 2, 3, 4, 8}) {
    CAPTURE(world);
    CheckpointProgram checkpoint(world, static_cast<uint64_t>(world));
    Engine engine(checkpoint.tiny.program(), {});
    engine.Init();
    engine.Load(CountingSource(), true, nullptr);
    const Unit& unit = checkpoint.tiny.program().layout.units[0];
    for (int rank = 0; rank < world; ++rank) {
      for (int s = 0; s < 3; ++s) {
        const auto values = PeekFloats(engine, rank, checkpoint.states[static_cast<size_t>(s)]);
        for (uint64_t i = 0; i < values.size(); ++i) {
          const uint64_t element = static_cast<uint64_t>(rank) * unit.shard_elements + i;
          float expected = 0;
          for (const TensorSlot& slot : unit.slots) {
            if (element < slot.offset || element >= slot.offset + slot.elements) continue;
            expected = ValueOf(slot.tensor, static_cast<StateKind>(s), element - slot.offset);
          }
          REQUIRE(values[i] == expected);
        }
      }
    }
    std::vector<MemorySink> sinks(static_cast<size_t>(world));
    std::vector<StateSink*> pointers;
    for (MemorySink& sink : sinks) pointers.push_back(&sink);
    engine.Save(pointers);
    std::map<MemorySink::Key, float> all;
    for (MemorySink& sink : sinks) all.merge(sink.written);
    CHECK(all.size() == 3 * unit.param_elements);
    for (const auto& [key, value] : all) {
      REQUIRE(value == ValueOf(std::get<0>(key), std::get<1>(key), std::get<2>(key)));
    }
  }
}

TEST_CASE("checkpoint: where every rank holds everything, rank 0 alone writes") {
  CheckpointProgram checkpoint(3, 1);
  Engine engine(checkpoint.tiny.program(), {});
  engine.Init();
  engine.Load(CountingSource(), true, nullptr);
  CHECK(PeekFloats(engine, 0, checkpoint.states[0]) == PeekFloats(engine, 2, checkpoint.states[0]));
  MemorySink sink;
  const std::array<StateSink*, 3> sinks = {&sink, nullptr, nullptr};
  engine.Save(sinks);
  CHECK(sink.written.size() == 3 * 234);
}

TEST_CASE("checkpoint: weights alone leave fresh Adam states; the step state is restored") {
  CheckpointProgram checkpoint(2, 2);
  const Program& program = checkpoint.tiny.program();
  checkpoint.tiny.In(Section::kLoad);
  checkpoint.tiny.CopyTo(checkpoint.tiny.All(program.state_host_buffer),
                         checkpoint.tiny.All(program.state_buffer));
  Engine engine(program, {});
  engine.Init();
  StepState state;
  state.step = 41;
  engine.Load(CountingSource(), false, &state);
  CHECK(PeekFloats(engine, 1, checkpoint.states[0])[0] != 0);
  for (const size_t s : {1, 2}) {
    for (const float value : PeekFloats(engine, 1, checkpoint.states[s])) REQUIRE(value == 0);
  }
  CHECK(engine.state().step == 41);
  const auto* device =
      reinterpret_cast<const StepState*>(engine.Peek(1, program.state_buffer).data());
  CHECK(device->step == 41);
}

TEST_CASE("checkpoint: a source's error names itself to the caller") {
  class Broken : public StateSource {
    void Read(const TensorRange&, std::span<float>) const override {
      ThrowRuntime("model.safetensors ends early");
    }
  };
  CheckpointProgram checkpoint(2, 2);
  Engine engine(checkpoint.tiny.program(), {});
  engine.Init();
  CHECK_THROWS_WITH_AS(engine.Load(Broken(), true, nullptr), "model.safetensors ends early", Error);
}

TEST_CASE("swap: each rank has its own file, and traffic counts it") {
  const TempDir dir;
  TinyProgram tiny(2);
  const BufferId host = tiny.Floats(4, Space::kPageable), back = tiny.Floats(4, Space::kPageable);
  tiny.Add(Space::kFile, 4096);
  const BufferId file = tiny.Add(Space::kFile, 4096);
  const Ref at{file, 4000, 16, 0};
  tiny.CopyTo(tiny.Inputs(4), tiny.All(host)).On(Stream::kStorageWrite);
  tiny.Emit(FileIo{true, FileTarget::kSwap, tiny.All(host), at});
  tiny.On(Stream::kStorage).Emit(FileIo{false, FileTarget::kSwap, tiny.All(back), at});
  EngineOptions options;
  options.swap_dir = dir.path();
  options.pattern_arenas = true;
  Engine engine(tiny.program(), options);
  engine.Init();
  engine.Step(FillCounting);
  CHECK(PeekFloats(engine, 0, back) == std::vector<float>{1, 2, 3, 4});
  CHECK(PeekFloats(engine, 1, back) == std::vector<float>{101, 102, 103, 104});
  const Engine::Traffic traffic = engine.TakeTraffic();
  CHECK(traffic.file_write_bytes == 16);
  CHECK(traffic.file_read_bytes == 16);
  const auto space = static_cast<size_t>(Space::kFile);
  CHECK(engine.high_water().touched_bytes[space] == 4096 + 4016);
  CHECK(engine.PatternHighWater()[space] == 4096 + 4016);
}

}  // namespace
}  // namespace zeroplan
