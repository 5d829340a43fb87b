// Kernels of mixtures of experts against double references. Legend: expert_kernel_rows.inc's.
#include <algorithm>
#include <numeric>

#include "core/program/kernel_workspace.h"
#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

using Ints = std::vector<int32_t>;

struct RouteCase {
  int64_t M, E, k;
  bool normalized, shared;
  int64_t columns() const { return E + (shared ? 1 : 0); }
  KernelDims dims() const { return {M, E, k, normalized ? 1 : 0, shared ? 1 : 0}; }
};
const std::vector<RouteCase>& RouteCases() {
  static const std::vector<RouteCase> all = {{1, 1, 1, true, false},   {3, 8, 2, true, false},
                                             {37, 60, 4, false, true}, {65, 128, 8, true, false},
                                             {9, 5, 5, true, true},    {130, 64, 8, false, false},
                                             {7, 300, 10, true, false}};
  return all;
}

Doubles Softmax(const Doubles& logits, const RouteCase& c, int64_t m) {
  Doubles p(static_cast<size_t>(c.E));
  double sum = 0;
  for (size_t e = 0; e < p.size(); ++e) {
    sum += p[e] = std::exp(logits[static_cast<size_t>(m * c.columns()) + e]);
  }
  for (double& value : p) value /= sum;
  return p;
}

double LogSumExp(const Doubles& logits, const RouteCase& c, int64_t m) {
  double sum = 0;
  for (int64_t e = 0; e < c.E; ++e)
    sum += std::exp(logits[static_cast<size_t>(m * c.columns() + e)]);
  return std::log(sum);
}

// gates_Mk, then shared_M.
Doubles Gates(const Doubles& logits, const RouteCase& c, const Ints& picks) {
  Doubles out, shared;
  for (int64_t m = 0; m < c.M; ++m) {
    const Doubles p = Softmax(logits, c, m);
    const auto at = [&](int64_t j) {
      return p[static_cast<size_t>(picks[static_cast<size_t>(m * c.k + j)])];
    };
    double sum = 0;
    for (int64_t j = 0; j < c.k; ++j) sum += at(j);
    for (int64_t j = 0; j < c.k; ++j) out.push_back(at(j) / (c.normalized ? sum : 1));
    if (!c.shared) continue;
    shared.push_back(1 / (1 + std::exp(-logits[static_cast<size_t>(m * c.columns() + c.E)])));
  }
  out.insert(out.end(), shared.begin(), shared.end());
  return out;
}

Ints IntsOf(Tensor& tensor) {
  Ints values(static_cast<size_t>(tensor.size()));
  std::memcpy(values.data(), tensor.arg().data, values.size() * sizeof(int32_t));
  return values;
}

TEST_CASE("experts: routing picks the largest, and its gradient is that of the gates") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (const RouteCase& c : RouteCases()) {
    CAPTURE(c.E);
    Tensor logits = Tensor::Random(rng, Dtype::kF32, c.M * c.columns(), 2.0);
    Tensor picks(Dtype::kI32, c.M * c.k), gates(Dtype::kF32, c.M * c.k), shared(Dtype::kF32, c.M);
    bench.Run(KernelId::kRouteForward, c.dims(),
              {&logits, &picks, &gates, c.shared ? &shared : nullptr});
    const Doubles values = logits.values();
    const Ints chosen = IntsOf(picks);
    for (int64_t m = 0; m < c.M; ++m) {
      std::vector<int32_t> want(static_cast<size_t>(c.E));
      std::iota(want.begin(), want.end(), 0);
      std::stable_sort(want.begin(), want.end(), [&](int32_t a, int32_t b) {
        return values[static_cast<size_t>(m * c.columns() + a)] >
               values[static_cast<size_t>(m * c.columns() + b)];
      });
      want.resize(static_cast<size_t>(c.k));
      const auto first = chosen.begin() + m * c.k;
      REQUIRE(std::vector<int32_t>(first, first + c.k) == want);
    }
    const Doubles want = Gates(values, c, chosen);
    const auto routed = static_cast<size_t>(c.M * c.k);
    CheckAllClose(gates, {want.begin(), want.begin() + static_cast<int64_t>(routed)}, 1e-6,
                  "gates");
    if (c.shared) {
      CheckAllClose(shared, {want.begin() + static_cast<int64_t>(routed), want.end()}, 1e-6,
                    "shared");
    }

    // Auxiliary losses add balance[e] of each softmax, and balance[E]/2 of logsumexp^2.
    Tensor dgates = Tensor::Random(rng, Dtype::kF32, c.M * c.k),
           dshared = Tensor::Random(rng, Dtype::kF32, c.M),
           balance = Tensor::Random(rng, Dtype::kF32, c.E + 1);
    for (const bool balances : {false, true}) {
      const auto loss = [&](const Doubles& x) {
        Doubles out = Gates(x, c, chosen);
        double sum = 0;
        for (int64_t m = 0; balances && m < c.M; ++m) {
          const Doubles p = Softmax(x, c, m);
          for (int64_t e = 0; e < c.E; ++e) sum += balance[e] * p[static_cast<size_t>(e)];
          const double lse = LogSumExp(x, c, m);
          sum += balance[c.E] / 2 * lse * lse;
        }
        out.push_back(sum);
        return out;
      };
      Doubles weight = dgates.values();
      if (c.shared) {
        for (int64_t m = 0; m < c.M; ++m) weight.push_back(dshared[m]);
      }
      weight.push_back(1);
      for (const Dtype dtype : FloatDtypes()) {
        Tensor dlogits(dtype, c.M * c.columns());
        bench.Run(KernelId::kRouteBackward, c.dims(),
                  {&logits, &picks, &dgates, c.shared ? &dshared : nullptr,
                   balances ? &balance : nullptr, &dlogits});
        CheckGradient(rng, dlogits, loss, values, weight, 3e-6, "dlogits");
      }
    }
  }
}

