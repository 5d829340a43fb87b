// Products of adapters against double sums. Legend: as in executor/kernels/lora_parts.h.
#include <algorithm>
#include <array>
#include <utility>

#include "executor/kernels/lora_parts.h"
#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

struct AdaptedShape {
  int64_t M, K, r;
  std::array<int64_t, 3> widths;
  int64_t mask;

  int64_t N() const { return widths[0] + widths[1] + widths[2]; }
  KernelDims dims() const { return {M, r, N(), widths[0], widths[0] + widths[1], mask}; }
};

// A product of one linear; query, key and value with all or some adapted; gate and up. Ranks and
// widths of whole vectors run on kernels of their own on the GPU.
const std::vector<AdaptedShape> kAdapted = {
    {1, 9, 1, {7, 0, 0}, 1},          {5, 16, 4, {48, 0, 0}, 1},
    {33, 65, 8, {64, 16, 16}, 7},     {33, 65, 8, {64, 16, 16}, 5},
    {16, 32, 3, {24, 8, 8}, 2},       {70, 48, 16, {96, 96, 0}, 3},
    {128, 301, 16, {160, 160, 0}, 2}, {257, 64, 64, {128, 32, 32}, 6},
    {300, 136, 24, {264, 40, 8}, 5},  {200, 520, 40, {600, 0, 0}, 1},
    {130, 264, 8, {136, 72, 0}, 3},   {1000, 48, 32, {72, 1032, 0}, 2}};

// The column of xa and the row of B that adapt column n, or -1.
struct AdaptedColumn {
  int64_t rank_begin = -1, up_row = 0;
};
std::vector<AdaptedColumn> ColumnsOfShape(const AdaptedShape& s) {
  std::vector<AdaptedColumn> columns(static_cast<size_t>(s.N()));
  int64_t n = 0, rank = 0, row = 0;
  for (size_t part = 0; part < 3; ++part) {
    const bool has = (s.mask >> part & 1) != 0;
    for (int64_t i = 0; i < s.widths[part]; ++i, ++n) {
      if (has) columns[static_cast<size_t>(n)] = {rank, row++};
    }
    if (has) rank += s.r;
  }
  return columns;
}

void ForEachAdapted(Rng& rng, auto&& fn) {
  for (const int threads : {1, 3}) {
    Bench bench(threads);
    bench.scalars = KernelScalars{1.75f};
    for (const AdaptedShape& shape : kAdapted) {
      const Dtype dtype = FloatDtypes()[static_cast<size_t>(rng.Below(3))];
      CAPTURE(shape.M);
      CAPTURE(shape.N());
      CAPTURE(shape.r);
      CAPTURE(shape.mask);
      CAPTURE(threads);
      CAPTURE(DtypeName(dtype));
      fn(bench, shape, dtype, LoraShape(shape.dims()));
    }
  }
}

void CheckSums(const Tensor& got, const Doubles& want, const Doubles& magnitude, int64_t terms,
               const char* what) {
  for (int64_t i = 0; i < got.size(); ++i) {
    const auto s = static_cast<size_t>(i);
    double slack = static_cast<double>(terms + 3) * 0x1p-24 * magnitude[s];
    // A library may round the product before it adds what was there.
    if (kOnGpu) slack += RoundOff(got.dtype()) * magnitude[s];
    if (Close(got[i], want[s], got.dtype(), slack)) continue;
    FAIL_CHECK(what << "[" << i << "]: got " << got[i] << ", want " << want[s]);
    return;
  }
}

TEST_CASE("adapters: down, scaled") {
  ZEROPLAN_TEST_RNG(rng);
  ForEachAdapted(rng, [&](Bench& bench, const AdaptedShape& s, Dtype dtype, const LoraShape& lora) {
    Tensor x = Tensor::Random(rng, dtype, s.M * s.K), a = Tensor::Random(rng, dtype, lora.R * s.K);
    Tensor xa(dtype, s.M * lora.R);
    bench.Run(KernelId::kLoraDown, {s.M, s.K, lora.R}, {&x, &a, &xa});
    Doubles want(static_cast<size_t>(s.M * lora.R)), magnitude(want.size());
    for (int64_t m = 0; m < s.M; ++m) {
      for (int64_t r = 0; r < lora.R; ++r) {
        const auto at = static_cast<size_t>(m * lora.R + r);
        for (int64_t k = 0; k < s.K; ++k) {
          const double term = 1.75 * x[m * s.K + k] * a[r * s.K + k];
          want[at] += term;
          magnitude[at] += std::abs(term);
        }
      }
    }
    CheckSums(xa, want, magnitude, s.K, "xa");
  });
}

