// Worked by hand.
#include "cost_models/closed_form.h"

#include <doctest/doctest.h>

namespace zeroplan {
namespace {

PrecisionConfig Precision(Dtype dtype, Dtype grads) {
  PrecisionConfig precision;
  precision.dtype = dtype;
  precision.grad_accum_dtype = grads;
  return precision;
}

TEST_CASE("the ZeRO paper's table: 7.5B parameters on 64 GPUs, 120, 31.4, 16.6 and 1.9 GB") {
  const PrecisionConfig fp16 = Precision(Dtype::kF16, Dtype::kF16);
  CHECK(ModelStatesPerGpu(0, 7.5e9, 0, 64, fp16).total() == 120e9);
  CHECK(ModelStatesPerGpu(1, 7.5e9, 0, 64, fp16).total() == doctest::Approx(31.4e9).epsilon(0.001));
  CHECK(ModelStatesPerGpu(2, 7.5e9, 0, 64, fp16).total() ==
        doctest::Approx(16.64e9).epsilon(0.001));
  CHECK(ModelStatesPerGpu(3, 7.5e9, 0, 64, fp16).total() == doctest::Approx(1.875e9));
}

TEST_CASE("bytes per parameter by precision") {
  const StateBytesPerParam half = StateBytes(Precision(Dtype::kBF16, Dtype::kBF16));
  CHECK(half.params == 2);
  CHECK(half.grads == 2);
  CHECK(half.optimizer == 12);
  CHECK(StateBytes(Precision(Dtype::kBF16, Dtype::kF32)).grads == 4);
  const StateBytesPerParam full = StateBytes(Precision(Dtype::kF32, Dtype::kF32));
  CHECK(full.params == 4);
  CHECK(full.grads == 4);
  CHECK(full.optimizer == 8);
}

TEST_CASE("persistent parameters are whole on every rank") {
  // 1000 parameters, 200 persistent, 4 ranks: shards of 250, plus the 3/4 of 200 a rank does not
  // own.
  const ModelStates states =
      ModelStatesPerGpu(3, 1000, 200, 4, Precision(Dtype::kBF16, Dtype::kBF16));
  CHECK(states.params == 2 * (250 + 150));
  CHECK(states.grads == 2 * 250);
  CHECK(states.optimizer == 12 * 250);
}

TEST_CASE("elements sent, 4 ranks: three quarters of each pass over 1000 parameters") {
  VolumeTerms terms{.stage = 0, .psi = 1000, .grad_accum = 1, .ranks = 4};
  CHECK(ElementsSentPerStep(terms) == 1500);  // 2 psi
  terms.grad_accum = 8;
  CHECK(ElementsSentPerStep(terms) == 1500);  // reduced once
  terms.stage = 1;
  CHECK(ElementsSentPerStep(terms) == 1500);
  terms.stage = 2;
  CHECK(ElementsSentPerStep(terms) == 6750);  // (8 + 1) psi
  terms.stage = 3;
  CHECK(ElementsSentPerStep(terms) == 18000);  // 8 * 3 psi
  terms.psi_persistent = 200;
  CHECK(ElementsSentPerStep(terms) == (8 * (3000 - 400) + 200) * 0.75);
  terms.psi_reused = 100;
  CHECK(ElementsSentPerStep(terms) == (8 * (3000 - 400 - 100) + 200) * 0.75);
  terms.ranks = 1;
  CHECK(ElementsSentPerStep(terms) == 0);
}

TEST_CASE("without reduce_scatter: 3 psi at stage 1, (2g+1) psi at stage 2") {
  VolumeTerms terms{.stage = 1, .psi = 1000, .grad_accum = 4, .ranks = 2, .reduce_scatter = false};
  CHECK(ElementsSentPerStep(terms) == 1500);
  terms.stage = 2;
  CHECK(ElementsSentPerStep(terms) == 4500);
}

}  // namespace
}  // namespace zeroplan
