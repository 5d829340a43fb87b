// Products of adapters against double sums. Legend: as in executor/kernels/lora_parts.h.
#include <array>

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

// A product of one linear; query, key and value with all or some adapted; gate and up.
const std::vector<AdaptedShape> kAdapted = {
    {1, 9, 1, {7, 0, 0}, 1},          {5, 16, 4, {48, 0, 0}, 1},      {33, 65, 8, {64, 16, 16}, 7},
    {33, 65, 8, {64, 16, 16}, 5},     {16, 32, 3, {24, 8, 8}, 2},     {70, 48, 16, {96, 96, 0}, 3},
    {128, 301, 16, {160, 160, 0}, 2}, {257, 64, 64, {128, 32, 32}, 6}};

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
    bench.Run(KernelId::kLoraUpBackwardData, s.dims(), {&dy, &b, &dxa});
    CheckSums(dxa, want_dxa, magnitude_dxa, s.N(), "dxa");
    bench.Run(KernelId::kLoraUpBackwardWeight, s.dims(), {&xa, &dy, &db}, kAccumulate);
    CheckSums(db, want_db, magnitude_db, s.M, "db added");
    bench.Run(KernelId::kLoraUpBackwardWeight, s.dims(), {&xa, &dy, &db});
    for (size_t i = 0; i < want_db.size(); ++i) want_db[i] -= before[i];
    CheckSums(db, want_db, magnitude_db, s.M, "db written");
  });
}

}  // namespace
}  // namespace zeroplan::kernel_test
