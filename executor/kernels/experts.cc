// Mixtures of experts: routing, the rows of experts in their order, their gated SwiGLU, their
// matmuls and the auxiliary losses. Legend: core/program/expert_kernel_rows.inc's.
#include <algorithm>
#include <cmath>

#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/gemm.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan::cpu {
namespace {

using simd::Load;
using simd::Store;
using simd::VecF;

constexpr int64_t kTokenGrain = 32;

struct Route {
  int64_t M, E, k, normalized, shared;

  explicit Route(const KernelCall& call)
      : M(call.dims[0]),
        E(call.dims[1]),
        k(call.dims[2]),
        normalized(call.dims[3]),
        shared(call.dims[4]) {
    ZEROPLAN_CHECK(k >= 1 && k <= E, "{} of {} experts", k, E);
  }
  int64_t columns() const { return E + shared; }
};

// p_E = softmax of logits_E; returns the logsumexp.
double Softmax(const float* logits_E, int64_t E, double* p_E) {
  const double largest = *std::max_element(logits_E, logits_E + E);
  double sum = 0;
  for (int64_t e = 0; e < E; ++e) sum += p_E[e] = std::exp(logits_E[e] - largest);
  for (int64_t e = 0; e < E; ++e) p_E[e] /= sum;
  return largest + std::log(sum);
}

double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }

double* Doubles(Scratch& scratch, int64_t count) {
  return static_cast<double*>(scratch.Bytes(count * static_cast<int64_t>(sizeof(double))));
}

// The columns of the k largest values. They are valid and distinct with NaNs too.
// NaNs come last.
void PickLargest(const float* values_E, int64_t E, int64_t k, uint8_t* taken_E, int32_t* picks_k) {
  std::fill_n(taken_E, E, uint8_t{0});
  const auto larger = [](float a, float b) { return a > b || (std::isnan(b) && !std::isnan(a)); };
  for (int64_t j = 0; j < k; ++j) {
    int64_t best = -1;
    for (int64_t e = 0; e < E; ++e) {
      if (taken_E[e] == 0 && (best < 0 || larger(values_E[e], values_E[best]))) best = e;
    }
    taken_E[best] = 1;
    picks_k[j] = static_cast<int32_t>(best);
  }
}

float GateOf(const KernelArg& gates, const KernelArg& order_R, int64_t r) {
  return gates.as<const float>()[Present(order_R) ? order_R.as<const int32_t>()[r] : r];
}

ZEROPLAN_INLINE VecF SigmoidOf(VecF x) { return 1.0f / (simd::Exp(-x) + 1.0f); }

// fn(row) on the pool's threads; a row has F columns.
template <typename Fn>
void ForEachRow(const KernelCall& call, int64_t rows, int64_t F, Fn&& fn) {
  const int64_t grain = std::max<int64_t>(1, 4 * kBlock / std::max<int64_t>(F, 1));
  call.context.pool->ParallelFor(rows, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) fn(r);
  });
}

// Elements [first, first + count) of an argument as an argument.
KernelArg Elements(const KernelArg& arg, int64_t first, int64_t count) {
  return {ElementAt(arg, first), static_cast<uint64_t>(count) * DtypeBytes(arg.dtype), arg.dtype};
}

// fn(expert, first row, rows) for each.
template <typename Fn>
void ForEachExpert(const KernelArg& starts_E1, int64_t E, Fn&& fn) {
  const auto* starts = starts_E1.as<const int32_t>();
  for (int64_t e = 0; e < E; ++e) fn(e, int64_t{starts[e]}, int64_t{starts[e + 1]} - starts[e]);
}

}  // namespace