TEST_CASE("adapters: up adds to the adapted columns alone") {
  ZEROPLAN_TEST_RNG(rng);
  ForEachAdapted(rng, [&](Bench& bench, const AdaptedShape& s, Dtype dtype, const LoraShape& lora) {
    const std::vector<AdaptedColumn> columns = ColumnsOfShape(s);
    int64_t rows = 0;
    for (const AdaptedColumn& c : columns) rows += c.rank_begin >= 0 ? 1 : 0;
    Tensor xa = Tensor::Random(rng, dtype, s.M * lora.R),
           b = Tensor::Random(rng, dtype, rows * s.r);
    Tensor y = Tensor::Random(rng, dtype, s.M * s.N());
    Doubles want = y.values(), magnitude(want.size());
    for (int64_t m = 0; m < s.M; ++m) {
      for (int64_t n = 0; n < s.N(); ++n) {
        const AdaptedColumn& c = columns[static_cast<size_t>(n)];
        const auto at = static_cast<size_t>(m * s.N() + n);
        magnitude[at] = std::abs(want[at]);
        if (c.rank_begin < 0) continue;
        for (int64_t r = 0; r < s.r; ++r) {
          const double term = xa[m * lora.R + c.rank_begin + r] * b[c.up_row * s.r + r];
          want[at] += term;
          magnitude[at] += std::abs(term);
        }
      }
    }
    const Doubles before = y.values();
    bench.Run(KernelId::kLoraUp, s.dims(), {&xa, &b, nullptr, &y}, kAccumulate);
    CheckSums(y, want, magnitude, s.r, "y");
    for (int64_t m = 0; m < s.M; ++m) {
      for (int64_t n = 0; n < s.N(); ++n) {
        if (columns[static_cast<size_t>(n)].rank_begin >= 0) continue;
        CHECK(y[m * s.N() + n] == before[static_cast<size_t>(m * s.N() + n)]);
      }
    }
    if (rows != s.N()) return;  // written whole where all columns are adapted
    Tensor residual = Tensor::Random(rng, dtype, s.M * s.N()), written(dtype, s.M * s.N());
    for (size_t i = 0; i < want.size(); ++i) {
      const double start = residual[static_cast<int64_t>(i)];
      want[i] += start - before[i];
      magnitude[i] += std::abs(start);
    }
    bench.Run(KernelId::kLoraUp, s.dims(), {&xa, &b, &residual, &written});
    CheckSums(written, want, magnitude, s.r, "y and residual");
    for (size_t i = 0; i < want.size(); ++i) want[i] -= residual[static_cast<int64_t>(i)];
    bench.Run(KernelId::kLoraUp, s.dims(), {&xa, &b, nullptr, &written});
    CheckSums(written, want, magnitude, s.r, "y written");
  });
}

