// Training with quantized collectives beside the same training without: same seed, data and ranks.
// What is quantized changes numbers; how far the loss goes apart is printed and bounded.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/lowering/lower.h"
#include "cost_models/traffic.h"
#include "executor/engine/engine.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

struct Quantized {
  const char* name;
  bool weights, gradients;
};
constexpr Quantized kQuantized[] = {{"none", false, false},
                                    {"weights", true, false},
                                    {"gradients", false, true},
                                    {"both", true, true}};

ModelSpec TextModel() {
  return testing::TinyModel({.name = "text",
                             .layers = 2,
                             .hidden = 64,
                             .heads = 4,
                             .ffn = 256,
                             .vocab = 53,
                             .padded_vocab = 56,
                             .positions = 32});
}

TrainSetup QuantizedSetup(const Quantized& what, Dtype dtype, int shard_group, int across) {
  TrainSetup setup;
  setup.zero.stage = 3;
  setup.zero.shard_group = shard_group;
  setup.zero.across_stage = across;
  setup.zero.param_persistence_threshold = 300;  // vectors
  setup.zero.quantized_weights = what.weights;
  setup.zero.quantized_gradients = what.gradients;
  setup.precision.dtype = setup.precision.grad_accum_dtype = dtype;
  setup.precision.initial_scale_power = 8;
  setup.batch = {2, 1, 4, 32};
  setup.optimizer.lr = 2e-3;
  return setup;
}

// Each token follows from the one before: in seven of eight cases by one rule, else by another. A
// model that has learned both has a loss of 0.38, the entropy of that choice.
void FillText(uint64_t step, int rank, std::span<int32_t> inputs, std::span<int32_t> targets) {
  std::mt19937 rng(static_cast<uint32_t>(step * 64 + static_cast<uint64_t>(rank)));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const uint32_t token = i % 32 == 0 ? rng() % 53 : static_cast<uint32_t>(targets[i - 1]);
    inputs[i] = static_cast<int32_t>(token);
    targets[i] = static_cast<int32_t>((token * (rng() % 8 == 0 ? 5 : 3) + 1) % 53);
  }
}

std::vector<double> TextLosses(const Program& program, int steps, uint64_t order_seed = 0) {
  EngineOptions options;
  options.threads_per_rank = 1;
  options.random_order_seed = order_seed;
  Engine engine(program, options);
  engine.Init();
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const auto fill = [&](int rank, int64_t, std::span<int32_t> inputs,
                          std::span<int32_t> targets) {
      FillText(static_cast<uint64_t>(step), rank, inputs, targets);
    };
    losses.push_back(engine.Step(fill).loss_sum);
  }
  return losses;
}

double MeanOfLast(const std::vector<double>& losses, size_t count) {
  return std::accumulate(losses.end() - static_cast<std::ptrdiff_t>(count), losses.end(), 0.0) /
         static_cast<double>(count);
}

TEST_CASE("quantized collectives: the loss learns as without, over all ranks and over groups") {
  constexpr int kSteps = 300;
  constexpr size_t kLast = 50;
  for (const auto& [group, across] : {std::pair{0, 0}, {2, 0}, {2, 2}}) {
    CAPTURE(group);
    CAPTURE(across);
    double exact = 0;
    std::string printed;
    for (const Quantized& what : kQuantized) {
      CAPTURE(what.name);
      const Program program = Lower(TextModel(), QuantizedSetup(what, Dtype::kBF16, group, across));
      const std::vector<double> losses = TextLosses(program, kSteps);
      const double last = MeanOfLast(losses, kLast);
      if (&what == &kQuantized[0]) exact = last;
      const double apart = last / exact - 1;
      printed += fmt::format(
          "  {}: {:.4f} ({:+.2f} %), steps 10 50 100 200 300: {:.3f} {:.3f} "
          "{:.3f} {:.3f} {:.3f}, {} bytes sent a step\n",
          what.name, last, 100 * apart, losses[9], losses[49], losses[99], losses[199], losses[299],
          WalkTraffic(program).collective_bytes);
      CHECK(losses.front() > 3.5);
      CHECK(last < 0.6);
      CHECK(std::abs(apart) < 0.01);  // measured: below 0.003
    }
    MESSAGE("mean loss of the last " << kLast << " of " << kSteps << " steps, groups of " << group
                                     << ", across " << across << "\n"
                                     << printed);
  }
}

TEST_CASE("quantized collectives: any legal order of the streams gives the same bits") {
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32}) {
    for (const auto& [group, across] : {std::pair{0, 0}, {2, 1}, {2, 2}}) {
      TrainSetup setup = QuantizedSetup(kQuantized[3], dtype, group, across);
      setup.batch.grad_accum = 3;
      const Program program = Lower(TextModel(), setup);
      const std::vector<double> losses = TextLosses(program, 5);
      for (const uint64_t seed : {3u, 4u}) CHECK(TextLosses(program, 5, seed) == losses);
    }
  }
}

TEST_CASE("quantized collectives: an overflow in fp16 is seen, and the scale comes down") {
  TrainSetup setup = QuantizedSetup(kQuantized[3], Dtype::kF16, 2, 2);
  setup.precision.initial_scale_power = 30;
  setup.precision.hysteresis = 1;
  const Program program = Lower(TextModel(), setup);
  EngineOptions options;
  options.threads_per_rank = 1;
  Engine engine(program, options);
  engine.Init();
  int skipped = 0, taken = 0;
  for (uint64_t step = 0; step < 30; ++step) {
    const auto fill = [&](int rank, int64_t, std::span<int32_t> inputs,
                          std::span<int32_t> targets) { FillText(step, rank, inputs, targets); };
    const StepState state = engine.Step(fill);
    (state.skip != 0 ? skipped : taken) += 1;
    CHECK(std::isfinite(state.loss_sum));
  }
  CHECK(skipped > 3);
  CHECK(taken > 10);
}

TEST_CASE("quantized collectives: 8.125 bits a parameter and 4.125 a gradient are sent") {
  const Program program =
      Lower(TextModel(), QuantizedSetup(kQuantized[3], Dtype::kBF16, /*shard_group=*/0, 0));
  std::vector<int> gathers(program.layout.units.size()), reductions(gathers.size());
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    const auto* collective = std::get_if<Collective>(&instruction.op);
    if (collective == nullptr || collective->dtype != Dtype::kU8) continue;
    const bool gathers_unit = collective->kind == CollectiveKind::kAllGather;
    for (const Segment& segment : program.segs(*collective)) {
      const auto unit = static_cast<size_t>(program.buffers[segment.dst.buffer].unit);
      const uint64_t elements = program.layout.units[unit].padded_elements;
      CHECK(8000 * segment.dst.bytes == elements * (gathers_unit ? 8125 : 4125));
      (gathers_unit ? gathers : reductions)[unit] += 1;
    }
  }
  for (size_t u = 0; u < gathers.size(); ++u) {
    const bool sent = !program.layout.units[u].persistent;
    CHECK((gathers[u] > 0) == sent);
    CHECK(reductions[u] == (sent ? 1 : 0));
  }
}

}  // namespace
}  // namespace zeroplan
