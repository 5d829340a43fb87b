// zeroplan against Hugging Face transformers and PyTorch, by small models that transformers saved
// (tests/fixtures/make_gpt2_fixture.py, tests/agreement/make_llama_fixtures.py): their logits and
// loss in double precision, and 20 or 30 steps of training in fp32.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "executor/checkpoint/hf_export.h"
#include "executor/checkpoint/hf_weights.h"
#include "executor/engine/engine.h"
#include "tests/agreement/memory_state.h"
#include "tests/executor/device/temp_dir.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kLength = 16, kGlobalBatch = 4;

// A model with what transformers says of it.
struct Fixture {
  fs::path folder;
  json expected;
};

// All folders of tests/fixtures that hold an expected.json.
const std::vector<Fixture>& Fixtures() {
  static const std::vector<Fixture> fixtures = [] {
    std::vector<Fixture> found;
    for (const auto& entry : fs::directory_iterator(SourcePath("tests/fixtures"))) {
      std::ifstream file(entry.path() / "expected.json");
      if (file.good()) found.push_back({entry.path(), json::parse(file)});
    }
    return found;
  }();
  REQUIRE(!fixtures.empty());
  return fixtures;
}

EngineOptions OneThread() {
  EngineOptions options;
  options.threads_per_rank = 1;
  return options;
}

// fp32, one batch of the fixture spread over the ranks, AdamW as the fixture's.
TrainSetup Setup(const Fixture& fixture, int stage, int ranks) {
  TrainSetup setup;
  setup.zero.stage = stage;
  setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kF32;
  setup.batch = {kGlobalBatch / ranks, 1, ranks, kLength};
  const json& adamw = fixture.expected["adamw"];
  setup.optimizer.lr = adamw["lr"];
  setup.optimizer.betas = {adamw["betas"][0], adamw["betas"][1]};
  setup.optimizer.eps = adamw["eps"];
  setup.optimizer.weight_decay = adamw["weight_decay"];
  setup.optimizer.gradient_clipping = adamw["clip"];
  return setup;
}

// Batch `step` of the fixture: row r of it goes to rank r / micro_batch.
FillBatch Batch(const Fixture& fixture, const Program& program, size_t step) {
  return [&fixture, &program, step](int rank, int64_t, std::span<int32_t> inputs,
                                    std::span<int32_t> targets) {
    const int64_t rows = program.setup.batch.micro_batch;
    for (int64_t i = 0; i < rows * kLength; ++i) {
      const auto row = static_cast<size_t>(rank * rows + i / kLength);
      const auto t = static_cast<size_t>(i % kLength), at = static_cast<size_t>(i);
      const json& tokens = fixture.expected["tokens"][step][row];
      inputs[at] = tokens[t];
      targets[at] = tokens[t + 1];
    }
  };
}

// A program and an engine with the fixture's weights.
struct Model {
  Program program;
  Engine engine;

  Model(const TrainSetup& setup, const fs::path& from, const LowerOptions& options = {})
      : program(Lower(LoadModel(from.string()), setup, options)), engine(program, OneThread()) {
    engine.Init();
    engine.Load(HfWeightsSource(from, program.model, *program.layout.tensors), false, nullptr);
  }
};

// fp32 against double: a logit passes some 30 kernels whose sums have 24 to 96 terms, so it is off
// by about sqrt(30 * 96) * 2^-24 = 3e-6 of the largest.
void CheckLogits(const Fixture& fixture) {
  LowerOptions options;
  options.purpose = Purpose::kGenerate;
  TrainSetup setup = Setup(fixture, 0, 1);
  setup.batch.micro_batch = 1;
  Model model(setup, fixture.folder, options);
  const auto vocab = static_cast<size_t>(model.program.model.vocab);
  REQUIRE(vocab == 61);
  REQUIRE(fixture.expected["logits"].size() == kGlobalBatch * kLength);
  for (size_t row = 0; row < kGlobalBatch; ++row) {
    const std::vector<int32_t> tokens = fixture.expected["tokens"][0][row];
    for (int32_t t = 0; t < kLength; ++t) {
      CAPTURE(row);
      CAPTURE(t);
      const std::vector<double> expected =
          fixture.expected["logits"][row * kLength + static_cast<size_t>(t)];
      const std::vector<float> logits =
          model.engine.Logits(std::span(tokens).first(static_cast<size_t>(kLength)), t);
      REQUIRE(logits.size() >= vocab);
      double worst = 0, largest = 0;
      for (size_t v = 0; v < vocab; ++v) {
        worst = std::max(worst, std::abs(static_cast<double>(logits[v]) - expected[v]));
        largest = std::max(largest, std::abs(expected[v]));
      }
      CHECK(worst < 1e-5 * largest);
    }
  }
}

