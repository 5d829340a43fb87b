// zeroplan on a GPU against Hugging Face transformers and PyTorch, by small models that
// transformers saved: with the bounds of the CPU's test.
#include <doctest/doctest.h>

#include <functional>

#include "tests/agreement/transformers_checks.h"

namespace zeroplan {
namespace {

using namespace transformers_checks;

TEST_CASE("cuda: transformers' logits of every position") {
  for (const Fixture& fixture : Fixtures()) {
    CAPTURE(fixture.folder.string());
    CheckExactLogits(fixture, Backend::kCuda);
    CheckNoisyLogits(fixture, Backend::kCuda);
  }
}

TEST_CASE("cuda: transformers' logits of tokens one by one, by keys and values that are kept") {
  for (const Fixture& fixture : Fixtures()) {
    CAPTURE(fixture.folder.string());
    CheckExactDecoding(fixture, Backend::kCuda);
    CheckNoisyDecoding(fixture, Backend::kCuda);
  }
}

TEST_CASE("cuda: transformers' loss") {
  for (const Fixture& fixture : Fixtures()) {
    CAPTURE(fixture.folder.string());
    CheckExactLoss(fixture, {.backend = Backend::kCuda});
  }
}

// The stages and offloads that one GPU can have.
void ForEachPlacement(Dtype dtype, const std::function<void(const Run&)>& check) {
  const Run run = {.backend = Backend::kCuda, .dtype = dtype};
  check(run);
  Run offloaded = run;
  offloaded.stage = 2;
  offloaded.optimizer = OffloadDevice::kCpu;
  check(offloaded);
  offloaded.stage = 3;
  offloaded.param = OffloadDevice::kCpu;
  check(offloaded);
}

TEST_CASE("cuda: steps of training in fp32 are PyTorch's") {
  for (const Fixture& fixture : Fixtures()) {
    CAPTURE(fixture.folder.string());
    ForEachPlacement(Dtype::kF32, [&](const Run& run) { CheckExactTraining(fixture, run); });
  }
}

TEST_CASE("cuda: steps of training in bf16 are PyTorch's but for bf16's noise") {
  for (const Fixture& fixture : Fixtures()) {
    CAPTURE(fixture.folder.string());
    ForEachPlacement(Dtype::kBF16, [&](const Run& run) { CheckNoisyTraining(fixture, run); });
  }
}

}  // namespace
}  // namespace zeroplan
