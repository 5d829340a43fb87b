#include "text/sequences/batch_sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <vector>

#include "core/base/error.h"
#include "tests/temp_dir.h"
#include "text/files/token_file.h"
#include "text/sequences/permutation.h"

namespace zeroplan {
namespace {

// A stream in which token k is k.
class Counting {
 public:
  explicit Counting(int32_t tokens) {
    std::vector<int32_t> values;
    for (int32_t i = 0; i < tokens; ++i) values.push_back(i);
    WriteTokenFile(folder_.path() + "/count.bin", values);
  }
  TokenDataset Open() const {
    return TokenDataset::Open(std::vector<std::string>{folder_.path() + "/count.bin"});
  }

 private:
  TempDir folder_;
};

struct Batch {
  std::vector<int32_t> inputs, targets;
  bool operator==(const Batch&) const = default;
};

// A global batch as the samples' rows in the order of their positions.
Batch GlobalBatch(const BatchSampler& sampler, const SamplerOptions& o, uint64_t consumed) {
  Batch all;
  for (int64_t m = 0; m < o.grad_accum; ++m) {
    for (int r = 0; r < o.world_size; ++r) {
      std::vector<int32_t> inputs(
          static_cast<size_t>(o.micro_batch * o.seq_len / o.sequence_ranks));
      std::vector<int32_t> targets(inputs.size());
      sampler.FillTrain(consumed, r, m, inputs, targets);
      all.inputs.insert(all.inputs.end(), inputs.begin(), inputs.end());
      all.targets.insert(all.targets.end(), targets.begin(), targets.end());
    }
  }
  return all;
}

TEST_CASE("permutation: a bijection that seeds and epochs change") {
  for (uint64_t size : {1, 2, 3, 4, 5, 7, 16, 17, 100, 255, 256, 257, 1000, 4097, 70'000}) {
    std::vector<bool> seen(size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t p = PermutedIndex(i, size, 42, 3);
      REQUIRE(p < size);
      REQUIRE_FALSE(seen[p]);
      seen[p] = true;
    }
  }
  const auto order = [](uint64_t seed, uint64_t epoch) {
    std::vector<uint64_t> list;
    for (uint64_t i = 0; i < 50; ++i) list.push_back(PermutedIndex(i, 50, seed, epoch));
    return list;
  };
  CHECK(order(1, 0) == order(1, 0));
  CHECK(order(1, 0) != order(1, 1));
  CHECK(order(1, 0) != order(2, 0));
  CHECK(order(1, 2) != order(2, 1));
  // Checkpoints rely on these values.
  CHECK(PermutedIndex(0, 1'000'000, 1, 0) == 357'630);
  CHECK(PermutedIndex(3, 1'000'000, 1, 0) == 956'141);
  CHECK(PermutedIndex(5, 10, 123, 4) == 1);
  const uint64_t huge = uint64_t{1} << 62;
  CHECK(PermutedIndex(huge - 1, huge, 7, 7) < huge);
}

TEST_CASE("permutation: every place is about equally likely") {
  // Chi-squared of 8 elements over 8 places in 8,000 epochs: 49 degrees of freedom, 99.99 %
  // below 95.
  constexpr uint64_t kSize = 8, kEpochs = 8000;
  double counts[kSize][kSize] = {};
  for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    for (uint64_t i = 0; i < kSize; ++i) ++counts[i][PermutedIndex(i, kSize, 5, epoch)];
  }
  double chi_squared = 0;
  const double expected = double(kEpochs) / kSize;
  for (const auto& row : counts) {
    for (const double count : row)
      chi_squared += (count - expected) * (count - expected) / expected;
  }
  CHECK(chi_squared < 95);
}

TEST_CASE("sampler: the documented order without shuffling, by hand") {
  // 25 tokens, T = 4: six samples. B = 1, two ranks, two micro-steps: four a step.
  const Counting counting(25);
  const TokenDataset data = counting.Open();
  const SamplerOptions o{
      .seq_len = 4, .micro_batch = 1, .grad_accum = 2, .world_size = 2, .shuffle = false};
  const BatchSampler sampler(data, o);
  CHECK(sampler.train_samples() == 6);
  CHECK(sampler.validation_samples() == 0);
  CHECK(sampler.validation_batches() == 0);
  std::vector<int32_t> inputs(4), targets(4);
  const auto expect = [&](uint64_t step, int rank, int64_t micro_step, int32_t first) {
    sampler.FillTrain(step * 4, rank, micro_step, inputs, targets);
    CHECK(inputs == std::vector<int32_t>{first, first + 1, first + 2, first + 3});
    CHECK(targets == std::vector<int32_t>{first + 1, first + 2, first + 3, first + 4});
  };
  expect(0, 0, 0, 0);   // k = 0
  expect(0, 1, 0, 4);   // k = 1
  expect(0, 0, 1, 8);   // k = 2
  expect(0, 1, 1, 12);  // k = 3
  expect(1, 0, 0, 16);  // k = 4
  expect(1, 1, 0, 20);  // k = 5, the last: its last target is token 24
  expect(1, 0, 1, 0);   // k = 6: over again
  expect(1, 1, 1, 4);
  expect(2, 0, 0, 8);
}

TEST_CASE("sampler: rows of a micro-batch follow each other") {
  const Counting counting(100);
  const TokenDataset data = counting.Open();
  const BatchSampler sampler(data,
                             {.seq_len = 3, .micro_batch = 2, .world_size = 2, .shuffle = false});
  std::vector<int32_t> inputs(6), targets(6);
  sampler.FillTrain(4, 1, 0, inputs, targets);  // k = 4 + 1*2 + {0, 1}
  CHECK(inputs == std::vector<int32_t>{18, 19, 20, 21, 22, 23});
  CHECK(targets == std::vector<int32_t>{19, 20, 21, 22, 23, 24});
}

TEST_CASE("sampler: an epoch visits each training sample once, and no validation sample") {
  const Counting counting(1003);  // 250 samples of 4
  const TokenDataset data = counting.Open();
  SamplerOptions o{.seq_len = 4, .micro_batch = 3, .grad_accum = 1, .world_size = 2};
  const BatchSampler sampler(data, o);
  CHECK(sampler.validation_samples() == 12);  // 5 % of 250 in whole batches of 6
  CHECK(sampler.train_samples() == 238);
  std::vector<uint64_t> previous;
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<uint64_t> order;
    for (uint64_t i = 0; i < 238; ++i) order.push_back(sampler.SampleAt(epoch * 238 + i));
    CHECK(order != previous);
    previous = order;
    CHECK_FALSE(std::is_sorted(order.begin(), order.end()));
    std::sort(order.begin(), order.end());
    for (uint64_t i = 0; i < 238; ++i) REQUIRE(order[i] == i);
  }
  // The validation part: the last 12 samples in order.
  CHECK(sampler.validation_batches() == 2);
  std::vector<int32_t> inputs(12), targets(12), firsts;
  for (int64_t batch = 0; batch < 2; ++batch) {
    for (int rank = 0; rank < 2; ++rank) {
      sampler.FillValidation(batch, rank, inputs, targets);
      for (size_t row = 0; row < 3; ++row) firsts.push_back(inputs[row * 4]);
      CHECK(targets[11] == inputs[11] + 1);
    }
  }
  for (size_t i = 0; i < 12; ++i) CHECK(firsts[i] == static_cast<int32_t>((238 + i) * 4));
  CHECK_THROWS_AS(sampler.FillValidation(2, 0, inputs, targets), CheckFailure);
}

TEST_CASE("sampler: the global batch does not depend on how it is cut") {
  const Counting counting(4001);
  const TokenDataset data = counting.Open();
  for (const bool shuffle : {false, true}) {
    Batch reference;
    // Ranks that share rows have their parts in the order of ranks.
    SamplerOptions shared{8, 1, 6, 16, shuffle, 9};
    shared.sequence_ranks = 4;
    for (const SamplerOptions& o : std::vector<SamplerOptions>{{8, 1, 24, 1, shuffle, 9},
                                                               {8, 24, 1, 1, shuffle, 9},
                                                               {8, 2, 3, 4, shuffle, 9},
                                                               {8, 3, 1, 8, shuffle, 9},
                                                               {8, 1, 1, 24, shuffle, 9},
                                                               shared}) {
      REQUIRE(o.global_batch() == 24);
      const BatchSampler sampler(data, o);
      // The third crosses the end of an epoch: 500 samples, 24 of them for validation.
      Batch all;
      for (const uint64_t consumed : {0, 24, 456, 24 * 1000}) {
        const Batch batch = GlobalBatch(sampler, o, consumed);
        all.inputs.insert(all.inputs.end(), batch.inputs.begin(), batch.inputs.end());
        all.targets.insert(all.targets.end(), batch.targets.begin(), batch.targets.end());
      }
      if (reference.inputs.empty()) reference = all;
      CHECK(all == reference);
    }
  }
}

TEST_CASE("sampler: how much is held back") {
  const Counting counting(1001);
  const TokenDataset data = counting.Open();  // 100 samples of 10
  const auto held = [&](int64_t batch, double fraction, bool shuffle = true) {
    return BatchSampler(data, {.seq_len = 10,
                               .micro_batch = batch,
                               .shuffle = shuffle,
                               .validation_fraction = fraction})
        .validation_samples();
  };
  CHECK(held(1, 0.05) == 5);
  CHECK(held(2, 0.05) == 4);    // whole batches
  CHECK(held(8, 0.05) == 8);    // at least one
  CHECK(held(50, 0.05) == 50);  // as much as training
  CHECK(held(51, 0.05) == 0);   // not two batches there
  CHECK(held(1, 0) == 0);
  CHECK(held(1, 0.05, false) == 0);
  CHECK(held(10, 0.999) == 90);  // training keeps a batch
}

TEST_CASE("sampler: too little data and bad options are errors") {
  const Counting counting(16);
  const TokenDataset data = counting.Open();
  CHECK_THROWS_WITH_AS(BatchSampler(data, {.seq_len = 16}),
                       "⟦data⟧: 16 tokens, but one sample of sequence length 16 needs 17", Error);
  const BatchSampler one(data, {.seq_len = 15, .micro_batch = 4});
  CHECK(one.train_samples() == 1);
  std::vector<int32_t> inputs(60), targets(60);
  one.FillTrain(0, 0, 0, inputs, targets);  // one sample, four times
  CHECK(targets[59] == 15);
  CHECK_THROWS_AS(BatchSampler(data, {.seq_len = 0}), Error);
  CHECK_THROWS_AS(BatchSampler(data, {.seq_len = 4, .micro_batch = 0}), Error);
  CHECK_THROWS_AS(BatchSampler(data, {.seq_len = 4, .validation_fraction = 1.0}), Error);
  CHECK_THROWS_AS(BatchSampler(data, {.seq_len = 4, .validation_fraction = -0.1}), Error);
}

TEST_CASE("what was held back stays so, whatever the batch and the sequence length become") {
  const Counting stream(10'000);
  const TokenDataset data = stream.Open();
  SamplerOptions before;
  before.seq_len = 16;
  before.micro_batch = 4;
  const BatchSampler first(data, before);
  const uint64_t trained = first.train_tokens();
  REQUIRE(trained > 9'000);
  REQUIRE(trained < 9'999);
  for (const int64_t length : {7, 16, 50}) {
    for (const int64_t batch : {1, 3, 7}) {
      SamplerOptions after = before;
      after.seq_len = length;
      after.micro_batch = batch;
      after.train_tokens = trained;
      const BatchSampler next(data, after);
      CAPTURE(length);
      CAPTURE(batch);
      CHECK(next.train_tokens() == trained);
      CHECK(next.train_samples() == trained / static_cast<uint64_t>(length));
      uint64_t consumed = 0;
      for (int step = 0; step < 50; ++step, consumed += static_cast<uint64_t>(batch)) {
        for (const int32_t token : GlobalBatch(next, after, consumed).inputs) {
          REQUIRE(static_cast<uint64_t>(token) < trained);
        }
      }
      std::vector<int32_t> inputs(static_cast<size_t>(batch * length)), targets(inputs.size());
      REQUIRE(next.validation_batches() > 0);
      for (int64_t b = 0; b < next.validation_batches(); ++b) {
        next.FillValidation(b, 0, inputs, targets);
        for (const int32_t token : inputs) REQUIRE(static_cast<uint64_t>(token) >= trained);
      }
    }
  }
  // All of it was trained on: nothing is held back now.
  SamplerOptions all = before;
  all.train_tokens = 9'999 / 16 * 16;
  CHECK(BatchSampler(data, all).validation_samples() == 0);
  all.train_tokens = 3;
  CHECK_THROWS_AS(BatchSampler(data, all), Error);
}

}  // namespace
}  // namespace zeroplan