TEST_CASE("experts: of equal logits the lower column first; picks are valid with NaNs") {
  Bench bench(1);
  const RouteCase c{4, 40, 6, true, false};
  Tensor logits(Dtype::kF32, c.M * c.E), picks(Dtype::kI32, c.M * c.k),
      gates(Dtype::kF32, c.M * c.k);
  for (int64_t e = 0; e < c.E; ++e) {
    logits.Set(e, 1);                       // all equal
    logits.Set(c.E + e, e % 2);             // two values
    logits.Set(2 * c.E + e, std::nan(""));  // all NaN
    logits.Set(3 * c.E + e, e == 7 ? std::nan("") : -static_cast<double>(e));
  }
  bench.Run(KernelId::kRouteForward, c.dims(), {&logits, &picks, &gates, nullptr});
  const Ints chosen = IntsOf(picks);
  CHECK(Ints(chosen.begin(), chosen.begin() + 6) == Ints{0, 1, 2, 3, 4, 5});
  CHECK(Ints(chosen.begin() + 6, chosen.begin() + 12) == Ints{1, 3, 5, 7, 9, 11});
  for (int64_t m = 2; m < 4; ++m) {
    Ints of_row(chosen.begin() + m * c.k, chosen.begin() + (m + 1) * c.k);
    std::sort(of_row.begin(), of_row.end());
    CHECK(std::adjacent_find(of_row.begin(), of_row.end()) == of_row.end());
    CHECK(of_row.front() >= 0);
    CHECK(of_row.back() < c.E);
  }
}

// Picks of k distinct experts a token, of the first `used` ones.
Tensor RandomPicks(Rng& rng, int64_t M, int64_t k, int64_t used) {
  Ints picks;
  for (int64_t m = 0; m < M; ++m) {
    Ints all(static_cast<size_t>(used));
    std::iota(all.begin(), all.end(), 0);
    for (int64_t j = 0; j < k; ++j) {
      std::swap(all[static_cast<size_t>(j)], all[static_cast<size_t>(j + rng.Below(used - j))]);
      picks.push_back(all[static_cast<size_t>(j)]);
    }
  }
  return Tensor::Ints(picks);
}

struct Order {
  Tensor starts, order, places;
};
Order OrderOf(Bench& bench, Tensor& picks, int64_t M, int64_t k, int64_t E) {
  Order o{Tensor(Dtype::kI32, E + 1), Tensor(Dtype::kI32, M * k), Tensor(Dtype::kI32, M * k)};
  Tensor scratch(Dtype::kI32, OrderBlocks(M * k) * E);
  bench.Run(KernelId::kOrderRows, {M, k, E},
            {&picks, &o.starts, &o.order, &o.places, kOnGpu ? &scratch : nullptr});
  return o;
}

