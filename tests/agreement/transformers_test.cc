// zeroplan on the CPU against Hugging Face transformers and PyTorch, by small models that
// transformers saved. tests/agreement/cuda/transformers_cuda_test.cc does the same on a GPU.
#include <doctest/doctest.h>

#include "executor/checkpoint/hf_export.h"
#include "tests/agreement/memory_state.h"
#include "tests/agreement/transformers_checks.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

using namespace transformers_checks;

TEST_CASE("transformers: logits of every position") {
  for (const Fixture& fixture : Fixtures()) {
    CAPTURE(fixture.folder.string());
    CheckExactLogits(fixture, Backend::kCpu);
    CheckNoisyLogits(fixture, Backend::kCpu);
  }
}

TEST_CASE("transformers: logits of tokens one by one, by keys and values that are kept") {
  for (const Fixture& fixture : Fixtures()) {
    CAPTURE(fixture.folder.string());
    CheckExactDecoding(fixture, Backend::kCpu);
    CheckNoisyDecoding(fixture, Backend::kCpu);
  }
}

TEST_CASE("transformers: loss") {
  for (const Fixture& fixture : Fixtures()) {
    CAPTURE(fixture.folder.string());
    for (int ranks : {1, 2}) CheckExactLoss(fixture, {.ranks = ranks});
  }
}

TEST_CASE("transformers: steps of training are PyTorch's") {
  for (const Fixture& fixture : Fixtures()) {
    CAPTURE(fixture.folder.string());
    CheckExactTraining(fixture, {});
    CheckExactTraining(fixture, {.stage = 2, .ranks = 2, .optimizer = OffloadDevice::kCpu});
    CheckNoisyTraining(fixture, {.dtype = Dtype::kBF16});
  }
}

void CheckOutAndBack(const Fixture& fixture) {
  TrainSetup setup = Setup(fixture, {.stage = 3, .ranks = 2});
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
  Model reloaded(Setup(fixture, {}), dir.path());
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
