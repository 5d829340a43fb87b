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

TEST_CASE("bytes per parameter by kinds of states: stored beside parameters, apart, moved") {
  struct Kind {
    MasterWeights masters;
    Dtype moments;
    double beside, apart, moved;
  };
  constexpr double kCode = 1040.0 / 1024;  // a code, and its share of a scale
  for (const Kind& kind :
       {Kind{MasterWeights::kFp32, Dtype::kF32, 12, 12, 28},
        {MasterWeights::kSplit, Dtype::kF32, 10, 12, 26},
        {MasterWeights::kParam, Dtype::kBF16, 4, 6, 14},
        {MasterWeights::kFp32, Dtype::kDynamic8, 4 + 2 * kCode, 4 + 2 * kCode, 12 + 4 * kCode},
        {MasterWeights::kParam, Dtype::kDynamic8, 2 * kCode, 2 + 2 * kCode, 6 + 4 * kCode}}) {
    PrecisionConfig precision = Precision(Dtype::kBF16, Dtype::kBF16);
    precision.master_weights = kind.masters;
    precision.moment_dtype = kind.moments;
    CHECK(StateBytes(precision).optimizer == kind.beside);
    CHECK(StateBytes(precision, /*with_params=*/false).optimizer == kind.apart);
    CHECK(UpdateBytesPerParam(precision) == kind.moved);
  }
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

// 16 ranks in two groups of 8: what a group does is ZeRO's of 8 ranks, and an eighth of the
// parameters crosses.
TEST_CASE("shard groups: model states") {
  const PrecisionConfig bf16 = Precision(Dtype::kBF16, Dtype::kBF16);
  const auto states = [&](int stage, int across, bool crosses) {
    return ModelStatesPerGpu(stage, 1600, 0, {16, 8, across, crosses}, bf16);
  };
  CHECK(states(1, 0, false).total() == 2 * 1600 + 2 * 1600 + 12 * 200);
  CHECK(states(1, 1, false).total() == 2 * 1600 + 2 * 1600 + 12 * 100);
  CHECK(states(2, 0, false).total() == 2 * 1600 + 2 * 200 + 12 * 200);
  CHECK(states(2, 1, false).total() == 2 * 1600 + 2 * 200 + 12 * 100);
  CHECK(states(2, 2, true).total() == 2 * 1600 + 2 * 100 + 12 * 100);
  CHECK(states(3, 0, false).total() == 16 * 200);
  CHECK(states(3, 1, false).total() == 2 * 200 + 2 * 200 + 12 * 100);
  CHECK(states(3, 2, true).total() == 2 * 200 + 2 * 100 + 12 * 100);
  // Replicas that reduce in every micro-step keep their shard all the same.
  CHECK(states(3, 0, true).total() == 16 * 200);
  // Kept whole: 7 eighths more than the shard.
  CHECK(ModelStatesPerGpu(3, 1600, 160, {16, 8, 2, true}, bf16).params == 2 * (200 + 140));
}

TEST_CASE("shard groups: elements sent within a group and across") {
  VolumeTerms terms{.stage = 3, .psi = 1600, .grad_accum = 4, .ranks = 16};
  const auto sent = [&](int across, bool crosses) {
    return ElementsSentByAxis(terms, {16, 8, across, crosses});
  };
  // Three passes a micro-step over 7 eighths; 200 elements cross, half of them on a ring of two.
  CHECK(sent(0, false).within == 4 * 3 * 1400);
  CHECK(sent(0, false).across == 2 * 100);
  CHECK(sent(1, false).across == (1 + 1) * 100);
  CHECK(sent(2, true).across == (4 + 1) * 100);
  CHECK(sent(0, true).across == 4 * 2 * 100);
  terms.stage = 2;
  CHECK(sent(0, false).within == (4 + 1) * 1400);
  CHECK(sent(2, true).across == (4 + 1) * 100);
  terms.stage = 1;
  CHECK(sent(1, false).within == 2 * 1400);
  CHECK(sent(1, false).across == (1 + 1) * 100);
  // All-reduced over all 16 ranks instead.
  terms.reduce_scatter = false;
  CHECK(sent(0, false).within == 1400);
  CHECK(sent(0, false).across == 0);
  CHECK(sent(0, false).all == 2 * 1500);
  CHECK(sent(1, false).across == 100);
  // One group of all: nothing crosses.
  terms = {.stage = 3, .psi = 1600, .grad_accum = 1, .ranks = 16};
  CHECK(ElementsSentByAxis(terms, {16, 16, 0, false}).total() == ElementsSentPerStep(terms));
}

}  // namespace
}  // namespace zeroplan