TEST_CASE("experts: rows in their order, gathered and summed") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  struct Case {
    int64_t M, k, E, used, C;
  };
  for (const Case& c : std::vector<Case>{{1, 1, 1, 1, 5},
                                         {17, 2, 8, 8, 24},
                                         {300, 8, 128, 128, 40},
                                         {130, 4, 60, 5, 1030},
                                         {2100, 2, 300, 2, 8}}) {
    CAPTURE(c.M);
    const int64_t R = c.M * c.k;
    Tensor picks = RandomPicks(rng, c.M, c.k, c.used);
    Order o = OrderOf(bench, picks, c.M, c.k, c.E);
    const Ints chosen = IntsOf(picks), places = IntsOf(o.places);
    const auto at = [](const Ints& list, int64_t i) { return list[static_cast<size_t>(i)]; };
    Ints order(static_cast<size_t>(R)), starts(static_cast<size_t>(c.E + 1), 0);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return at(chosen, a) < at(chosen, b); });
    for (int64_t r = 0; r < R; ++r) ++starts[static_cast<size_t>(at(chosen, r)) + 1];
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    REQUIRE(IntsOf(o.order) == order);
    REQUIRE(IntsOf(o.starts) == starts);
    for (int64_t r = 0; r < R; ++r) {
      REQUIRE(at(order, at(places, r)) == static_cast<int32_t>(r));
    }
    for (const Dtype dtype : FloatDtypes()) {
      Tensor x = Tensor::Random(rng, dtype, c.M * c.C), rows(dtype, R * c.C);
      bench.Run(KernelId::kGatherRows, {c.M, c.C, c.k}, {&x, &o.places, &rows});
      Doubles want(static_cast<size_t>(R * c.C)), sum(static_cast<size_t>(c.M * c.C), 0.0);
      for (int64_t r = 0; r < R; ++r) {
        for (int64_t i = 0; i < c.C; ++i) {
          want[static_cast<size_t>(r * c.C + i)] = x[order[static_cast<size_t>(r)] / c.k * c.C + i];
        }
      }
      CheckAllClose(rows, want, 0, "gathered");
      Tensor y = Tensor::Random(rng, dtype, R * c.C),
             residual = Tensor::Random(rng, dtype, c.M * c.C);
      for (int64_t r = 0; r < R; ++r) {
        for (int64_t i = 0; i < c.C; ++i) {
          sum[static_cast<size_t>(order[static_cast<size_t>(r)] / c.k * c.C + i)] += y[r * c.C + i];
        }
      }
      for (const int flags : {0, int{kAccumulate}}) {
        for (Tensor* added : {static_cast<Tensor*>(nullptr), &residual}) {
          Tensor out = Tensor::Random(rng, dtype, c.M * c.C);
          Doubles all = sum;
          for (size_t i = 0; i < all.size(); ++i) {
            const auto element = static_cast<int64_t>(i);
            if (flags != 0) all[i] += out[element];
            if (added != nullptr) all[i] += residual[element];
          }
          bench.Run(KernelId::kSumRows, {c.M, c.C, c.k}, {&y, &o.places, added, &out}, flags);
          CheckAllClose(out, all, 200 * 0x1p-24, "sum");
        }
      }
    }
  }
}

