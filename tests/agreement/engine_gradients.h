// What an engine's step left as gradients, and slopes to hold them against.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "core/lowering/emitter.h"
#include "executor/engine/engine.h"
#include "tests/agreement/reference_step.h"

namespace zeroplan::testing {

// By tensor; of one that is not trained none. REQUIRES: fp32 and stage 0, where gradients persist
// and are whole.
inline Tensors EngineGradients(const Program& program, const Engine& engine, int rank) {
  const std::vector<BufferId> by_unit = UnitBuffers(program, Role::kGradFull);
  Tensors grads;
  for (const ParamLayout::Place& place : program.layout.place) {
    const auto unit = static_cast<size_t>(place.unit);
    const TensorSlot& slot = program.layout.units[unit].slots[static_cast<size_t>(place.slot)];
    if (by_unit[unit] == kNoBuffer) {
      grads.emplace_back();
      continue;
    }
    const std::span<const std::byte> bytes = engine.Peek(rank, by_unit[unit]);
    std::vector<float> values(slot.elements);
    std::memcpy(values.data(), bytes.data() + slot.offset * 4, slot.elements * 4);
    grads.emplace_back(values.begin(), values.end());
  }
  return grads;
}

// The element with the largest gradient, which shows a wrong one best, and some others.
inline std::set<size_t> Sample(const Values& grads, size_t count, std::mt19937& random) {
  std::set<size_t> sample;
  const auto larger = [](double a, double b) { return std::abs(a) < std::abs(b); };
  sample.insert(
      static_cast<size_t>(std::max_element(grads.begin(), grads.end(), larger) - grads.begin()));
  while (sample.size() < std::min(count, grads.size())) sample.insert(random() % grads.size());
  return sample;
}

// Five-point derivative: the error of the mathematics is h^4/30 times the fifth derivative, that of
// rounding at most 1.5/h times the loss's. Of seven points h^6/140 times the seventh, and 1.9/h.
template <typename Loss>
double Slope(Loss&& loss, double h, bool seven_points = false) {
  if (seven_points) {
    return (45 * (loss(h) - loss(-h)) - 9 * (loss(2 * h) - loss(-2 * h)) +
            (loss(3 * h) - loss(-3 * h))) /
           (60 * h);
  }
  return (8 * (loss(h) - loss(-h)) - (loss(2 * h) - loss(-2 * h))) / (12 * h);
}

// One step from random weights, then check(tensor, slope, gradient) for `count` elements of each
// tensor: the slope is that of the engine's own loss, with dropout that of the same step made anew,
// which drops the same. REQUIRES: as EngineGradients, one micro-step.
// `step`: a power of two; a larger one has less of fp32's noise, a smaller one of the loss's bends.
template <typename Check>
void ForEachEngineSlope(const Program& program, size_t count, Check&& check, double step = 1.0 / 32,
                        bool seven_points = false) {
  const auto& table = *program.layout.tensors;
  const RandomState start(table, 5);
  MemoryState state(program.layout);
  start.WriteTo(state);
  EngineOptions options;
  options.threads_per_rank = 1;
  Engine engine(program, options);
  engine.Init();
  engine.Load(state, true, nullptr);
  const StepState begun = engine.state();
  const FillBatch batch = RandomBatch(program, 3);
  engine.Step(batch);
  const Tensors grads = EngineGradients(program, engine, 0);
  std::mt19937 random(7);
  for (size_t t = 0; t < table.size(); ++t) {
    if (grads[t].empty()) continue;
    for (size_t i : Sample(grads[t], count, random)) {
      const auto at = static_cast<float>(start.weights[t][i]);
      const auto put = [&](float weight) {
        state.Write({static_cast<int>(t), StateKind::kMaster, i, 1}, {&weight, 1});
      };
      // h is exact in fp32.
      const double slope = Slope(
          [&](double h) {
            put(at + static_cast<float>(h));
            engine.Load(state, false, &begun);
            const bool drops = program.model.lora_dropout > 0;
            return drops ? engine.Step(batch).loss_sum : engine.Evaluate(batch);
          },
          step, seven_points);
      put(at);
      check(table[t], slope, grads[t][i]);
    }
  }
}

}  // namespace zeroplan::testing
