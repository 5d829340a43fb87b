#include "cost_models/memory_walk.h"

#include <doctest/doctest.h>

#include "core/base/error.h"
#include "core/lowering/lower.h"
#include "core/program/collectives.h"
#include "core/program/replay.h"
#include "tests/cost_models/tiny_program.h"
#include "tests/tiny_model.h"

namespace zeroplan {

namespace {

TEST_CASE("classes at the instant of the peak, gaps as buffers, phases with their culprits") {
  TinyProgram tiny(1, 1);
  const BufferId params = tiny.Add("params", 100, MemoryClass::kParams);
  const BufferId qkv0 = tiny.Add("qkv", 30, MemoryClass::kActivations);
  const BufferId qkv1 = tiny.Add("qkv", 30, MemoryClass::kActivations);
  const BufferId logits = tiny.Add("logits", 50, MemoryClass::kActivations);
  const BufferId grads = tiny.Add("grads", 70, MemoryClass::kGrads);
  const BufferId staging = tiny.Add("staging", 1000, MemoryClass::kBuffers, Space::kPinned);
  tiny.Do(Section::kInit, Phase::kInit, Alloc{params});
  tiny.Do(Section::kInit, Phase::kInit, Alloc{staging});
  tiny.Do(Section::kMicroStep, Phase::kForward, Alloc{qkv0});
  tiny.Do(Section::kMicroStep, Phase::kForward, Alloc{qkv1});
  tiny.Do(Section::kMicroStep, Phase::kForward, Alloc{logits});  // live: 100 + 60 + 50 = 210
  tiny.Do(Section::kMicroStep, Phase::kBackward, Free{logits});  // 160
  tiny.Do(Section::kMicroStep, Phase::kBackward, Alloc{grads});  // 230: the peak
  tiny.Do(Section::kMicroStep, Phase::kBackward, Free{qkv1});
  tiny.Do(Section::kMicroStep, Phase::kBackward, Free{qkv0});
  tiny.Do(Section::kOptimizerStep, Phase::kStep, Free{grads});
  tiny.program.arena_bytes = {256, 1024, 0, 0};

  const MemoryReport report = WalkMemory(tiny.program);
  CHECK(report.live_peak_bytes == std::array<uint64_t, kSpaces>{230, 1000, 0, 0});
  CHECK(report.of(MemoryClass::kParams) == 100);
  CHECK(report.of(MemoryClass::kActivations) == 60);
  CHECK(report.of(MemoryClass::kGrads) == 70);
  CHECK(report.of(MemoryClass::kOptimizer) == 0);
  CHECK(report.gap_bytes == 26);
  CHECK(report.of(MemoryClass::kBuffers) == 26);

  auto phase = [&](Phase p) { return report.phases[static_cast<size_t>(p)]; };
  CHECK(phase(Phase::kInit).bytes == 100);
  CHECK(phase(Phase::kForward).bytes == 210);
  CHECK(phase(Phase::kBackward).bytes == 230);
  CHECK(phase(Phase::kStep).bytes == 100);
  CHECK(phase(Phase::kSave).bytes == 0);
  REQUIRE(phase(Phase::kForward).culprits.size() == 3);
  CHECK(CulpritName(phase(Phase::kForward).culprits[0]) == "params");
  CHECK(CulpritName(phase(Phase::kForward).culprits[1]) == "qkv x2");
  CHECK(phase(Phase::kForward).culprits[1].bytes == 60);
  CHECK(CulpritName(phase(Phase::kForward).culprits[2]) == "logits");
  CHECK(CulpritName(phase(Phase::kBackward).culprits[1]) == "grads");
}

TEST_CASE("only the kinds of micro-step that occur are walked") {
  for (int64_t grad_accum : {1, 2, 3}) {
    TinyProgram tiny(1, grad_accum);
    const std::pair<uint8_t, uint64_t> sizes[] = {
        {kOnly, 10}, {kFirst, 20}, {kMiddle, 40}, {kLast, 30}};
    for (const auto& [when, bytes] : sizes) {
      const BufferId id = tiny.Add("x", bytes, MemoryClass::kBuffers);
      tiny.Do(Section::kMicroStep, Phase::kForward, Alloc{id}, when);
      tiny.Do(Section::kMicroStep, Phase::kForward, Free{id}, when);
    }
    tiny.program.arena_bytes = {40, 0, 0, 0};
    const uint64_t expected[] = {10, 30, 40};
    CHECK(WalkMemory(tiny.program).live_peak_bytes[0] == expected[grad_accum - 1]);
  }
}

TEST_CASE("a program that allocates twice or frees what is not live is a bug") {
  TinyProgram twice(1, 1);
  const BufferId id = twice.Add("x", 8, MemoryClass::kBuffers);
  twice.program.arena_bytes = {64, 0, 0, 0};
  twice.Do(Section::kInit, Phase::kInit, Alloc{id});
  twice.Do(Section::kInit, Phase::kInit, Alloc{id});
  CHECK_THROWS_AS(WalkMemory(twice.program), CheckFailure);

  TinyProgram freed(1, 1);
  freed.Do(Section::kInit, Phase::kInit, Free{freed.Add("x", 8, MemoryClass::kBuffers)});
  CHECK_THROWS_AS(WalkMemory(freed.program), CheckFailure);

  TinyProgram small(1, 1);
  small.Do(Section::kInit, Phase::kInit, Alloc{small.Add("x", 8, MemoryClass::kBuffers)});
  CHECK_THROWS_AS(WalkMemory(small.program), CheckFailure);  // arena of 0 bytes
}

TEST_CASE("outside the arenas: graphs on GPUs alone, communicators on any backend") {
  for (const int ranks : {1, 2}) {
    TrainSetup setup;
    setup.batch = {1, 2, ranks, 8};
    LowerOptions options;
    CHECK(OutsideArenasOf(Lower(testing::TinyModel(), setup, options)).graph_bytes == 0);
    options.backend = Backend::kCuda;
    const Program program = Lower(testing::TinyModel(), setup, options);
    const OutsideArenas outside = OutsideArenasOf(program);
    CHECK(outside.communicators == static_cast<int>(CommunicatorsOf(program).size()));
    const ReplayCount replayed = CountReplayed(program);
    CHECK(replayed.graphs > 0);
    CHECK(replayed.nodes > replayed.graphs);
    CHECK(outside.graph_bytes == static_cast<uint64_t>(replayed.graphs) * kGraphBytes +
                                     static_cast<uint64_t>(replayed.nodes) * kGraphNodeBytes);
  }
}

}  // namespace

}  // namespace zeroplan