void RouteForward(const KernelCall& call) {
  const Route s(call);
  const auto* logits = Arg(call, 0).as<const float>();
  auto* picks = Arg(call, 1).as<int32_t>();
  auto *gates = Arg(call, 2).as<float>(), *shared = Arg(call, 3).as<float>();
  ThreadPool& pool = *call.context.pool;
  pool.ParallelFor(s.M, kTokenGrain, [&](int64_t begin, int64_t end, int worker) {
    Scratch scratch(pool, worker);
    double* p = Doubles(scratch, s.E);
    auto* taken = static_cast<uint8_t*>(scratch.Bytes(s.E));
    for (int64_t m = begin; m < end; ++m) {
      const float* row = logits + m * s.columns();
      Softmax(row, s.E, p);
      PickLargest(row, s.E, s.k, taken, picks + m * s.k);
      double sum = 0;
      for (int64_t j = 0; j < s.k; ++j) sum += p[picks[m * s.k + j]];
      for (int64_t j = 0; j < s.k; ++j) {
        gates[m * s.k + j] = static_cast<float>(p[picks[m * s.k + j]] / (s.normalized ? sum : 1));
      }
      if (s.shared) shared[m] = static_cast<float>(SigmoidOf(double{row[s.E]}));
    }
  });
}

void RouteBackward(const KernelCall& call) {
  const Route s(call);
  const auto* logits = Arg(call, 0).as<const float>();
  const auto* picks = Arg(call, 1).as<const int32_t>();
  const auto *dgates = Arg(call, 2).as<const float>(), *dshared = Arg(call, 3).as<const float>();
  const auto* balance = Arg(call, 4).as<const float>();
  const KernelArg& dlogits_MN = Arg(call, 5);
  ThreadPool& pool = *call.context.pool;
  pool.ParallelFor(s.M, kTokenGrain, [&](int64_t begin, int64_t end, int worker) {
    Scratch scratch(pool, worker);
    double *p = Doubles(scratch, s.E), *g = Doubles(scratch, s.E);
    float* buffer = scratch.Floats(s.columns());
    for (int64_t m = begin; m < end; ++m) {
      const float* row = logits + m * s.columns();
      const int32_t* picked = picks + m * s.k;
      const float* d = dgates + m * s.k;
      const double lse = Softmax(row, s.E, p);
      for (int64_t e = 0; e < s.E; ++e) g[e] = balance != nullptr ? double{balance[e]} : 0;
      double sum = 1, mean = 0;  // for normalized gates: their divisor, and the gates' mean of d
      if (s.normalized) {
        sum = 0;
        for (int64_t j = 0; j < s.k; ++j) sum += p[picked[j]];
        for (int64_t j = 0; j < s.k; ++j) mean += double{d[j]} * p[picked[j]] / sum;
      }
      for (int64_t j = 0; j < s.k; ++j) g[picked[j]] += (double{d[j]} - mean) / sum;
      double dot = 0;
      for (int64_t e = 0; e < s.E; ++e) dot += g[e] * p[e];
      const double of_lse = balance != nullptr ? balance[s.E] * lse : 0;
      float* out = WriteBlock(dlogits_MN, m * s.columns(), buffer);
      for (int64_t e = 0; e < s.E; ++e) {
        out[e] = static_cast<float>(p[e] * (g[e] - dot + of_lse));
      }
      if (s.shared) {
        const double gate = SigmoidOf(double{row[s.E]});
        out[s.E] = static_cast<float>(dshared[m] * gate * (1 - gate));
      }
      CommitBlock(dlogits_MN, m * s.columns(), s.columns(), buffer);
    }
  });
}

void OrderRows(const KernelCall& call) {
  const auto [M, k, E] = FirstDims<3>(call.dims);
  const int64_t R = M * k;
  const auto* picks = Arg(call, 0).as<const int32_t>();
  auto *starts = Arg(call, 1).as<int32_t>(), *order = Arg(call, 2).as<int32_t>(),
       *places = Arg(call, 3).as<int32_t>();
  std::fill_n(starts, E + 1, 0);
  for (int64_t r = 0; r < R; ++r) ++starts[picks[r] + 1];
  for (int64_t e = 0; e < E; ++e) starts[e + 1] += starts[e];
  int32_t* next = static_cast<int32_t*>(Scratch(*call.context.pool, 0).Bytes(E * 4));
  std::copy_n(starts, E, next);
  for (int64_t r = 0; r < R; ++r) {
    const int32_t place = next[picks[r]]++;
    order[place] = static_cast<int32_t>(r);
    places[r] = place;
  }
}

