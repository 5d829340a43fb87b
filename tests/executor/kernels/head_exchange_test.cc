// Heads of rows into parts and back, against the mapping of the row's words.
#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

struct ExchangeCase {
  int64_t B, T, H, G, D, S;

  int64_t keys() const { return G == 0 ? 0 : std::max<int64_t>(1, G / S); }
  int64_t row() const { return (H + 2 * G) * D; }
  int64_t part() const { return (H / S + 2 * keys()) * D; }
  KernelDims dims() const { return {B, T, H, G, D, S}; }
};

// visit(index in x, index in parts) for every element of the parts.
template <typename Visit>
void ForEachElement(const ExchangeCase& c, Visit&& visit) {
  int64_t in_parts = 0;
  for (int64_t b = 0; b < c.B; ++b) {
    for (int64_t r = 0; r < c.S; ++r) {
      std::vector<int64_t> heads;  // by their place in a row
      for (int64_t h = 0; h < c.H / c.S; ++h) heads.push_back(r * (c.H / c.S) + h);
      for (const int64_t begin : {c.H, c.H + c.G}) {
        for (int64_t k = 0; k < c.keys(); ++k) heads.push_back(begin + r * c.G / c.S + k);
      }
      for (int64_t t = 0; t < c.T; ++t) {
        for (const int64_t head : heads) {
          for (int64_t d = 0; d < c.D; ++d) {
            visit((b * c.T + t) * c.row() + head * c.D + d, in_parts++);
          }
        }
      }
    }
  }
}

// Whole vectors and odd sizes; a head of keys for several ranks, for one, and several for a rank.
const std::vector<ExchangeCase> kCases = {{1, 5, 4, 2, 8, 2},  {2, 3, 6, 2, 5, 6},
                                          {1, 4, 8, 8, 16, 4}, {3, 2, 6, 2, 64, 2},
                                          {2, 7, 8, 1, 7, 4},  {1, 3, 6, 0, 24, 3}};

TEST_CASE("heads are packed as ranks attend with them") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (const Dtype dtype : FloatDtypes()) {
    for (const ExchangeCase& c : kCases) {
      CAPTURE(c.S);
      CAPTURE(c.G);
      Tensor x = Tensor::Random(rng, dtype, c.B * c.T * c.row());
      Tensor parts(dtype, c.B * c.S * c.T * c.part());
      bench.Run(KernelId::kPackHeads, c.dims(), {&x, &parts});
      int64_t wrong = 0;
      ForEachElement(c,
                     [&](int64_t in_x, int64_t in_parts) { wrong += parts[in_parts] != x[in_x]; });
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("heads that several parts have are summed where they are unpacked") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (const Dtype dtype : FloatDtypes()) {
    for (const ExchangeCase& c : kCases) {
      CAPTURE(c.S);
      CAPTURE(c.G);
      Tensor parts = Tensor::Random(rng, dtype, c.B * c.S * c.T * c.part());
      Tensor x(dtype, c.B * c.T * c.row());
      bench.Run(KernelId::kUnpackHeads, c.dims(), {&parts, &x});
      Doubles sum(static_cast<size_t>(x.size())), magnitude(sum.size());
      std::vector<int> count(sum.size());
      ForEachElement(c, [&](int64_t in_x, int64_t in_parts) {
        const auto i = static_cast<size_t>(in_x);
        sum[i] += parts[in_parts];
        magnitude[i] += std::abs(parts[in_parts]);
        ++count[i];
      });
      int64_t wrong = 0;
      for (size_t i = 0; i < sum.size(); ++i) {
        // Copied, or summed in fp32 and rounded once.
        const double slack =
            count[i] == 1 ? 0 : RoundOff(dtype) * std::abs(sum[i]) + 8 * 0x1p-24 * magnitude[i];
        wrong += count[i] == 0 || std::abs(x[static_cast<int64_t>(i)] - sum[i]) > slack;
      }
      CHECK(wrong == 0);
    }
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