TEST_CASE("transformers: logits of every position") {
  for (const Fixture& fixture : Fixtures()) {
    CAPTURE(fixture.folder.string());
    CheckLogits(fixture);
  }
}

TEST_CASE("transformers: loss") {
  for (const Fixture& fixture : Fixtures()) {
    CAPTURE(fixture.folder.string());
    const double expected = fixture.expected["loss"];
    for (int ranks : {1, 2}) {
      Model model(Setup(fixture, 0, ranks), fixture.folder);
      const double loss = model.engine.Evaluate(Batch(fixture, model.program, 0));
      CHECK(std::abs(loss - expected) < 1e-5 * expected);
    }
  }
}

// Both sides compute in fp32 and round differently. That changes gradients by about 1e-6, but
// Adam's first steps go by the sign of a gradient, also of one near zero, and 30 steps of lr 2e-3
// carry such differences on: hence 1e-4 for the loss and, as a norm is a first power of what
// differs where a loss near its minimum is a second, 1e-3 for the norm.
void CheckTraining(const Fixture& fixture, int stage, int ranks, OffloadDevice optimizer) {
  CAPTURE(stage);
  TrainSetup setup = Setup(fixture, stage, ranks);
  setup.zero.offload_optimizer.device = optimizer;
  Model model(setup, fixture.folder);
  const std::vector<double> losses = fixture.expected["train_losses"];
  const std::vector<double> norms = fixture.expected["grad_norms"];
  for (size_t step = 0; step < losses.size(); ++step) {
    CAPTURE(step);
    const StepState state = model.engine.Step(Batch(fixture, model.program, step));
    CHECK(std::abs(state.loss_sum - losses[step]) < 1e-4 * losses[step]);
    CHECK(std::abs(static_cast<double>(state.grad_norm) - norms[step]) < 1e-3 * norms[step]);
  }
}

TEST_CASE("transformers: steps of training are PyTorch's") {
  for (const Fixture& fixture : Fixtures()) {
    CAPTURE(fixture.folder.string());
    CheckTraining(fixture, 0, 1, OffloadDevice::kNone);
    CheckTraining(fixture, 2, 2, OffloadDevice::kCpu);
  }
}

void CheckOutAndBack(const Fixture& fixture) {
  TrainSetup setup = Setup(fixture, 3, 2);
  setup.zero.param_persistence_threshold = 50;
  Model model(setup, fixture.folder);
  for (size_t step = 0; step < 3; ++step) model.engine.Step(Batch(fixture, model.program, step));
  const auto& table = *model.program.layout.tensors;
  testing::MemoryState saved(model.program.layout), again(model.program.layout);
  std::vector<StateSink*> sinks(2, &saved);
  model.engine.Save(sinks);
  const TempDir dir;
  WriteHfWeights(dir.path(), model.program.model, table, saved);

  // As a file, and once more through an engine of another layout.
  const HfWeightsSource source(dir.path(), model.program.model, table);
  Model reloaded(Setup(fixture, 0, 1), dir.path());
  std::vector<StateSink*> sink(1, &again);
  reloaded.engine.Save(sink);
  for (size_t t = 0; t < table.size(); ++t) {
    CAPTURE(table[t].name);
    std::vector<float> values(table[t].elements());
    source.Read({static_cast<int>(t), StateKind::kMaster, 0, values.size()}, values);
    CHECK(values == saved.master(t));
    CHECK(values == again.master(t));
  }
  const double loss = model.engine.Evaluate(Batch(fixture, model.program, 5));
  const double back = reloaded.engine.Evaluate(Batch(fixture, reloaded.program, 5));
  CHECK(std::abs(back - loss) < 1e-6 * loss);
}

TEST_CASE("transformers: trained weights go out and come back bit by bit") {
  for (const Fixture& fixture : Fixtures()) {
    CAPTURE(fixture.folder.string());
    CheckOutAndBack(fixture);
  }
}

}  // namespace
}  // namespace zeroplan