TEST_CASE("adapters: the gradients of up") {
  ZEROPLAN_TEST_RNG(rng);
  ForEachAdapted(rng, [&](Bench& bench, const AdaptedShape& s, Dtype dtype, const LoraShape& lora) {
    const std::vector<AdaptedColumn> columns = ColumnsOfShape(s);
    int64_t rows = 0;
    for (const AdaptedColumn& c : columns) rows += c.rank_begin >= 0 ? 1 : 0;
    Tensor xa = Tensor::Random(rng, dtype, s.M * lora.R),
           b = Tensor::Random(rng, dtype, rows * s.r);
    Tensor dy = Tensor::Random(rng, dtype, s.M * s.N()), dxa(dtype, s.M * lora.R);
    const Dtype grad = rng.Below(2) == 0 ? dtype : Dtype::kF32;
    Tensor db = Tensor::Random(rng, grad, rows * s.r);
    Doubles want_dxa(static_cast<size_t>(s.M * lora.R)), magnitude_dxa(want_dxa.size());
    Doubles want_db = db.values(), magnitude_db(want_db.size());
    for (size_t i = 0; i < want_db.size(); ++i) magnitude_db[i] = std::abs(want_db[i]);
    for (int64_t m = 0; m < s.M; ++m) {
      for (int64_t n = 0; n < s.N(); ++n) {
        const AdaptedColumn& c = columns[static_cast<size_t>(n)];
        if (c.rank_begin < 0) continue;
        for (int64_t r = 0; r < s.r; ++r) {
          const auto at = static_cast<size_t>(m * lora.R + c.rank_begin + r);
          const double into = 1.75 * dy[m * s.N() + n] * b[c.up_row * s.r + r];
          want_dxa[at] += into;
          magnitude_dxa[at] += std::abs(into);
          const auto of_b = static_cast<size_t>(c.up_row * s.r + r);
          const double term = dy[m * s.N() + n] * xa[m * lora.R + c.rank_begin + r];
          want_db[of_b] += term;
          magnitude_db[of_b] += std::abs(term);
        }
      }
    }
    const Doubles before = db.values();
    bench.Run(KernelId::kLoraUpBackward, s.dims(), {&dy, &xa, &b, &dxa, &db}, kAccumulate);
    CheckSums(dxa, want_dxa, magnitude_dxa, s.N(), "dxa");
    CheckSums(db, want_db, magnitude_db, s.M, "db added");
    bench.Run(KernelId::kLoraUpBackward, s.dims(), {&dy, &xa, &b, &dxa, &db});
    for (size_t i = 0; i < want_db.size(); ++i) want_db[i] -= before[i];
    CheckSums(dxa, want_dxa, magnitude_dxa, s.N(), "dxa again");
    CheckSums(db, want_db, magnitude_db, s.M, "db written");
  });
}

TEST_CASE("adapters: the gradients of down") {
  ZEROPLAN_TEST_RNG(rng);
  ForEachAdapted(rng, [&](Bench& bench, const AdaptedShape& s, Dtype dtype, const LoraShape& lora) {
    const int64_t M = s.M, K = s.K, R = lora.R;
    Tensor x = Tensor::Random(rng, dtype, M * K), dxa = Tensor::Random(rng, dtype, M * R),
           a = Tensor::Random(rng, dtype, R * K), dx = Tensor::Random(rng, dtype, M * K);
    Tensor da = Tensor::Random(rng, rng.Below(2) == 0 ? dtype : Dtype::kF32, R * K);
    Doubles want_dx(static_cast<size_t>(M * K)), magnitude_dx(want_dx.size());
    Doubles want_da(static_cast<size_t>(R * K)), magnitude_da(want_da.size());
    for (int64_t m = 0; m < M; ++m) {
      for (int64_t r = 0; r < R; ++r) {
        for (int64_t k = 0; k < K; ++k) {
          const auto of_x = static_cast<size_t>(m * K + k), of_a = static_cast<size_t>(r * K + k);
          const double into = dxa[m * R + r] * a[r * K + k], term = dxa[m * R + r] * x[m * K + k];
          want_dx[of_x] += into;
          magnitude_dx[of_x] += std::abs(into);
          want_da[of_a] += term;
          magnitude_da[of_a] += std::abs(term);
        }
      }
    }
    for (const int flags : {kNoFlags + 0, kAccumulate | kAddToOutput}) {
      Doubles all_dx = want_dx, all_da = want_da, size_dx = magnitude_dx, size_da = magnitude_da;
      for (size_t i = 0; flags != 0 && i < all_dx.size(); ++i) {
        all_dx[i] += dx[static_cast<int64_t>(i)];
        size_dx[i] += std::abs(dx[static_cast<int64_t>(i)]);
      }
      for (size_t i = 0; flags != 0 && i < all_da.size(); ++i) {
        all_da[i] += da[static_cast<int64_t>(i)];
        size_da[i] += std::abs(da[static_cast<int64_t>(i)]);
      }
      bench.Run(KernelId::kLoraDownBackward, {M, K, R}, {&x, &dxa, &a, &dx, &da}, flags);
      CheckSums(dx, all_dx, size_dx, R, "dx");
      CheckSums(da, all_da, size_da, M, "da");
    }
  });
}

