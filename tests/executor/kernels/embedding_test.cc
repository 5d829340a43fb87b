// Embeddings. Legend: B micro-batch, T sequence, C hidden, V vocabulary, Vp padded vocabulary.
#include "core/base/error.h"
#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

TEST_CASE("embedding forward and backward") {
  ZEROPLAN_TEST_RNG(rng);
  // The small scratch holds lists for only part of the vocabulary at a time.
  for (size_t scratch : {size_t{8} << 20, size_t{1} << 10}) {
    for (Dtype dtype : FloatDtypes()) {
      for (const auto& [B, T, C] :
           std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {2, 3, 5}, {3, 40, 33}, {2, 16, 1100}}) {
        CAPTURE(B);
        CAPTURE(T);
        CAPTURE(C);
        Bench bench(2, scratch);
        constexpr int64_t kV = 37, kVp = 40;
        std::vector<int32_t> ids;
        for (int64_t i = 0; i < B * T; ++i) ids.push_back(static_cast<int32_t>(rng.Below(kV)));
        Tensor tokens = Tensor::Ints(ids), wte = Tensor::Random(rng, dtype, kVp * C);
        Tensor wpe = Tensor::Random(rng, dtype, T * C), x(dtype, B * T * C);
        bench.Run(KernelId::kEmbedForward, {B, T, C, kV}, {&tokens, &wte, &wpe, &x});
        Doubles want(static_cast<size_t>(B * T * C));
        for (int64_t i = 0; i < B * T * C; ++i) {
          const int64_t row = i / C;
          want[static_cast<size_t>(i)] =
              wte[ids[static_cast<size_t>(row)] * C + i % C] + wpe[row % T * C + i % C];
        }
        CheckAllClose(x, want, 0x1p-22, "x");
        Tensor tokens_only(dtype, x.size());
        bench.Run(KernelId::kEmbedForward, {B, T, C, kV}, {&tokens, &wte, nullptr, &tokens_only});
        for (int64_t i = 0; i < B * T * C; ++i) {
          REQUIRE(tokens_only[i] == wte[ids[static_cast<size_t>(i / C)] * C + i % C]);
        }

        Tensor dx = Tensor::Random(rng, dtype, B * T * C);
        Tensor dwte = Tensor::Random(rng, dtype, kVp * C), dwpe = Tensor::Random(rng, dtype, T * C);
        Doubles want_te = dwte.values(), want_pe(static_cast<size_t>(T * C));
        Doubles want_pe_added = dwpe.values();
        for (int64_t i = 0; i < B * T * C; ++i) {
          const int64_t row = i / C;
          const auto pe = static_cast<size_t>(row % T * C + i % C);
          want_te[static_cast<size_t>(ids[static_cast<size_t>(row)] * C + i % C)] += dx[i];
          want_pe[pe] += dx[i];
          want_pe_added[pe] += dx[i];
        }
        // Up to 120 additions in fp32, rounded to the dtype once.
        constexpr double kSlack = 120 * 40 * 0x1p-24 / 8;
        Tensor dwte2 = dwte, dwte3 = dwte, dwpe2 = dwpe;
        bench.Run(KernelId::kEmbedBackward, {B, T, C, kV}, {&tokens, &dx, &dwte, &dwpe});
        CheckAllClose(dwte, want_te, kSlack, "dwte");
        CheckAllClose(dwpe, want_pe, kSlack, "dwpe");
        bench.Run(KernelId::kEmbedBackward, {B, T, C, kV}, {&tokens, &dx, &dwte2, &dwpe2},
                  kAccumulate);
        CHECK(dwte2 == dwte);
        CheckAllClose(dwpe2, want_pe_added, kSlack, "dwpe added");
        bench.Run(KernelId::kEmbedBackward, {B, T, C, kV}, {&tokens, &dx, &dwte3, nullptr});
        CHECK(dwte3 == dwte);
      }
    }
  }
}