void GatherRows(const KernelCall& call) {
  const auto [M, C, k] = FirstDims<3>(call.dims);
  const KernelArg &x_MC = Arg(call, 0), &y_RC = Arg(call, 2);
  const auto* places = Arg(call, 1).as<const int32_t>();
  ForEachRow(call, M, C * k, [&, C = C, k = k](int64_t m) {
    alignas(64) float x_buffer[kBlock], y_buffer[kBlock];
    ForEachBlock(0, C, [&](int64_t first, int64_t count) {
      const float* x = ReadBlock(x_MC, m * C + first, count, x_buffer);
      for (int64_t j = 0; j < k; ++j) {
        const int64_t at = places[m * k + j] * C + first;
        std::copy_n(x, count, WriteBlock(y_RC, at, y_buffer));
        CommitBlock(y_RC, at, count, y_buffer);
      }
    });
  });
}

void SumRows(const KernelCall& call) {
  const auto [M, C, k] = FirstDims<3>(call.dims);
  const KernelArg &y_RC = Arg(call, 0), &residual_MC = Arg(call, 2), &x_MC = Arg(call, 3);
  const auto* places = Arg(call, 1).as<const int32_t>();
  const bool accumulate = call.has(kAccumulate);
  ForEachRow(call, M, C * k, [&, C = C, k = k](int64_t m) {
    alignas(64) float sum[kBlock], buffer[kBlock];
    ForEachBlock(0, C, [&](int64_t first, int64_t count) {
      std::fill_n(sum, count, 0.0f);
      const auto add = [&](const KernelArg& arg, int64_t row) {
        const float* x = ReadBlock(arg, row * C + first, count, buffer);
        simd::VectorLoop(count, [&](int64_t i, auto part) {
          Store(sum + i, Load(sum + i, part) + Load(x + i, part), part);
        });
      };
      for (int64_t j = 0; j < k; ++j) add(y_RC, places[m * k + j]);
      if (Present(residual_MC)) add(residual_MC, m);
      if (accumulate) add(x_MC, m);
      if (x_MC.dtype == Dtype::kF32) {
        std::copy_n(sum, count, x_MC.as<float>() + m * C + first);
      } else {
        Narrow(x_MC.dtype, sum, count, ElementAt(x_MC, m * C + first));
      }
    });
  });
}

void GatedSwiGluForward(const KernelCall& call) {
  const auto [R, F] = FirstDims<2>(call.dims);
  const KernelArg &gu_R2F = Arg(call, 0), &y_RF = Arg(call, 3);
  ForEachRow(call, R, F, [&, F = F](int64_t r) {
    const float factor = GateOf(Arg(call, 1), Arg(call, 2), r);
    alignas(64) float gate_buffer[kBlock], up_buffer[kBlock], y_buffer[kBlock];
    ForEachBlock(0, F, [&](int64_t first, int64_t count) {
      const float* gate = ReadBlock(gu_R2F, 2 * r * F + first, count, gate_buffer);
      const float* up = ReadBlock(gu_R2F, (2 * r + 1) * F + first, count, up_buffer);
      float* y = WriteBlock(y_RF, r * F + first, y_buffer);
      simd::VectorLoop(count, [&](int64_t i, auto part) {
        const VecF g = Load(gate + i, part);
        Store(y + i, g * SigmoidOf(g) * Load(up + i, part) * factor, part);
      });
      CommitBlock(y_RF, r * F + first, count, y_buffer);
    });
  });
}

