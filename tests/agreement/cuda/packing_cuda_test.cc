// Documents packed into rows on a GPU: cuDNN's kernels for ragged batches and own fused ones in 16
// bits, plain ones in fp32, against each document in a row of its own.
#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "executor/kernels/cuda/attention/attention_plans.h"
#include "tests/agreement/packed_training.h"

namespace zeroplan {
namespace {

using namespace packed_training;
using testing::BaseSetup;

TEST_CASE("gpu: packed documents train as each in a row of its own") {
  std::mt19937 random(1);
  for (const ModelSpec& narrow : {Gpt2Model(), LlamaModel(Llama()), LlamaModel(Qwen3())}) {
    const ModelSpec model = Wide(narrow);
    for (const RecomputeConfig& recompute : {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
      CAPTURE(model.family->name());
      CAPTURE(RecomputeName(recompute));
      const auto documents = RandomDocuments(random, 24);
      const Rows rows = Packed(documents, 1), separate = Separate(documents);
      const auto train = [&](Dtype dtype, bool borders, const Rows& batch, Backend backend,
                             const DocumentLimits& limits = {}, bool own = false,
                             bool deterministic = false) {
        TrainSetup setup = BaseSetup(0, 1, dtype, 1, recompute);
        setup.deterministic = deterministic;
        return Train(model, setup, borders, {batch}, backend, limits, own);
      };
      const auto apart = [](const Outcome& a, const Outcome& b) {
        return testing::FarthestTensor(a.moments, b.moments);
      };
      const Outcome want = train(Dtype::kF32, false, separate, Backend::kCpu);
      const double loss = want.steps[0].loss_sum;
      const Outcome packed = train(Dtype::kF32, true, rows, Backend::kCuda);
      CHECK(std::abs(packed.steps[0].loss_sum - loss) < 1e-5 * loss);
      CHECK(apart(packed, want) < 3e-4);
      // It would not pass without the borders.
      CHECK(apart(train(Dtype::kF32, false, rows, Backend::kCuda), want) > 0.1);

      // In 16 bits as far from fp32's gradients as separate rows are, by their rounding.
      const Outcome rounded = train(Dtype::kBF16, false, separate, Backend::kCuda);
      const double rounding = apart(rounded, want);
      CAPTURE(rounding);
      CHECK(rounding < 0.1);
      for (const DocumentLimits& limits : {DocumentLimits{}, {.most_in_row = 40, .longest = 40}}) {
        const Outcome packed_rounded = train(Dtype::kBF16, true, rows, Backend::kCuda, limits);
        CHECK(apart(packed_rounded, want) < 1.5 * rounding);
        CHECK(std::abs(packed_rounded.steps[0].loss_sum - loss) < 0x1p-8 * loss);
      }
      for (const bool deterministic : {false, true}) {
        const auto own = [&] {
          return train(Dtype::kBF16, true, rows, Backend::kCuda, {}, true, deterministic);
        };
        const Outcome once = own();
        CHECK(apart(once, want) < 1.5 * rounding);
        CHECK(std::abs(once.steps[0].loss_sum - loss) < 0x1p-8 * loss);
        if (deterministic) CHECK(apart(own(), once) == 0);
      }
    }
  }
}

// From the fourth step on launches are replayed: what they read must be the new batch's.
TEST_CASE("gpu: batches of other documents, step after step, as on the CPU") {
  std::mt19937 random(7);
  std::vector<Rows> batches;
  while (batches.size() < 6) {
    Rows rows = Packed(RandomDocuments(random, 20), 10);
    if (rows.count() == 10) batches.push_back(std::move(rows));
  }
  for (const ModelSpec& narrow : {Gpt2Model(), LlamaModel(Qwen3())}) {
    const ModelSpec model = Wide(narrow);
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      CAPTURE(model.family->name());
      CAPTURE(DtypeName(dtype));
      TrainSetup setup = BaseSetup(0, 1, dtype, 2, kNoRecompute);
      setup.optimizer.lr = 1e-4;  // or Adam's first steps amplify roundings
      const Outcome want = Train(model, setup, true, batches);
      const Outcome got = Train(model, setup, true, batches, Backend::kCuda);
      const double tolerance = dtype == Dtype::kF32 ? 3e-4 : 2e-2;
      for (size_t step = 0; step < batches.size(); ++step) {
        CAPTURE(step);
        CHECK(got.steps[step].loss_sum ==
              doctest::Approx(want.steps[step].loss_sum).epsilon(tolerance));
        CHECK(got.steps[step].grad_norm ==
              doctest::Approx(want.steps[step].grad_norm).epsilon(10 * tolerance));
      }
    }
  }
}

// What programs set aside is what cuDNN asks for, to the byte.
TEST_CASE("gpu: cuDNN takes documents in the workspace that is planned") {
  std::string why;
  const bool has_library = SdpaLibrary::Open(&why) != nullptr;
  CAPTURE(why);
  WARN(has_library);
  if (!has_library) return;
  AttentionPlans plans(0);
  for (const AttentionDims& dims :
       {AttentionDims{8, 2048, 32, 8, 64}, AttentionDims{2, 4096, 32, 8, 128},
        AttentionDims{16, 1024, 12, 12, 64}, AttentionDims{2, 1000, 6, 2, 96},
        AttentionDims{1, 2048, 16, 8, 128}}) {
    for (const DocumentLimits& limits :
         {DocumentLimits{}, {.most_in_row = 7, .longest = 300}, {.most_in_row = 8, .longest = 1}}) {
      plans.LimitDocuments(limits);
      for (const bool backward : {false, true}) {
        CAPTURE(dims.D);
        CAPTURE(limits.most_in_row);
        CAPTURE(backward);
        const KernelDims row = {dims.B, dims.T, dims.H, dims.G, dims.D};
        const SdpaDocuments found = plans.FindDocuments(
            dims, Dtype::kBF16, backward, AttentionDocumentsBytes(row, backward, true), false);
        REQUIRE(found.plan != nullptr);
        CHECK(found.plan->workspace_bytes == found.at.bytes - found.at.library);
      }
    }
  }
}

}  // namespace
}  // namespace zeroplan
