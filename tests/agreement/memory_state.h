// Checkpoint state kept in memory, for tests.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "executor/checkpoint/state_io.h"
#include "executor/engine/engine.h"

namespace zeroplan::testing {

// [tensor][state] -> all elements of the tensor.
class MemoryState : public StateSource, public StateSink {
 public:
  explicit MemoryState(const ParamLayout& layout) {
    for (const ParamTensor& tensor : *layout.tensors) {
      for (auto& state : values_.emplace_back()) state.assign(tensor.elements(), 0.0f);
    }
  }
  void Read(const TensorRange& range, std::span<float> out) const override {
    const std::vector<float>& all = At(range);
    std::copy_n(all.begin() + static_cast<int64_t>(range.begin), range.count, out.begin());
  }
  // Ranks write disjoint ranges, so they need no lock.
  void Write(const TensorRange& range, std::span<const float> values) override {
    auto& all = const_cast<std::vector<float>&>(At(range));
    std::copy(values.begin(), values.end(), all.begin() + static_cast<int64_t>(range.begin));
  }
  bool operator==(const MemoryState& other) const { return values_ == other.values_; }
  const std::vector<float>& master(size_t tensor) const { return values_[tensor][0]; }

 private:
  const std::vector<float>& At(const TensorRange& range) const {
    return values_[static_cast<size_t>(range.tensor)][static_cast<size_t>(range.state)];
  }
  std::vector<std::array<std::vector<float>, 3>> values_;
};

// Random tokens, the same for every way to cut a global batch.
inline void FillRandom(const Program& program, uint64_t step, int rank, int64_t micro_step,
                       std::span<int32_t> inputs, std::span<int32_t> targets) {
  const BatchSpec& batch = program.setup.batch;
  const int group = rank / batch.sequence_ranks;
  const int64_t length = batch.local_seq(), begin = rank % batch.sequence_ranks * length;
  for (int64_t i = 0; i < batch.micro_batch; ++i) {
    const auto row =
        static_cast<uint64_t>((micro_step * batch.data_ranks() + group) * batch.micro_batch + i);
    uint64_t x = (step * 1000003 + row) * 0x9E3779B97F4A7C15ull + 12345;
    auto next = [&] {
      x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
      return static_cast<int32_t>((x * 0x2545F4914F6CDD1Dull >> 33) %
                                  static_cast<uint64_t>(program.model.vocab));
    };
    int32_t token = next();
    for (int64_t t = 0; t < batch.seq_len; ++t) {
      const int32_t input = token;
      token = t % 3 == 0 ? next() : (token * 7 + 3) % static_cast<int32_t>(program.model.vocab);
      if (t < begin || t >= begin + length) continue;
      const auto at = static_cast<size_t>(i * length + t - begin);
      inputs[at] = input;
      targets[at] = token;
    }
  }
}

inline FillBatch RandomBatch(const Program& program, uint64_t step) {
  return
      [&program, step](int rank, int64_t m, std::span<int32_t> inputs, std::span<int32_t> targets) {
        FillRandom(program, step, rank, m, inputs, targets);
      };
}

}  // namespace zeroplan::testing
