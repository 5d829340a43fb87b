// What is written from the copy after more steps is what a save between the steps writes.
#include <doctest/doctest.h>

#include <memory>

#include "core/lowering/lower.h"
#include "executor/engine/engine.h"
#include "tests/agreement/memory_state.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

// In the order of the file: range by range, with the values' bits.
class Log : public StateSink {
 public:
  void Write(const TensorRange& range, std::span<const float> values) override {
    ranges.push_back({static_cast<uint64_t>(range.tensor), static_cast<uint64_t>(range.state),
                      range.begin, range.count});
    bits.insert(bits.end(), values.begin(), values.end());
  }
  bool operator==(const Log& other) const {
    return ranges == other.ranges && bits.size() == other.bits.size() &&
           std::equal(bits.begin(), bits.end(), other.bits.begin(), [](float a, float b) {
             return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
           });
  }

  std::vector<std::array<uint64_t, 4>> ranges;
  std::vector<float> bits;
};

struct Run {
  Run(const testing::Cell& cell, bool async_save, uint64_t random_order_seed) {
    LowerOptions lower;
    lower.logits_chunk_bytes = 600;
    lower.checkpoint_chunk_elements = 700;
    lower.async_save = async_save;
    program = Lower(testing::TinyModel(), cell.setup, lower);
    EngineOptions options;
    options.threads_per_rank = 1;
    options.swap_dir = "/tmp";
    options.random_order_seed = random_order_seed;
    engine = std::make_unique<Engine>(program, options);
    engine->Init();
    logs.resize(static_cast<size_t>(program.setup.batch.world_size));
    for (uint64_t step = 0; step < 2; ++step) Step(step);
  }
  void Step(uint64_t step) { engine->Step(testing::RandomBatch(program, step)); }
  // Every rank's.
  std::vector<Log> Save() {
    std::vector<StateSink*> sinks;
    for (Log& log : logs) sinks.push_back(&(log = {}));
    engine->Save(sinks);
    return logs;
  }
  std::vector<Log> WriteCopy() {
    for (size_t i = 0; i < logs.size(); ++i) {
      logs[i] = {};
      engine->WriteSaveCopy(static_cast<int>(i), logs[i]);
    }
    return logs;
  }

  Program program;
  std::unique_ptr<Engine> engine;
  std::vector<Log> logs;
};

TEST_CASE("a copy that is written after more steps holds the states of the step that it was made") {
  for (const auto& cell : testing::AllCells({1, 2}, {Dtype::kBF16, Dtype::kF32})) {
    CAPTURE(cell.name);
    for (const uint64_t random_order_seed : {uint64_t{0}, uint64_t{7}}) {
      Run waiting(cell, false, random_order_seed), beside(cell, true, random_order_seed);
      const std::vector<Log> saved = waiting.Save();
      CHECK(saved.front().ranges.size() > 0);
      beside.engine->SaveToCopy();
      beside.Step(2);
      beside.Step(3);
      CHECK(beside.WriteCopy() == saved);
      // A save that is not left for later goes through the copy too, and is of now.
      waiting.Step(2);
      waiting.Step(3);
      const std::vector<Log> later = waiting.Save();
      CHECK_FALSE(later == saved);
      CHECK(beside.Save() == later);
    }
  }
}

}  // namespace
}  // namespace zeroplan