TEST_CASE("experts: gated swiglu forward and backward") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  struct Case {
    int64_t R, F;
    bool ordered;
  };
  for (const Dtype dtype : FloatDtypes()) {
    for (const Case& c :
         std::vector<Case>{{1, 1, false}, {6, 15, true}, {8, 768, true}, {5, 2064, false}}) {
      CAPTURE(c.F);
      Ints numbers(static_cast<size_t>(c.R));
      std::iota(numbers.begin(), numbers.end(), 0);
      for (int64_t r = c.R - 1; r > 0; --r) {
        std::swap(numbers[static_cast<size_t>(r)], numbers[static_cast<size_t>(rng.Below(r + 1))]);
      }
      if (!c.ordered) std::sort(numbers.begin(), numbers.end());
      Tensor order = Tensor::Ints(numbers), gu = Tensor::Random(rng, dtype, 2 * c.R * c.F, 2.0),
             gates = Tensor::Random(rng, Dtype::kF32, c.R), y(dtype, c.R * c.F);
      Tensor* given = c.ordered ? &order : nullptr;
      // x: gate and up, then the gates.
      const auto of = [&](const Doubles& x) {
        Doubles out(static_cast<size_t>(c.R * c.F));
        for (int64_t r = 0; r < c.R; ++r) {
          const double factor =
              x[static_cast<size_t>(2 * c.R * c.F + numbers[static_cast<size_t>(r)])];
          for (int64_t f = 0; f < c.F; ++f) {
            const double gate = x[static_cast<size_t>(2 * r * c.F + f)];
            out[static_cast<size_t>(r * c.F + f)] = factor * gate / (1 + std::exp(-gate)) *
                                                    x[static_cast<size_t>((2 * r + 1) * c.F + f)];
          }
        }
        return out;
      };
      Doubles x = gu.values();
      for (int64_t r = 0; r < c.R; ++r) x.push_back(gates[r]);
      bench.Run(KernelId::kGatedSwiGluForward, {c.R, c.F}, {&gu, &gates, given, &y});
      constexpr double kSlack = 400 * 0x1p-24;
      CheckAllClose(y, of(x), kSlack, "y");
      Tensor dy = Tensor::Random(rng, dtype, c.R * c.F), dgates(Dtype::kF32, c.R);
      bench.Run(KernelId::kGatedSwiGluBackward, {c.R, c.F}, {&dy, &gates, given, &gu, &dgates});
      const Doubles weight = dy.values();
      for (int64_t s = 0; s < 40; ++s) {
        const int64_t i = rng.Below(gu.size()), g = rng.Below(c.R);
        CHECK(Close(gu[i], FiniteDifference(of, x, i, weight), dtype, 4 * kSlack));
        const double want = FiniteDifference(of, x, gu.size() + g, weight);
        CHECK(Close(dgates[g], want, Dtype::kF32, 1e-4));
      }
    }
  }
}

struct Groups {
  int64_t K, N;
  Ints starts;
  int64_t R() const { return starts.back(); }
  int64_t E() const { return static_cast<int64_t>(starts.size()) - 1; }
  KernelDims dims() const { return {R(), K, N, E()}; }
};

TEST_CASE("experts: grouped matmuls") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (const Dtype dtype : FloatDtypes()) {
    for (const Groups& g : std::vector<Groups>{{5, 7, {0, 3}},
                                               {24, 40, {0, 0, 5, 5, 6, 21}},
                                               {64, 48, {0, 130, 130, 131, 200}},
                                               {72, 136, {0, 0, 0, 77, 77}},
                                               {16, 8, {0, 1, 2, 3, 4, 4, 4, 5, 8}}}) {
      CAPTURE(g.K);
      const int64_t R = g.R(), K = g.K, N = g.N, E = g.E();
      Tensor starts = Tensor::Ints(g.starts), a = Tensor::Random(rng, dtype, R * K),
             dy = Tensor::Random(rng, dtype, R * N), w = Tensor::Random(rng, dtype, E * N * K),
             y(dtype, R * N), dx(dtype, R * K);
      Doubles want_y(static_cast<size_t>(R * N), 0.0), want_dx(static_cast<size_t>(R * K), 0.0),
          want_dw(static_cast<size_t>(E * N * K), 0.0);
      for (int64_t e = 0; e < E; ++e) {
        for (int64_t r = g.starts[static_cast<size_t>(e)]; r < g.starts[static_cast<size_t>(e) + 1];
             ++r) {
          for (int64_t n = 0; n < N; ++n) {
            for (int64_t k = 0; k < K; ++k) {
              const int64_t at = (e * N + n) * K + k;
              want_y[static_cast<size_t>(r * N + n)] += a[r * K + k] * w[at];
              want_dx[static_cast<size_t>(r * K + k)] += dy[r * N + n] * w[at];
              want_dw[static_cast<size_t>(at)] += dy[r * N + n] * a[r * K + k];
            }
          }
        }
      }
      constexpr double kSlack = 3e-5;
      bench.Run(KernelId::kGroupedMatmulForward, g.dims(), {&a, &w, &starts, &y});
      CheckAllClose(y, want_y, kSlack, "y");
      bench.Run(KernelId::kGroupedMatmulBackwardData, g.dims(), {&dy, &w, &starts, &dx});
      CheckAllClose(dx, want_dx, kSlack, "dx");
      for (const Dtype of_dw : {dtype, Dtype::kF32}) {
        for (const int flags : {0, int{kAccumulate}}) {
          Tensor dw = Tensor::Random(rng, of_dw, E * N * K);
          Doubles want = want_dw;
          for (size_t i = 0; flags != 0 && i < want.size(); ++i) {
            want[i] += dw[static_cast<int64_t>(i)];
          }
          bench.Run(KernelId::kGroupedMatmulBackwardWeight, g.dims(), {&a, &dy, &starts, &dw},
                    flags);
          CheckAllClose(dw, want, kSlack, "dw");
        }
      }
    }
  }
}