// ---- sizes of models: samples of each result, and the same bits twice --------------------------

// Random numbers that come again after a prime number of elements.
Tensor Large(Rng& rng, Dtype dtype, int64_t n) {
  constexpr int64_t kPeriod = 100'003;
  Doubles some(static_cast<size_t>(std::min(n, kPeriod)));
  for (double& x : some) x = rng.Normal();
  Tensor t(dtype, n);
  for (int64_t i = 0, at = 0; i < n; ++i, at = at + 1 == kPeriod ? 0 : at + 1) {
    t.Set(i, some[static_cast<size_t>(at)]);
  }
  return t;
}

// Compares samples of `got` with `start` + factor * the sum of term(i, k) over k < terms.
void CheckSamples(Rng& rng, const Tensor& got, int64_t terms, double factor, const auto& start,
                  const auto& term, const char* what) {
  for (int sample = 0; sample < 400; ++sample) {
    const int64_t i = sample == 0 ? got.size() - 1 : rng.Below(got.size());
    double want = 0, magnitude = 0;
    for (int64_t k = 0; k < terms; ++k) {
      want += factor * term(i, k);
      magnitude += std::abs(factor * term(i, k));
    }
    want += start(i);
    magnitude += std::abs(start(i));
    double slack = static_cast<double>(terms + 3) * 0x1p-24 * magnitude;
    if (kOnGpu) slack += RoundOff(got.dtype()) * magnitude;
    if (Close(got[i], want, got.dtype(), slack)) continue;
    FAIL_CHECK(what << "[" << i << "]: got " << got[i] << ", want " << want);
    return;
  }
}

constexpr auto kNoStart = [](int64_t) { return 0.0; };

