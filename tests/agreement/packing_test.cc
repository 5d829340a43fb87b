// Documents packed into rows train as each on its own, and a batch of which some targets do not
// count is the same however it is cut: losses, and gradients by AdamW's first moments.
#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/agreement/packed_training.h"

namespace zeroplan {
namespace {

using namespace packed_training;
using testing::BaseSetup;
using testing::Offload;

// fp32's sums come in another order. In bf16 packed rows are to be as far from fp32's gradients as
// separate ones are, by their rounding, and not farther.
TEST_CASE("packed documents train as each in a row of its own") {
  std::mt19937 random(1);
  for (const ModelSpec& model :
       {Gpt2Model(), LlamaModel(Llama()), LlamaModel(Qwen2()), LlamaModel(Qwen3())}) {
    for (const RecomputeConfig& recompute : {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
      CAPTURE(model.family->name());
      CAPTURE(RecomputeName(recompute));
      const auto documents = RandomDocuments(random, 24);
      const Rows rows = Packed(documents, 1), separate = Separate(documents);
      CHECK(rows.count() < 24);
      const auto train = [&](Dtype dtype, bool borders, const Rows& batch) {
        return Train(model, BaseSetup(0, 1, dtype, 1, recompute), borders, {batch});
      };
      const auto apart = [](const Outcome& a, const Outcome& b) {
        return testing::FarthestTensor(a.moments, b.moments);
      };
      const Outcome want = train(Dtype::kF32, false, separate);
      const Outcome packed = train(Dtype::kF32, true, rows);
      const double loss = want.steps[0].loss_sum;
      CHECK(std::abs(packed.steps[0].loss_sum - loss) < 2e-6 * loss);
      CHECK(apart(packed, want) < 2e-5);
      // It would not pass without the borders.
      CHECK(apart(train(Dtype::kF32, false, rows), want) > 0.1);

      const Outcome rounded = train(Dtype::kBF16, false, separate);
      const Outcome packed_rounded = train(Dtype::kBF16, true, rows);
      const double rounding = apart(rounded, want);
      CAPTURE(rounding);
      CHECK(rounding < 0.1);
      CHECK(apart(packed_rounded, want) < 1.5 * rounding);
      CHECK(apart(packed_rounded, rounded) < 0.5 * rounding);
      // Logits are rounded to 2^-9 of themselves, each on its own.
      CHECK(std::abs(packed_rounded.steps[0].loss_sum - rounded.steps[0].loss_sum) <
            0x1p-10 * loss);
    }
  }
}

TEST_CASE("packed documents have the gradients of the mathematics, over the targets that count") {
  std::mt19937 random(2);
  const ModelSpec model = Gpt2Model();
  const auto documents = RandomDocuments(random, 16);
  const TrainSetup setup = BaseSetup(0, 1, Dtype::kF32, 1, kNoRecompute);
  const Outcome packed = Train(model, setup, true, {Packed(documents, 1)});
  const auto table = BuildParamTable(model);
  testing::Tensors grads;
  const double loss = testing::ReferenceModel(model).Loss(testing::RandomState(table, 5).weights,
                                                          documents, &grads);
  CHECK(std::abs(packed.steps[0].loss_sum - loss) < 1e-5 * loss);
  double squares = 0;
  testing::FirstMoments want;
  for (const testing::Values& tensor : grads) {
    std::vector<float>& moments = want.emplace_back();
    for (const double g : tensor) {
      moments.push_back(static_cast<float>((1 - setup.optimizer.betas[0]) * g));
      squares += g * g;
    }
  }
  CHECK(packed.steps[0].grad_norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-5));
  const double apart = testing::FarthestTensor(packed.moments, want);
  CAPTURE(apart);
  CHECK(apart < 2e-5);
}

// However ranks and micro-steps cut it, though one has hardly a target that counts and another all.
TEST_CASE("a batch of which some targets do not count is the same however it is cut") {
  std::mt19937 random(3);
  std::vector<Rows> batches;
  for (int step = 0; step < 3; ++step) {
    std::vector<testing::Sequence> documents;
    do {
      documents = RandomDocuments(random, 19);
    } while (Packed(documents, 1).count() > 8 || Packed(documents, 1).count() < 6);
    batches.push_back(Packed(documents, 8));
    REQUIRE(batches.back().count() == 8);
  }
  struct Cut {
    int stage, ranks;
    int64_t grad_accum;
    Offload offload = Offload::kNone;
  };
  for (const ModelSpec& model : {Gpt2Model(), LlamaModel(Llama())}) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kF16}) {
      const Outcome control = Train(model, BaseSetup(0, 1, dtype, 1, kNoRecompute), true, batches);
      CHECK(control.steps[2].loss_sum > 0);
      for (const Cut& cut : {Cut{0, 2, 1}, Cut{0, 1, 8}, Cut{1, 2, 4}, Cut{2, 4, 2}, Cut{3, 2, 1},
                             Cut{3, 4, 2}, Cut{3, 2, 4}, Cut{2, 2, 2, Offload::kOptimizer},
                             Cut{3, 2, 2, Offload::kBoth}, Cut{3, 2, 2, Offload::kNvme}}) {
        CAPTURE(model.family->name());
        CAPTURE(DtypeName(dtype));
        CAPTURE(cut.stage);
        CAPTURE(cut.ranks);
        CAPTURE(cut.grad_accum);
        CAPTURE(testing::OffloadLabel(cut.offload));
        TrainSetup setup = BaseSetup(cut.stage, cut.ranks, dtype, cut.grad_accum, kNoRecompute);
        testing::SetOffload(setup, cut.offload);
        const Outcome outcome = Train(model, setup, true, batches);
        // fp32: sums in another order, over three steps of Adam (parity_test.cc). fp16: gradients
        // rounded to 2^-12 of themselves at each addition.
        const double tolerance = dtype == Dtype::kF32 ? 2e-4 : 0x1p-6;
        for (size_t step = 0; step < batches.size(); ++step) {
          CHECK(outcome.steps[step].skip == kTaken);
          const double want = control.steps[step].loss_sum;
          CHECK(std::abs(outcome.steps[step].loss_sum - want) < tolerance * want);
          CHECK(outcome.steps[step].grad_norm ==
                doctest::Approx(control.steps[step].grad_norm).epsilon(tolerance));
        }
        const double apart = testing::FarthestTensor(outcome.moments, control.moments);
        CAPTURE(apart);
        CHECK(apart < 5 * tolerance);
      }
    }
  }
}