// SwiGLU's backward with g * dy as its dy; dg is the sum of dy * silu(gate) * up.
void GatedSwiGluBackward(const KernelCall& call) {
  const auto [R, F] = FirstDims<2>(call.dims);
  const KernelArg &dy_RF = Arg(call, 0), &order_R = Arg(call, 2), &gu_R2F = Arg(call, 3);
  auto* dgates = Arg(call, 4).as<float>();
  ForEachRow(call, R, F, [&, F = F](int64_t r) {
    const float factor = GateOf(Arg(call, 1), order_R, r);
    alignas(64) float dy_buffer[kBlock], gate_buffer[kBlock], up_buffer[kBlock];
    double dgate_sum = 0;
    ForEachBlock(0, F, [&](int64_t first, int64_t count) {
      const int64_t gate_at = 2 * r * F + first, up_at = gate_at + F;
      const float* dy = ReadBlock(dy_RF, r * F + first, count, dy_buffer);
      const float* gate = ReadBlock(gu_R2F, gate_at, count, gate_buffer);
      const float* up = ReadBlock(gu_R2F, up_at, count, up_buffer);
      float* dgate = WriteBlock(gu_R2F, gate_at, gate_buffer);
      float* dup = WriteBlock(gu_R2F, up_at, up_buffer);
      VecF sum{};
      simd::VectorLoop(count, [&](int64_t i, auto part) {
        const VecF d = Load(dy + i, part), g = Load(gate + i, part), u = Load(up + i, part);
        const VecF s = SigmoidOf(g);
        sum += d * g * s * u;
        Store(dup + i, d * factor * g * s, part);
        Store(dgate + i, d * factor * u * s * (1.0f + g * (1.0f - s)), part);
      });
      dgate_sum += simd::Sum(sum);
      CommitBlock(gu_R2F, gate_at, count, gate_buffer);
      CommitBlock(gu_R2F, up_at, count, up_buffer);
    });
    dgates[Present(order_R) ? order_R.as<const int32_t>()[r] : r] = static_cast<float>(dgate_sum);
  });
}

void GroupedMatmulForward(const KernelCall& call) {
  const auto [R, K, N, E] = FirstDims<4>(call.dims);
  const KernelArg &a_RK = Arg(call, 0), &w = Arg(call, 1), &y_RN = Arg(call, 3);
  ForEachExpert(Arg(call, 2), E, [&, K = K, N = N](int64_t e, int64_t first, int64_t rows) {
    const KernelArg a = Elements(a_RK, first * K, rows * K),
                    y = Elements(y_RN, first * N, rows * N),
                    of_expert = Elements(w, e * N * K, N * K);
    ParallelGemm(*call.context.pool, rows, N, K, {a, K}, {of_expert, K, true}, y, {});
  });
}

void GroupedMatmulBackwardData(const KernelCall& call) {
  const auto [R, K, N, E] = FirstDims<4>(call.dims);
  const KernelArg &dy_RN = Arg(call, 0), &w = Arg(call, 1), &dx_RK = Arg(call, 3);
  ForEachExpert(Arg(call, 2), E, [&, K = K, N = N](int64_t e, int64_t first, int64_t rows) {
    const KernelArg dy = Elements(dy_RN, first * N, rows * N),
                    dx = Elements(dx_RK, first * K, rows * K),
                    of_expert = Elements(w, e * N * K, N * K);
    ParallelGemm(*call.context.pool, rows, K, N, {dy, N}, {of_expert, K}, dx, {});
  });
}

void GroupedMatmulBackwardWeight(const KernelCall& call) {
  const auto [R, K, N, E] = FirstDims<4>(call.dims);
  const KernelArg &a_RK = Arg(call, 0), &dy_RN = Arg(call, 1), &dw = Arg(call, 3);
  const GemmStart start{.accumulate = call.has(kAccumulate)};
  ForEachExpert(Arg(call, 2), E, [&, K = K, N = N](int64_t e, int64_t first, int64_t rows) {
    const KernelArg a = Elements(a_RK, first * K, rows * K),
                    dy = Elements(dy_RN, first * N, rows * N),
                    of_expert = Elements(dw, e * N * K, N * K);
    ParallelGemm(*call.context.pool, N, K, rows, {dy, N, true}, {a, K}, of_expert, start);
  });
}