void CheckLarge(Rng& rng, const AdaptedShape& s, Dtype dtype, Dtype grad) {
  CAPTURE(s.M);
  CAPTURE(s.K);
  CAPTURE(s.N());
  CAPTURE(s.r);
  CAPTURE(s.mask);
  Bench bench;
  bench.scalars = KernelScalars{1.75f};
  const LoraShape lora(s.dims());
  const int64_t M = s.M, K = s.K, N = s.N(), r = s.r, R = lora.R;
  const std::vector<AdaptedColumn> columns = ColumnsOfShape(s);
  std::vector<int64_t> column_of;                                          // of a row of B
  std::vector<std::pair<int64_t, int64_t>> range(static_cast<size_t>(R));  // of a rank's columns
  lora.ForEach([&](const LoraShape::Part& p) {
    for (int64_t n = p.begin; n < p.end; ++n) column_of.push_back(n);
    for (int64_t k = 0; k < r; ++k) range[static_cast<size_t>(p.rank_begin + k)] = {p.begin, p.end};
  });
  const auto U = static_cast<int64_t>(column_of.size());
  const auto column = [&](int64_t i) { return columns[static_cast<size_t>(i % N)]; };
  Tensor thin = Large(rng, dtype, M * R), a = Large(rng, dtype, R * K),
         b = Large(rng, dtype, U * r);
  const auto twice = [&](KernelId id, const KernelDims& dims, std::vector<Tensor*> args, int flags,
                         std::initializer_list<Tensor*> results) {
    std::vector<Tensor> before, once;
    for (const Tensor* result : results) before.push_back(*result);
    bench.Run(id, dims, args, flags);
    for (const Tensor* result : results) once.push_back(*result);
    size_t i = 0;
    for (Tensor* result : results) *result = before[i++];
    bench.Run(id, dims, args, flags);
    i = 0;
    for (const Tensor* result : results) CHECK(*result == once[i++]);
    return before;
  };
  {
    Tensor x = Large(rng, dtype, M * K), xa(dtype, M * R);
    twice(KernelId::kLoraDown, {M, K, R}, {&x, &a, &xa}, 0, {&xa});
    CheckSamples(
        rng, xa, K, 1.75, kNoStart,
        [&](int64_t i, int64_t k) { return x[i / R * K + k] * a[i % R * K + k]; }, "xa");
    Tensor dx = Large(rng, dtype, M * K), da = Large(rng, grad, R * K);
    const auto before = twice(KernelId::kLoraDownBackward, {M, K, R}, {&x, &thin, &a, &dx, &da},
                              kAccumulate | kAddToOutput, {&dx, &da});
    CheckSamples(
        rng, dx, R, 1, [&](int64_t i) { return before[0][i]; },
        [&](int64_t i, int64_t k) { return thin[i / K * R + k] * a[k * K + i % K]; }, "dx");
    CheckSamples(
        rng, da, M, 1, [&](int64_t i) { return before[1][i]; },
        [&](int64_t i, int64_t m) { return thin[m * R + i / K] * x[m * K + i % K]; }, "da");
  }
  Tensor y = Large(rng, dtype, M * N);
  {
    const Tensor& dy = y;
    Tensor dxa(dtype, M * R), db = Large(rng, grad, U * r);
    const auto before = twice(KernelId::kLoraUpBackward, s.dims(), {&y, &thin, &b, &dxa, &db},
                              kAccumulate, {&dxa, &db});
    CheckSamples(
        rng, dxa, N, 1.75, kNoStart,
        [&](int64_t i, int64_t n) {
          const auto [begin, end] = range[static_cast<size_t>(i % R)];
          if (n < begin || n >= end) return 0.0;
          return dy[i / R * N + n] * b[column(n).up_row * r + i % r];
        },
        "dxa");
    CheckSamples(
        rng, db, M, 1, [&](int64_t i) { return before[1][i]; },
        [&](int64_t i, int64_t m) {
          const int64_t n = column_of[static_cast<size_t>(i / r)];
          return thin[m * R + column(n).rank_begin + i % r] * dy[m * N + n];
        },
        "db");
  }
  const auto of_y = [&](int64_t i, int64_t k) {
    const AdaptedColumn& c = column(i);
    return c.rank_begin < 0 ? 0.0 : thin[i / N * R + c.rank_begin + k] * b[c.up_row * r + k];
  };
  if (U == N) {
    Tensor residual = Large(rng, dtype, M * N);
    bench.Run(KernelId::kLoraUp, s.dims(), {&thin, &b, &residual, &y});
    CheckSamples(rng, y, r, 1, [&](int64_t i) { return residual[i]; }, of_y, "y and residual");
  }
  const auto before =
      twice(KernelId::kLoraUp, s.dims(), {&thin, &b, nullptr, &y}, kAccumulate, {&y});
  CheckSamples(rng, y, r, 1, [&](int64_t i) { return before[0][i]; }, of_y, "y");
}

TEST_CASE("adapters: sizes of models, the same bits at every run") {
  ZEROPLAN_TEST_RNG(rng);
  if (!kOnGpu) {  // the CPU has one path
    CheckLarge(rng, {300, 520, 16, {512, 128, 128}, 5}, Dtype::kBF16, Dtype::kF32);
    return;
  }
  const Dtype bf16 = Dtype::kBF16, fp16 = Dtype::kF16, fp32 = Dtype::kF32;
  CheckLarge(rng, {4096, 4096, 16, {4096, 1024, 1024}, 7}, bf16, fp32);
  CheckLarge(rng, {4096, 4096, 8, {14336, 14336, 0}, 3}, bf16, bf16);
  CheckLarge(rng, {1000, 14336, 64, {4096, 0, 0}, 1}, bf16, fp32);
  CheckLarge(rng, {1000, 4096, 32, {4096, 1024, 1024}, 5}, fp16, fp16);
  CheckLarge(rng, {8192, 4096, 32, {14336, 14336, 0}, 2}, fp16, fp32);
  CheckLarge(rng, {8192, 14336, 16, {4096, 0, 0}, 1}, bf16, bf16);
  CheckLarge(rng, {1000, 1024, 32, {1024, 512, 512}, 7}, bf16, fp32);  // A's rank: the library's
}

}  // namespace
}  // namespace zeroplan::kernel_test