TEST_CASE("a batch of which no target counts leaves everything as it is") {
  std::mt19937 random(4);
  const auto documents = RandomDocuments(random, 12);
  const Rows good = Packed(documents, 4);
  Rows nothing = good;
  std::fill(nothing.targets.begin(), nothing.targets.end(), -1);
  for (const int ranks : {1, 2}) {
    const TrainSetup setup = BaseSetup(ranks == 1 ? 0 : 3, ranks, Dtype::kF32, 2, kNoRecompute);
    const Outcome plain = Train(Gpt2Model(), setup, true, {good});
    const Outcome skipped = Train(Gpt2Model(), setup, true, {nothing, good, nothing});
    CHECK(skipped.steps[0].skip == kNothingCounts);
    CHECK(skipped.steps[0].loss_sum == 0);
    CHECK(skipped.steps[0].step == 0);
    CHECK(skipped.steps[2].skipped_steps == 2);
    CHECK(skipped.steps[1].loss_sum == plain.steps[0].loss_sum);
    CHECK(skipped.weights == plain.weights);
  }
}

// The loss over a batch's counted targets, of evaluation.
TEST_CASE("evaluation says how many targets its loss is over") {
  std::mt19937 random(6);
  const auto documents = RandomDocuments(random, 12);
  const Rows rows = Packed(documents, 4);
  int64_t counted = 0;
  for (const int32_t target : rows.targets) counted += target >= 0;
  for (const int ranks : {1, 2}) {
    TrainSetup setup = BaseSetup(0, ranks, Dtype::kF32, 1, kNoRecompute);
    setup.batch.seq_len = kT;
    setup.batch.micro_batch = rows.count() / ranks;
    LowerOptions lower;
    lower.document_borders = true;
    const ModelSpec model = Gpt2Model();
    const Program program = Lower(model, setup, lower);
    Engine engine(program, {.threads_per_rank = 1});
    engine.Init();
    testing::MemoryState state(program.layout);
    const testing::RandomState start(*program.layout.tensors, 5);
    start.WriteTo(state);
    engine.Load(state, true, nullptr);
    int64_t said = 0;
    const double mean = engine.Evaluate(packed_training::Cut(rows, program), &said);
    CHECK(said == counted);
    const double loss = mean * static_cast<double>(rows.count() * kT) / static_cast<double>(said);
    const double want = testing::ReferenceModel(model).Loss(start.weights, documents);
    CHECK(std::abs(loss - want) < 1e-5 * want);
  }
}

}  // namespace
}  // namespace zeroplan
