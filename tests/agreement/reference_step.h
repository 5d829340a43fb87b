// AdamW in double precision, and random states to start from, beside reference_model.h.
#pragma once

#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "core/model/param_table.h"
#include "core/settings/zero_config.h"
#include "tests/agreement/memory_state.h"
#include "tests/agreement/reference_model.h"

namespace zeroplan::testing {

inline double GlobalNorm(const Tensors& grads) {
  double sum = 0;
  for (const Values& tensor : grads) {
    for (double g : tensor) sum += g * g;
  }
  return std::sqrt(sum);
}

// As torch.nn.utils.clip_grad_norm_ has it; `limit` 0: off.
inline double ClipFactor(double norm, double limit) {
  return limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
}

// The nearest number with 8 significant bits, ties to even. REQUIRES: far from bf16's limits.
inline double RoundToBf16(double x) {
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
}

struct AdamElement {
  double weight, m, v;
};
// Step number `step`, counted from 1, of one element (Loshchilov and Hutter 2019, algorithm 2).
inline AdamElement AdamWUpdate(const OptimizerConfig& config, bool decay, int64_t step, double g,
                               AdamElement e) {
  const auto [beta1, beta2] = config.betas;
  e.m = beta1 * e.m + (1 - beta1) * g;
  e.v = beta2 * e.v + (1 - beta2) * g * g;
  const double t = static_cast<double>(step);
  const double m_hat = e.m / (1 - std::pow(beta1, t)), v_hat = e.v / (1 - std::pow(beta2, t));
  const double decayed = decay ? config.weight_decay * e.weight : 0;
  e.weight -= config.lr * (m_hat / (std::sqrt(v_hat) + config.eps) + decayed);
  return e;
}

// Weights large enough that every tensor matters and no gradient is near zero, and Adam states as
// a run has them after some steps: an update from zero states would be the sign of the gradient and
// hide its size. Everything is exactly representable in fp32.
struct RandomState {
  Tensors weights, m, v;

  RandomState(std::span<const ParamTensor> table, uint32_t seed) {
    std::mt19937 random(seed);
    const auto uniform = [&](double low, double high) {
      const double share = static_cast<double>(random() >> 8) / static_cast<double>(1 << 24);
      return static_cast<double>(static_cast<float>(low + (high - low) * share));
    };
    for (const ParamTensor& tensor : table) {
      const bool scale = tensor.init == InitKind::kOnes;
      for (Values* list : {&weights.emplace_back(), &m.emplace_back(), &v.emplace_back()}) {
        list->resize(tensor.elements());
      }
      for (size_t i = 0; i < tensor.elements(); ++i) {
        weights.back()[i] = scale ? uniform(0.7, 1.3) : uniform(-0.5, 0.5);
        m.back()[i] = uniform(-0.02, 0.02);
        v.back()[i] = uniform(2e-4, 1e-3);
      }
    }
  }

  void WriteTo(MemoryState& state) const {
    const Tensors* lists[] = {&weights, &m, &v};
    for (size_t t = 0; t < weights.size(); ++t) {
      for (int kind = 0; kind < 3; ++kind) {
        const Values& values = (*lists[kind])[t];
        const std::vector<float> floats(values.begin(), values.end());
        state.Write({static_cast<int>(t), static_cast<StateKind>(kind), 0, floats.size()}, floats);
      }
    }
  }
};

// All sequences of the global batch that FillRandom cuts up for this program.
inline std::vector<Sequence> GlobalBatch(const Program& program, uint64_t step) {
  const BatchSpec& batch = program.setup.batch;
  const auto length = static_cast<size_t>(batch.seq_len);
  const auto count = static_cast<size_t>(batch.micro_batch) * length;
  std::vector<Sequence> sequences;
  for (int64_t m = 0; m < batch.grad_accum; ++m) {
    for (int rank = 0; rank < batch.world_size; ++rank) {
      std::vector<int32_t> inputs(count), targets(count);
      FillRandom(program, step, rank, m, inputs, targets);
      for (size_t i = 0; i < count; i += length) {
        const auto from = static_cast<int64_t>(i), to = static_cast<int64_t>(i + length);
        sequences.push_back({{inputs.begin() + from, inputs.begin() + to},
                             {targets.begin() + from, targets.begin() + to}});
      }
    }
  }
  return sequences;
}

inline double LargestMagnitude(const Values& values) {
  double largest = 0;
  for (double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

}  // namespace zeroplan::testing
