// A family that nothing but its own files knows is planned and trained like GPT-2.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "core/families/load_model.h"
#include "tests/agreement/family_checks.h"
#include "tests/core/families/made_up/made_up.h"

namespace zeroplan {
namespace {

using testing::MadeUp;

ModelSpec MadeUpModel() {
  const TempDir folder;
  const std::filesystem::path file = std::filesystem::path(folder.path()) / "config.json";
  std::ofstream(file) << testing::kMadeUpConfig;
  const ModelFamily* const families[] = {&MadeUp()};
  ModelSpec model = ReadHuggingFaceConfig(file, nullptr, families);
  model.padded_vocab = 40;
  return model;
}

// A size at which the planner's figures mean something.
ModelSpec LargeModel() {
  ModelSpec model = ModelFromParams(400'000'000, 1024, MadeUp());
  model.heads = model.hidden / 64;
  return model;
}

TEST_CASE("made-up family: gradients are the slopes of the engine's own loss") {
  testing::CheckGradients(MadeUpModel());
}

TEST_CASE("made-up family: stages, recompute, offload and accumulation follow stage 0") {
  testing::CheckStages(MadeUpModel());
}

TEST_CASE("made-up family: weights leave and come back as Hugging Face has them") {
  testing::CheckWeights(MadeUpModel());
}

TEST_CASE("made-up family: every choice is estimated, and its classes add up") {
  testing::CheckEstimates(LargeModel());
}

TEST_CASE("made-up family: the planner's bounds hold") { testing::CheckBounds(LargeModel()); }

}  // namespace
}  // namespace zeroplan