// Experts with up to `rows` rows each, and one with `full`.
Groups RandomGroups(Rng& rng, int64_t E, int64_t K, int64_t N, int64_t rows, int64_t full) {
  Groups g{K, N, {0}};
  const int64_t fullest = rng.Below(E);
  for (int64_t e = 0; e < E; ++e) {
    const int64_t of_expert = e == fullest ? full : rng.Below(rows + 1);
    g.starts.push_back(g.starts.back() + static_cast<int32_t>(of_expert));
  }
  return g;
}

// A kernel's blocks take several tiles each, of more than one column, and the table of experts is
// filled in several turns; the last has more experts than Hopper's kernels take.
TEST_CASE("experts: grouped matmuls of many tiles, some of their results") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  constexpr int kSamples = 400;
  // An fp32 sum, in any order.
  struct Sum {
    double value = 0, size = 0;
    void Add(double a, double b = 1) {
      value += a * b;
      size += std::abs(a * b);
    }
    bool IsClose(double got, Dtype dtype) const {
      return Close(got, value, dtype, 8 * 0x1p-24 * size);
    }
  };
  for (const Dtype dtype : FloatDtypes()) {
    for (const Groups& g :
         {RandomGroups(rng, 130, 136, 264, 40, 2200), RandomGroups(rng, 400, 64, 72, 30, 500),
          RandomGroups(rng, 520, 48, 40, 6, 300)}) {
      CAPTURE(g.E());
      const int64_t R = g.R(), K = g.K, N = g.N, E = g.E();
      Tensor starts = Tensor::Ints(g.starts), a = Tensor::Random(rng, dtype, R * K),
             dy = Tensor::Random(rng, dtype, R * N), w = Tensor::Random(rng, dtype, E * N * K),
             y(dtype, R * N), dx(dtype, R * K);
      const auto expert_of = [&](int64_t r) {
        return std::upper_bound(g.starts.begin(), g.starts.end(), static_cast<int32_t>(r)) -
               g.starts.begin() - 1;
      };
      bench.Run(KernelId::kGroupedMatmulForward, g.dims(), {&a, &w, &starts, &y});
      bench.Run(KernelId::kGroupedMatmulBackwardData, g.dims(), {&dy, &w, &starts, &dx});
      for (int s = 0; s < kSamples; ++s) {
        const int64_t r = rng.Below(R), e = expert_of(r), n = rng.Below(N), k = rng.Below(K);
        Sum of_y, of_dx;
        for (int64_t i = 0; i < K; ++i) of_y.Add(a[r * K + i], w[(e * N + n) * K + i]);
        for (int64_t i = 0; i < N; ++i) of_dx.Add(dy[r * N + i], w[(e * N + i) * K + k]);
        CHECK(of_y.IsClose(y[r * N + n], dtype));
        CHECK(of_dx.IsClose(dx[r * K + k], dtype));
      }
      for (const Dtype of_dw : {dtype, Dtype::kF32}) {
        for (const int flags : {0, int{kAccumulate}}) {
          Tensor dw = Tensor::Random(rng, of_dw, E * N * K);
          const Doubles before = dw.values();
          bench.Run(KernelId::kGroupedMatmulBackwardWeight, g.dims(), {&a, &dy, &starts, &dw},
                    flags);
          for (int s = 0; s < kSamples; ++s) {
            // Half of the samples are of the fullest expert, or of another by its rows.
            const int64_t e = s % 2 == 0 ? expert_of(rng.Below(R)) : rng.Below(E);
            const int64_t n = rng.Below(N), k = rng.Below(K), at = (e * N + n) * K + k;
            Sum want;
            if (flags != 0) want.Add(before[static_cast<size_t>(at)]);
            for (int64_t r = g.starts[static_cast<size_t>(e)];
                 r < g.starts[static_cast<size_t>(e) + 1]; ++r) {
              want.Add(dy[r * N + n], a[r * K + k]);
            }
            CHECK(want.IsClose(dw[at], of_dw));
          }
        }
      }
    }
  }
}

