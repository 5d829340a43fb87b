// LowerToWalk leaves events and what save and load repeat out, and takes places from the choices
// before: what is estimated is that of the program that runs, to the last bit.
#include <doctest/doctest.h>

#include <memory>

#include "core/lowering/lower.h"
#include "core/lowering/walk_cache.h"
#include "cost_models/step_time.h"
#include "hwprofiles/loader.h"
#include "planner/estimate/estimate.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

size_t Instructions(const Program& program) {
  size_t count = 0;
  for (const auto& section : program.sections) count += section.size();
  return count;
}

void CheckSame(const MemoryReport& walked, const MemoryReport& run) {
  CHECK(walked.arena_bytes == run.arena_bytes);
  CHECK(walked.live_peak_bytes == run.live_peak_bytes);
  CHECK(walked.class_bytes == run.class_bytes);
  CHECK(walked.gap_bytes == run.gap_bytes);
  CHECK(walked.outside == run.outside);
  for (size_t phase = 0; phase < run.phases.size(); ++phase) {
    CHECK(walked.phases[phase].bytes == run.phases[phase].bytes);
    REQUIRE(walked.phases[phase].culprits.size() == run.phases[phase].culprits.size());
    for (size_t i = 0; i < run.phases[phase].culprits.size(); ++i) {
      CHECK(CulpritName(walked.phases[phase].culprits[i]) ==
            CulpritName(run.phases[phase].culprits[i]));
      CHECK(walked.phases[phase].culprits[i].bytes == run.phases[phase].culprits[i].bytes);
    }
  }
}

void CheckSame(const StepTraffic& walked, const StepTraffic& run) {
  CHECK(walked.collective_bytes == run.collective_bytes);
  CHECK(walked.scalar_bytes == run.scalar_bytes);
  CHECK(walked.host_to_device_bytes == run.host_to_device_bytes);
  CHECK(walked.device_to_host_bytes == run.device_to_host_bytes);
  CHECK(walked.file_read_bytes == run.file_read_bytes);
  CHECK(walked.file_write_bytes == run.file_write_bytes);
}

TEST_CASE("a walked program has the memory, traffic and step time of the one that runs") {
  const ModelSpec model = testing::TinyModel(6);
  const auto tensors = std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model));
  const CostModel costs(LoadProfile(std::string(kDefaultProfile)), ClusterShape{2, 2});
  WalkCache cache;
  LowerOptions options;
  options.backend = Backend::kCuda;
  const std::vector<testing::Cell> cells = testing::AllCells({1, 2}, {Dtype::kBF16});
  size_t shorter = 0, without_eval = 0, cells_seen = 0;
  for (const testing::Cell& cell : cells) {
    INFO(cell.name);
    options.async_save = !options.async_save;
    // Many chunks of each state in some, one in the others.
    options.checkpoint_chunk_elements = ++cells_seen % 3 == 0 ? 1u << 24 : 512;
    const Program run = Lower(model, tensors, cell.setup, options);
    const Program walked = LowerToWalk(model, tensors, cell.setup, options, cache);
    shorter += Instructions(walked) < Instructions(run) ? 1 : 0;
    without_eval += walked.section(Section::kEval).empty() ? 1 : 0;
    CHECK(walked.persistent_bytes == run.persistent_bytes);
    CHECK(walked.live_peak_bytes == run.live_peak_bytes);
    CheckSame(WalkMemory(walked), WalkMemory(run));
    CheckSame(WalkTraffic(walked), WalkTraffic(run));
    const StepTime walked_time = StepTimer(costs).Time(walked), time = StepTimer(costs).Time(run);
    CHECK(walked_time.total_seconds == time.total_seconds);
    CHECK(walked_time.by_stream.exposed_seconds == time.by_stream.exposed_seconds);
    CHECK(walked_time.by_stream.busy_seconds == time.by_stream.busy_seconds);
  }
  CHECK(shorter == cells.size());
  CHECK(without_eval > 20);  // the grid varies more than one estimate does
}

TEST_CASE("evaluation is left out only where a step takes at least as much") {
  const ModelSpec model = testing::TinyModel(4);
  const auto tensors = std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model));
  TrainSetup setup;
  setup.zero.stage = 2;
  setup.batch.world_size = 2;
  LowerOptions options;
  options.backend = Backend::kCuda;
  WalkCache cache;
  CHECK_FALSE(LowerToWalk(model, tensors, setup, options, cache).section(Section::kEval).empty());
  setup.zero.stage = 1;
  const EvalMemory* known = cache.evals.Find(tensors, setup, options);
  REQUIRE(known != nullptr);
  const EvalMemory memory = *known;
  const Program program = LowerToWalk(model, tensors, setup, options, cache);
  CHECK(program.section(Section::kEval).empty());
  CHECK(CoversEval(program, memory));
  constexpr auto kDevice = static_cast<size_t>(Space::kDevice);
  CHECK(memory.bytes[kDevice] > 0);
  EvalMemory larger = memory;
  larger.bytes[kDevice] = program.arena_bytes[kDevice] + 1;
  CHECK_FALSE(CoversEval(program, larger));
  larger = memory;
  larger.live_bytes[kDevice] = program.live_peak_bytes[kDevice] + 1;
  CHECK_FALSE(CoversEval(program, larger));
  // Another batch, another kind of logits, or slots that evaluation shares are another evaluation.
  TrainSetup other = setup;
  other.batch.micro_batch = 2;
  CHECK(cache.evals.Find(tensors, other, options) == nullptr);
  LowerOptions chunks = options;
  chunks.logits_chunk_bytes = 4096;
  CHECK(cache.evals.Find(tensors, setup, chunks) == nullptr);
  other = setup;
  other.zero.stage = 3;
  other.zero.offload_param.device = OffloadDevice::kNvme;
  CHECK(LowerToWalk(model, tensors, other, options, cache).setup == other);
  CHECK(cache.evals.Find(tensors, other, options) == nullptr);
}

}  // namespace
}  // namespace zeroplan