TEST_CASE("embedding: rows of single tokens stand in for those of the table") {
  ZEROPLAN_TEST_RNG(rng);
  for (const Dtype dtype : FloatDtypes()) {
    for (const bool borders : {false, true}) {
      for (const auto& [B, T, C, n] : std::vector<std::array<int64_t, 4>>{
               {1, 1, 1, 1}, {2, 3, 5, 8}, {3, 40, 33, 16}, {2, 300, 1100, 8}}) {
        CAPTURE(B);
        CAPTURE(T);
        CAPTURE(C);
        Bench bench(2);
        std::vector<int32_t> of, begins;
        for (int64_t i = 0; i < B * T; ++i) {
          of.push_back(static_cast<int32_t>(rng.Below(2 * static_cast<uint64_t>(n))));
          const int64_t t = i % T;
          const bool starts = t > 0 && rng.Below(3) == 0;
          begins.push_back(t == 0 ? 0 : starts ? static_cast<int32_t>(t) : begins.back());
        }
        Tensor places = Tensor::Ints(of), starts = Tensor::Ints(begins);
        Tensor rows = Tensor::Random(rng, dtype, n * C), wpe = Tensor::Random(rng, dtype, T * C);
        Tensor x = Tensor::Random(rng, dtype, B * T * C);
        Tensor plain = x;
        Doubles want = x.values(), want_plain = x.values();
        for (int64_t i = 0; i < B * T * C; ++i) {
          const auto row = static_cast<size_t>(i / C);
          if (of[row] >= n) continue;
          const int64_t t = static_cast<int64_t>(row) % T - (borders ? begins[row] : 0);
          want_plain[static_cast<size_t>(i)] = rows[of[row] * C + i % C];
          want[static_cast<size_t>(i)] = rows[of[row] * C + i % C] + wpe[t * C + i % C];
        }
        Tensor* const given = borders ? &starts : nullptr;
        bench.Run(KernelId::kEmbedRows, {B, T, C, n}, {&places, &rows, &wpe, &x, given});
        CheckAllClose(x, want, 0x1p-22, "x");
        bench.Run(KernelId::kEmbedRows, {B, T, C, n}, {&places, &rows, nullptr, &plain, given});
        for (int64_t i = 0; i < B * T * C; ++i) {
          REQUIRE(plain[i] == want_plain[static_cast<size_t>(i)]);
        }
      }
    }
  }
}

TEST_CASE("columns of single tokens change places with those of the logits") {
  ZEROPLAN_TEST_RNG(rng);
  for (const Dtype dtype : FloatDtypes()) {
    for (const auto& [R, n, Vp] :
         std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {3, 8, 40}, {257, 16, 384}}) {
      CAPTURE(R);
      CAPTURE(n);
      Bench bench(2);
      // Each column once; those of padding are below 0.
      std::vector<int32_t> columns;
      for (int64_t j = 0; j < n; ++j) {
        const auto column = static_cast<int32_t>((j * 7 + 3) % Vp);
        columns.push_back(n > 1 && j >= n - 2 ? -1 : column);
      }
      Tensor which = Tensor::Ints(columns);
      Tensor narrow = Tensor::Random(rng, dtype, R * n), wide = Tensor::Random(rng, dtype, R * Vp);
      Doubles want_narrow = narrow.values(), want_wide = wide.values();
      for (int64_t i = 0; i < R * n; ++i) {
        const int32_t column = columns[static_cast<size_t>(i % n)];
        if (column < 0) continue;
        std::swap(want_narrow[static_cast<size_t>(i)],
                  want_wide[static_cast<size_t>(i / n * Vp + column)]);
      }
      bench.Run(KernelId::kSwapColumns, {R, n, Vp}, {&which, &narrow, &wide});
      for (int64_t i = 0; i < R * n; ++i) {
        REQUIRE(narrow[i] == want_narrow[static_cast<size_t>(i)]);
      }
      for (int64_t i = 0; i < R * Vp; ++i) REQUIRE(wide[i] == want_wide[static_cast<size_t>(i)]);
    }
  }
}

#ifndef ZEROPLAN_TEST_CUDA  // there the launch ends, and with it the process's use of the GPU
TEST_CASE("embedding refuses a token outside the vocabulary") {
  Bench bench(1);
  Tensor tokens = Tensor::Ints({0, 5}), w(Dtype::kF32, 5), x(Dtype::kF32, 2);
  CHECK_THROWS_AS(bench.Run(KernelId::kEmbedForward, {1, 2, 1, 5}, {&tokens, &w, &w, &x}),
                  CheckFailure);
}
#endif

}  // namespace
}  // namespace zeroplan::kernel_test