TEST_CASE("experts: statistics of a layer, and the auxiliary losses of all") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (const RouteCase& c : RouteCases()) {
    CAPTURE(c.E);
    constexpr int64_t kLayers = 3;
    const int64_t sums = 2 * c.E + 1;
    Doubles stats(static_cast<size_t>(kLayers * sums));
    double squares = 0;
    for (int64_t l = 0; l < kLayers; ++l) {
      Tensor logits = Tensor::Random(rng, Dtype::kF32, c.M * c.columns(), 2.0);
      Tensor picks = RandomPicks(rng, c.M, c.k, c.E);
      Order o = OrderOf(bench, picks, c.M, c.k, c.E);
      Tensor got(Dtype::kF32, sums), scratch(Dtype::kF32, RouterStatsBlocks(c.M) * (c.E + 1));
      bench.Run(KernelId::kRouterStats, {c.M, c.E, c.shared ? 1 : 0},
                {&logits, &o.starts, &got, kOnGpu ? &scratch : nullptr});
      Doubles want(static_cast<size_t>(sums), 0.0);
      const Doubles values = logits.values();
      for (const int32_t pick : IntsOf(picks)) ++want[static_cast<size_t>(pick)];
      for (int64_t m = 0; m < c.M; ++m) {
        const Doubles p = Softmax(values, c, m);
        for (int64_t e = 0; e < c.E; ++e) {
          want[static_cast<size_t>(c.E + e)] += p[static_cast<size_t>(e)];
        }
        const double lse = LogSumExp(values, c, m);
        want.back() += lse * lse;
      }
      squares += want.back();
      CheckAllClose(got, want, 1e-4, "statistics");
      std::copy(want.begin(), want.end(), stats.begin() + l * sums);
    }
    Tensor given(Dtype::kF32, kLayers * sums);
    for (int64_t i = 0; i < given.size(); ++i) given.Set(i, stats[static_cast<size_t>(i)]);
    Ints targets;
    int64_t counted = 0;
    for (int64_t m = 0; m < c.M; ++m) {
      targets.push_back(m % 3 == 1 ? -1 : 5);
      counted += targets.back() >= 0 ? 1 : 0;
    }
    Tensor of_targets = Tensor::Ints(targets), balance(Dtype::kF32, c.E + 1);
    StepState state;
    state.grad_scale = 0.25f;
    Tensor of_state = Tensor::State(state);
    const int64_t totals = 3 + kLayers * c.E;
    // Doubles as pairs of words.
    Tensor words(Dtype::kI32, 2 * totals);
    bench.scalars = KernelScalars{0.02f, 0.003f};
    for (const int flags : {0, int{kAccumulate}}) {
      bench.Run(KernelId::kBalanceLoss, {c.M, c.E, kLayers},
                {&given, &of_targets, &of_state, &balance, &words}, flags);
      std::vector<double> sum(static_cast<size_t>(totals));
      std::memcpy(sum.data(), words.arg().data, sum.size() * sizeof(double));
      const double times = flags != 0 ? 2 : 1, tokens = static_cast<double>(kLayers * c.M);
      double loss = 0;
      for (int64_t e = 0; e < c.E; ++e) {
        double rows = 0, p = 0;
        for (int64_t l = 0; l < kLayers; ++l) {
          const double of_layer = stats[static_cast<size_t>(l * sums + e)];
          rows += of_layer / tokens;
          p += stats[static_cast<size_t>(l * sums + c.E + e)] / tokens;
          CHECK(sum[static_cast<size_t>(3 + l * c.E + e)] == times * of_layer);
        }
        loss += static_cast<double>(c.E) * rows * p;
        const double want =
            0.25 * static_cast<double>(counted) * 0.02 * static_cast<double>(c.E) * rows / tokens;
        CHECK(balance[e] == doctest::Approx(want).epsilon(1e-5));
      }
      CHECK(
          balance[c.E] ==
          doctest::Approx(0.25 * static_cast<double>(counted) * 0.003 * 2 / tokens).epsilon(1e-5));
      const auto n = static_cast<double>(counted);
      CHECK(sum[0] == doctest::Approx(times * n * loss).epsilon(1e-5));
      CHECK(sum[1] == doctest::Approx(times * n * squares / tokens).epsilon(1e-5));
      CHECK(sum[2] == times * n);
    }
    bench.scalars.reset();
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
