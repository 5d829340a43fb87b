// 50 steps of mixtures of experts against transformers in double precision, with the auxiliary loss
// and without, and weights whose experts are one tensor. tests/agreement/transformers_test.cc has
// what these families share with others.
#include <doctest/doctest.h>

#include "tests/agreement/memory_state.h"
#include "tests/agreement/transformers_checks.h"

namespace zeroplan {
namespace {

using namespace transformers_checks;

// Fixtures with runs in double precision.
std::vector<Fixture> MixtureFixtures() {
  std::vector<Fixture> mixtures;
  for (const Fixture& fixture : Fixtures()) {
    if (fixture.expected.contains("fp64_runs")) mixtures.push_back(fixture);
  }
  REQUIRE(mixtures.size() >= 5);
  return mixtures;
}

// Rows [2m, 2m + 2) of a batch are micro-step m of two, or rank m's.
FillBatch Halves(const Fixture& fixture, const Program& program, size_t step) {
  return [&fixture, &program, step](int rank, int64_t micro_step, std::span<int32_t> inputs,
                                    std::span<int32_t> targets) {
    const BatchSpec& batch = program.setup.batch;
    const int64_t first = (micro_step * batch.world_size + rank) * batch.micro_batch;
    for (int64_t i = 0; i < batch.micro_batch * kLength; ++i) {
      const json& tokens =
          fixture.expected["tokens"][step][static_cast<size_t>(first + i / kLength)];
      inputs[static_cast<size_t>(i)] = tokens[static_cast<size_t>(i % kLength)];
      targets[static_cast<size_t>(i)] = tokens[static_cast<size_t>(i % kLength + 1)];
    }
  };
}

// The weights after the run, a few of each published tensor.
void CheckWeightsOf(const json& expected, const Model& model, Engine& engine) {
  const auto& table = *model.program.layout.tensors;
  testing::MemoryState saved(model.program.layout);
  std::vector<StateSink*> sinks(static_cast<size_t>(model.program.setup.batch.world_size), &saved);
  engine.Save(sinks);
  size_t checked = 0;
  for (size_t t = 0; t < table.size(); ++t) {
    for (const PublishedTensor& tensor : PublishedTensors(table[t])) {
      CAPTURE(tensor.name);
      const json& want = expected[tensor.name];
      const std::vector<size_t> at = want["at"];
      const double largest = want["largest"];
      for (size_t i = 0; i < at.size(); ++i) {
        const size_t of_param = static_cast<size_t>(tensor.begin * table[t].shape[1]) + at[i];
        const double got = saved.master(static_cast<int>(t))[of_param], value = want["values"][i];
        CHECK(std::abs(got - value) < 1e-5 * largest);
        ++checked;
      }
    }
  }
  CHECK(checked >= 8 * expected.size() / 2);
}

void CheckRun(const Fixture& fixture, const json& expected, Run run, int64_t micro_steps) {
  TrainSetup setup = Setup(fixture, run);
  setup.batch.micro_batch = kGlobalBatch / (run.ranks * micro_steps);
  setup.batch.grad_accum = micro_steps;
  const json& adamw = fixture.expected["fp64_adamw"];
  setup.optimizer.eps = adamw["eps"];
  setup.optimizer.lr = adamw["lr"];
  const float aux = expected["aux"];
  Model model(setup, fixture.folder, run.backend, Purpose::kTrain, false, aux);
  const std::vector<double> losses = expected["losses"], aux_losses = expected["aux_losses"],
                            norms = expected["grad_norms"];
  REQUIRE(losses.size() == 50);
  for (size_t step = 0; step < losses.size(); ++step) {
    CAPTURE(step);
    const StepState state = model.engine.Step(Halves(fixture, model.program, step));
    // fp32 against double: transformers' own fp32 is as far off (2e-7, 1e-6 and 6e-6).
    CHECK(std::abs(state.loss_sum - losses[step]) < 1e-6 * losses[step]);
    const std::vector<double> totals = model.engine.RouterTotals();
    CHECK(std::abs(totals[0] / totals[2] - aux_losses[step]) < 2e-6 * aux_losses[step]);
    CHECK(std::abs(static_cast<double>(state.grad_norm) - norms[step]) < 2e-5 * norms[step]);
  }
  if (expected.contains("weights")) {
    CheckWeightsOf(expected["weights"], model, model.engine);
  }
}

TEST_CASE("mixtures: 50 steps are transformers' in double, with and without auxiliary loss") {
  for (const Fixture& fixture : MixtureFixtures()) {
    CAPTURE(fixture.folder.string());
    for (const json& run : fixture.expected["fp64_runs"]) {
      CAPTURE(run["aux"].get<double>());
      const int64_t parts = run["micro_steps"];
      CAPTURE(parts);
      CheckRun(fixture, run, {}, parts);
      // Two ranks are two micro-batches of a step.
      if (parts == 2) CheckRun(fixture, run, {.stage = 3, .ranks = 2}, 1);
    }
  }
}

TEST_CASE("mixtures: experts in one tensor are the same weights") {
  const std::string folder = SourcePath("tests/fixtures/olmoe_tiny");
  const ModelSpec model = LoadModel(folder);
  const auto table = BuildParamTable(model);
  const HfWeightsSource apart(folder, model, table), fused(folder + "_fused", model, table);
  for (size_t t = 0; t < table.size(); ++t) {
    CAPTURE(table[t].name);
    std::vector<float> a(table[t].elements()), b(table[t].elements());
    apart.Read({static_cast<int>(t), StateKind::kMaster, 0, a.size()}, a);
    fused.Read({static_cast<int>(t), StateKind::kMaster, 0, b.size()}, b);
    CHECK(a == b);
    // From the middle of one expert to the middle of another.
    const uint64_t third = a.size() / 3;
    std::vector<float> part(third);
    fused.Read({static_cast<int>(t), StateKind::kMaster, third, third}, part);
    CHECK(std::equal(part.begin(), part.end(), a.begin() + static_cast<int64_t>(third)));
  }
}

}  // namespace
}  // namespace zeroplan