void RouterStats(const KernelCall& call) {
  const auto [M, E, shared] = FirstDims<3>(call.dims);
  const int64_t columns = E + shared, sums = E + 1;
  const auto* logits = Arg(call, 0).as<const float>();
  const auto* starts = Arg(call, 1).as<const int32_t>();
  auto* stats = Arg(call, 2).as<float>();
  ThreadPool& pool = *call.context.pool;
  const FixedCut cut = CutRows(pool, M, 2 * sums);
  Scratch first(pool, 0);
  double* partials = Doubles(first, cut.chunks * sums);
  pool.ParallelFor(cut.chunks, 1, [&, E = E](int64_t begin, int64_t end, int worker) {
    Scratch scratch(pool, worker);
    Doubles(scratch, cut.chunks * sums);  // keep off the partial sums
    double* p = Doubles(scratch, E);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      double* sum = partials + chunk * sums;
      std::fill_n(sum, sums, 0.0);
      for (int64_t m = cut.begin(chunk); m < cut.end(chunk); ++m) {
        const double lse = Softmax(logits + m * columns, E, p);
        for (int64_t e = 0; e < E; ++e) sum[e] += p[e];
        sum[E] += lse * lse;
      }
    }
  });
  for (int64_t e = 0; e < E; ++e) stats[e] = static_cast<float>(starts[e + 1] - starts[e]);
  for (int64_t i = 0; i < sums; ++i) {
    double sum = 0;
    for (int64_t chunk = 0; chunk < cut.chunks; ++chunk) sum += partials[chunk * sums + i];
    stats[E + i] = static_cast<float>(sum);
  }
}

void BalanceLoss(const KernelCall& call) {
  const auto [M, E, L] = FirstDims<3>(call.dims);
  const auto* stats = Arg(call, 0).as<const float>();
  const auto* targets = Arg(call, 1).as<const int32_t>();
  const auto& state = *Arg(call, 2).as<const StepState>();
  auto* balance = Arg(call, 3).as<float>();
  auto* totals = Arg(call, 4).as<double>();
  const bool accumulate = call.has(kAccumulate);
  const auto counted = static_cast<double>(
      std::count_if(targets, targets + M, [](int32_t target) { return target >= 0; }));
  const double tokens = static_cast<double>(L) * static_cast<double>(M);
  const double experts = static_cast<double>(E), weight = counted * double{state.grad_scale};
  double loss = 0, squares = 0;
  for (int64_t e = 0; e < E; ++e) {
    double rows = 0, sum = 0;
    for (int64_t l = 0; l < L; ++l) {
      rows += stats[l * (2 * E + 1) + e];
      sum += stats[l * (2 * E + 1) + E + e];
    }
    loss += experts * rows * sum / (tokens * tokens);
    balance[e] = static_cast<float>(weight * call.scalars[0] * experts * rows / (tokens * tokens));
  }
  for (int64_t l = 0; l < L; ++l) squares += stats[l * (2 * E + 1) + 2 * E];
  balance[E] = static_cast<float>(weight * call.scalars[1] * 2 / tokens);
  const auto put = [&](int64_t at, double value) {
    totals[at] = accumulate ? totals[at] + value : value;
  };
  put(0, counted * loss);
  put(1, counted * squares / tokens);
  put(2, counted);
  for (int64_t l = 0; l < L; ++l) {
    for (int64_t e = 0; e < E; ++e) put(3 + l * E + e, double{stats[l * (2 * E + 1) + e]});
  }
}

}  // namespace zeroplan::cpu
