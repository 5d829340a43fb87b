// What `estimate` costs: lowering, placing and walking every choice of every preset, and how close
// placement comes to the live peak. All 16 choices of one model must take less than 50 ms on one
// core, and no arena may exceed its live peak by more than 2 %.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "core/lowering/lower.h"
#include "core/model/model_spec.h"
#include "cost_models/memory_walk.h"
#include "cost_models/traffic.h"
#include "planner/choices.h"

namespace zeroplan {
namespace {

using Clock = std::chrono::steady_clock;

double Milliseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::milli>(Clock::now() - since).count();
}

struct PresetCost {
  size_t choices = 0, instructions = 0, buffers = 0;
  double lower_ms = 0, walk_ms = 0;
  // Of the choice whose device arena exceeds its live peak the most.
  uint64_t arena_bytes = 0, live_bytes = 1;
  std::string worst;

  double excess() const {
    return static_cast<double>(arena_bytes) / static_cast<double>(live_bytes) - 1;
  }
};

void Measure(const ModelSpec& model, const TrainSetup& setup,
             const std::shared_ptr<const std::vector<ParamTensor>>& tensors, PresetCost& cost) {
  LowerOptions options;
  options.backend = Backend::kCuda;
  const auto begin = Clock::now();
  const Program program = Lower(model, tensors, setup, options);
  cost.lower_ms += Milliseconds(begin);
  const auto walk = Clock::now();
  const MemoryReport memory = WalkMemory(program);
  const StepTraffic traffic = WalkTraffic(program);
  cost.walk_ms += Milliseconds(walk);

  ++cost.choices;
  cost.buffers = std::max(cost.buffers, program.buffers.size());
  size_t instructions = traffic.scalar_bytes > UINT64_MAX / 2 ? 1 : 0;  // keeps the walk alive
  for (const auto& section : program.sections) instructions += section.size();
  cost.instructions = std::max(cost.instructions, instructions);
  const uint64_t arena = memory.arena(Space::kDevice);
  const uint64_t live = memory.live_peak_bytes[static_cast<size_t>(Space::kDevice)];
  if (cost.worst.empty() ||
      static_cast<double>(arena) / static_cast<double>(live) - 1 > cost.excess()) {
    cost.arena_bytes = arena;
    cost.live_bytes = live;
    cost.worst = SetupLabel(setup);
  }
}

int Run() {
  fmt::print("{:<12} {:>4} {:>4} {:>7} {:>7} {:>9} {:>9} {:>14} {:>14} {:>8}  {}\n", "preset",
             "gpus", "n", "instr", "buffers", "lower ms", "walk ms", "arena bytes", "live peak",
             "excess", "worst placed choice");
  bool good = true;
  for (const ModelPreset& preset : ModelPresets()) {
    const auto tensors =
        std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(preset.spec));
    for (int gpus : {1, 16}) {
      TrainSetup base;
      base.batch.world_size = gpus;
      base.batch.micro_batch = 4;
      base.batch.seq_len = preset.spec.positions;
      ChoiceSpace space;
      space.recompute_every = {0, 1};
      PresetCost cost;
      for (const TrainSetup& setup : EnumerateSetups(base, space)) {
        Measure(preset.spec, setup, tensors, cost);
      }
      const auto n = static_cast<double>(cost.choices);
      fmt::print("{:<12} {:>4} {:>4} {:>7} {:>7} {:>9.3f} {:>9.3f} {:>14} {:>14} {:>7.3f}%  {}\n",
                 preset.spec.name, gpus, cost.choices, cost.instructions, cost.buffers,
                 cost.lower_ms / n, cost.walk_ms / n, cost.arena_bytes, cost.live_bytes,
                 100 * cost.excess(), cost.worst);
      good = good && cost.excess() <= 0.02;
    }
  }
  fmt::print("lower and walk: mean over the preset's choices, one run each.\n{}\n",
             good ? "placement: within 2 % everywhere" : "placement: MORE than 2 % somewhere");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace zeroplan

int main() { return zeroplan::Run(); }
