// What walking real programs finds must be what the ZeRO papers' formulas say: model states to the
// byte (over parameters as they lie in memory, alignment included), traffic to the byte.
#include <doctest/doctest.h>

#include <memory>
#include <utility>
#include <vector>

#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "core/settings/setup_facts.h"
#include "cost_models/closed_form.h"
#include "cost_models/memory_walk.h"
#include "cost_models/traffic.h"
#include "tests/tiny_model.h"

namespace zeroplan {
namespace {

ModelSpec TinyModel() {
  return testing::TinyModel(
      {.hidden = 128, .ffn = 512, .vocab = 1000, .padded_vocab = 1024, .positions = 64});
}

TrainSetup Setup(int stage, int ranks, int64_t grad_accum, int64_t seq_len) {
  TrainSetup setup;
  setup.zero.stage = stage;
  setup.zero.reduce_bucket_elements = 100'000;
  setup.batch = {1, grad_accum, ranks, seq_len};
  return setup;
}

// Elements as they lie in memory.
struct LayoutElements {
  uint64_t all = 0, persistent = 0;
};
LayoutElements Elements(const ParamLayout& layout) {
  LayoutElements elements;
  for (const Unit& unit : layout.units) {
    elements.all += unit.padded_elements;
    if (unit.persistent) elements.persistent += unit.padded_elements;
  }
  return elements;
}

// Bytes of buffers that live as long as the program, by what they hold.
struct StateBytesHeld {
  uint64_t params = 0, grads = 0, optimizer = 0;
};
StateBytesHeld PersistentStates(const Program& program) {
  StateBytesHeld held;
  for (const Buffer& buffer : program.buffers) {
    if (!buffer.persistent || buffer.space != Space::kDevice) continue;
    if (buffer.memory_class == MemoryClass::kParams) held.params += buffer.bytes;
    if (buffer.memory_class == MemoryClass::kGrads) held.grads += buffer.bytes;
    if (buffer.memory_class == MemoryClass::kOptimizer) held.optimizer += buffer.bytes;
  }
  return held;
}

void CheckStates(const ModelSpec& model, const TrainSetup& setup) {
  const Program program = Lower(model, setup, {});
  const LayoutElements elements = Elements(program.layout);
  const int ranks = setup.batch.world_size;
  const ModelStates formula = ModelStatesPerGpu(setup.zero.stage, static_cast<double>(elements.all),
                                                static_cast<double>(elements.persistent),
                                                ShardGroupsOf(setup), setup.precision);
  const StateBytesHeld held = PersistentStates(program);
  INFO(model.name, " stage ", setup.zero.stage, " ranks ", ranks, " groups of ",
       setup.zero.shard_group, " ", AcrossName(setup.zero.across_stage), " accum ",
       setup.batch.grad_accum);
  CHECK(static_cast<double>(held.params) == formula.params);
  CHECK(static_cast<double>(held.grads) == formula.grads);
  CHECK(static_cast<double>(held.optimizer) == formula.optimizer);

  // The report's classes are those states, at least, at whichever instant the peak is.
  const MemoryReport report = WalkMemory(program);
  CHECK(report.of(MemoryClass::kParams) == held.params);
  CHECK(report.of(MemoryClass::kGrads) == held.grads);
  CHECK(report.of(MemoryClass::kOptimizer) == held.optimizer);

  // Alignment: up to 63 elements after each tensor, and 64 for each rank at the end of each unit.
  const uint64_t real = model.ParamCount();
  const uint64_t slack =
      kShardAlignElements *
      (program.layout.tensors->size() + program.layout.units.size() * static_cast<uint64_t>(ranks));
  CHECK(elements.all >= real);
  CHECK(elements.all <= real + slack);
}

TEST_CASE("model states of every preset equal the closed form") {
  for (const ModelPreset& preset : ModelPresets()) {
    for (int stage : {0, 1, 2, 3}) {
      for (int ranks : {2, 8, 12}) CheckStates(preset.spec, Setup(stage, ranks, 1, 128));
    }
  }
}

TEST_CASE("model states by precision, threshold and one rank") {
  for (int stage : {0, 1, 2, 3}) {
    for (uint64_t threshold : {uint64_t{0}, uint64_t{20'000}, uint64_t{100'000}}) {
      TrainSetup setup = Setup(stage, 3, 2, 64);
      setup.zero.param_persistence_threshold = threshold;
      CheckStates(TinyModel(), setup);
      setup.precision.grad_accum_dtype = Dtype::kF32;
      CheckStates(TinyModel(), setup);
      setup.precision.dtype = Dtype::kF32;
      CheckStates(TinyModel(), setup);
    }
    CheckStates(TinyModel(), Setup(stage, 1, 1, 64));
  }
}

// Every grouping of `ranks` that can run.
std::vector<TrainSetup> InGroups(const TrainSetup& setup) {
  std::vector<TrainSetup> all;
  for (int group = 2; group < setup.batch.world_size; ++group) {
    for (int across = 0; across <= 2; ++across) {
      TrainSetup grouped = setup;
      grouped.zero.shard_group = group;
      grouped.zero.across_stage = across;
      if (!FindSetupProblem(grouped)) all.push_back(grouped);
    }
  }
  return all;
}

TEST_CASE("shard groups: model states equal the closed form") {
  for (int stage : {1, 2, 3}) {
    for (int ranks : {4, 8, 12}) {
      for (int64_t grad_accum : {1, 2}) {
        for (TrainSetup setup : InGroups(Setup(stage, ranks, grad_accum, 64))) {
          CheckStates(TinyModel(), setup);
          setup.zero.param_persistence_threshold = 0;
          setup.precision.grad_accum_dtype = Dtype::kF32;
          CheckStates(TinyModel(), setup);
        }
      }
    }
  }
}

void CheckTraffic(const TrainSetup& setup) {
  const Program program = Lower(TinyModel(), setup, {});
  const LayoutElements elements = Elements(program.layout);
  VolumeTerms terms;
  terms.stage = setup.zero.stage;
  terms.psi = static_cast<double>(elements.all);
  terms.psi_persistent = static_cast<double>(elements.persistent);
  terms.grad_accum = setup.batch.grad_accum;
  terms.ranks = setup.batch.world_size;
  terms.reduce_scatter = setup.zero.reduce_scatter;
  const AxisElements by_axis = ElementsSentByAxis(terms, ShardGroupsOf(setup));
  const auto size = static_cast<double>(DtypeBytes(setup.precision.dtype));
  if (!Hybrid(setup)) CHECK(by_axis.total() == ElementsSentPerStep(terms));
  const double bytes = by_axis.total() * size;
  const StepTraffic traffic = WalkTraffic(program);
  INFO("stage ", terms.stage, " ranks ", terms.ranks, " accum ", terms.grad_accum, " threshold ",
       setup.zero.param_persistence_threshold, " reduce_scatter ", terms.reduce_scatter,
       " contiguous ", setup.zero.contiguous_gradients, " gather ", setup.zero.allgather_partitions,
       " groups of ", setup.zero.shard_group, " ", AcrossName(setup.zero.across_stage));
  // Pieces are multiples of 64 elements: to the byte where the ranks divide those. Else each
  // collective rounds a fraction of a byte up.
  const bool exact = kShardAlignElements % static_cast<uint64_t>(terms.ranks) == 0;
  const double rounding = exact ? 0
                                : 2.0 * static_cast<double>(terms.grad_accum) *
                                      static_cast<double>(program.segments.size());
  const auto walked = static_cast<double>(traffic.collective_bytes);
  CHECK(walked >= bytes - 1e-9 * bytes);
  CHECK(walked <= bytes + rounding + 1e-9 * bytes);
  if (!Hybrid(setup)) return;
  for (const auto& [sent, elements_sent] : {std::pair(traffic.within_groups(), by_axis.within),
                                            {traffic.across_groups(), by_axis.across},
                                            {traffic.over_all(), by_axis.all}}) {
    CHECK(static_cast<double>(sent) >= elements_sent * size * (1 - 1e-9));
    CHECK(static_cast<double>(sent) <= elements_sent * size * (1 + 1e-9) + rounding);
  }
}

TEST_CASE("shard groups: communication by axis equals the closed form") {
  for (int stage : {1, 2, 3}) {
    for (int ranks : {4, 8, 16}) {
      for (int64_t grad_accum : {1, 3}) {
        for (TrainSetup setup : InGroups(Setup(stage, ranks, grad_accum, 64))) {
          for (uint64_t threshold : {uint64_t{0}, uint64_t{20'000}}) {
            for (int variant = 0; variant < 4; ++variant) {
              setup.zero.param_persistence_threshold = threshold;
              setup.zero.contiguous_gradients = (variant & 1) == 0;
              setup.zero.reduce_scatter = (variant & 2) == 0;
              CheckTraffic(setup);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("communication equals the closed form") {
  for (int stage : {0, 1, 2, 3}) {
    for (int ranks : {1, 2, 3, 8}) {
      for (int64_t grad_accum : {1, 2, 5}) {
        for (uint64_t threshold : {uint64_t{0}, uint64_t{20'000}, uint64_t{1'000'000}}) {
          for (int variant = 0; variant < 9; ++variant) {
            TrainSetup setup = Setup(stage, ranks, grad_accum, 64);
            setup.zero.param_persistence_threshold = threshold;
            setup.zero.contiguous_gradients = (variant & 1) == 0;
            setup.zero.allgather_partitions = (variant & 2) == 0;
            if (stage == 1 || stage == 2) setup.zero.reduce_scatter = (variant & 4) == 0;
            // Neither kind adds a gather.
            if (variant & 4) setup.recompute = FullRecompute(2);
            if (variant == 8) setup.recompute = kSelectiveRecompute;
            CheckTraffic(setup);
          }
        }
      }
    }
  }
}

TEST_CASE("stage 3: parameters kept from forward to backward are gathered once") {
  TrainSetup setup = Setup(3, 4, 3, 64);
  setup.zero.param_persistence_threshold = 0;
  const uint64_t released = WalkTraffic(Lower(TinyModel(), setup, {})).collective_bytes;
  setup.zero.max_reuse_distance = kUnlimited;
  const Program kept = Lower(TinyModel(), setup, {});
  const LayoutElements elements = Elements(kept.layout);
  // What is kept saves a gather in each of the three micro-steps: at most all that has a backward.
  const uint64_t saved = released - WalkTraffic(kept).collective_bytes;
  CHECK(saved > 0);
  CHECK(saved % 3 == 0);
  CHECK(saved <= 3 * elements.all * 2 * 3 / 4);
}

TEST_CASE("fp32 accumulation does not change what is sent where gradients travel in 16 bit") {
  TrainSetup setup = Setup(2, 4, 4, 64);
  const uint64_t before = WalkTraffic(Lower(TinyModel(), setup, {})).collective_bytes;
  setup.precision.grad_accum_dtype = Dtype::kF32;
  CHECK(WalkTraffic(Lower(TinyModel(), setup, {})).collective_bytes == before);
}

}  // namespace
}  // namespace zeroplan
