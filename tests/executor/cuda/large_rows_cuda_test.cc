// Kernels that work on elements and rows, on tensors past 2^31 elements. Legend: n elements, M rows
// of C or K columns, F columns of SwiGLU's result; others as kernel_rows.inc's.
#include "executor/kernels/dropout.h"
#include "tests/executor/cuda/large_tensor.h"
#include "tests/executor/kernels/gelu_reference.h"

namespace zeroplan::kernel_test::large_rows {
namespace {

constexpr int64_t M = kLargeRows, C = kLargeColumns, n = kLargeElements;
constexpr double k16 = 2.0 * n, k32 = 4.0 * n;  // bytes of one
// Sums over a row in fp32, of numbers below 1.
constexpr double kRowSlack = 2e-5;
// Sums over 2^18 rows in fp32, up to a few hundreds: some 10^-3. What no sum may lack are the rows
// past 2^31 elements, which make up 20 and more.
constexpr double kColumnSlack = 0.05;

TEST_CASE("gpu past 2^31 elements: conversion, sums and GELU") {
  if (!HasRoom(k16 + k32)) return;
  LargeBench bench;
  LargeTensor x(Dtype::kBF16, n), wide(Dtype::kF32, n);
  x.Uniform(1);
  bench.Run(KernelId::kConvert, {n}, {&x, &wide});
  for (const int64_t i : SomeElements(n)) CheckSome(wide, i, x.Read(i, kSome), 0, "convert");
  bench.Run(KernelId::kGeluForward, {n}, {&x, &wide});
  for (const int64_t i : SomeElements(n)) {
    const Doubles in = x.Read(i, kSome);
    CheckSome(wide, i, Some([&](size_t e) { return Gelu(in[e]); }), 1e-6, "gelu");
  }
}

TEST_CASE("gpu past 2^31 elements: in place") {
  if (!HasRoom(2 * k16)) return;
  LargeBench bench;
  LargeTensor x(Dtype::kBF16, n), y(Dtype::kBF16, n);
  const auto each = [&](KernelId id, int flags, const char* what, auto&& want) {
    x.Uniform(2);
    y.Uniform(3);
    std::vector<Doubles> before;
    for (const int64_t i : SomeElements(n)) before.push_back(y.Read(i, kSome));
    bench.Run(id, {n}, {&x, &y}, flags);
    size_t at = 0;
    for (const int64_t i : SomeElements(n)) {
      const Doubles in = x.Read(i, kSome), &old = before[at++];
      CheckSome(y, i, Some([&](size_t e) { return want(in[e], old[e]); }), 1e-5, what);
    }
  };
  each(KernelId::kConvert, kAccumulate, "added", [](double in, double old) { return in + old; });
  each(KernelId::kGeluBackward, 0, "gelu backward",
       [](double in, double old) { return old * GeluSlope(in); });
  bench.Run(KernelId::kGeluForward, {n}, {&x, &y});
  for (const int64_t i : SomeElements(n)) {
    const Doubles in = x.Read(i, kSome);
    CheckSome(y, i, Some([&](size_t e) { return Gelu(in[e]); }), 1e-5, "gelu");
  }
  bench.Run(KernelId::kFill, {2 * n}, {&y});  // bytes: past 2^32
  for (const int64_t i : SomeElements(n)) CheckSome(y, i, Doubles(kSome, 0), 0, "fill");
}

TEST_CASE("gpu past 2^31 elements: what is found in all of them") {
  if (!HasRoom(k16)) return;
  LargeBench bench;
  LargeTensor x(Dtype::kBF16, n), amax(Dtype::kF32, 1), state(Dtype::kU8, sizeof(StepState));
  x.Zero();
  // Few that are not 0, so that sums are exact.
  double largest = 0, squares = 0;
  for (const int64_t i : SomeElements(n)) {
    largest += 1;
    squares += largest * largest;
    x.Write(i, {-largest});
    amax.Zero();
    bench.Run(KernelId::kLargestMagnitude, {n}, {&x, &amax});
    CHECK(amax.Get(0) == largest);
  }
  state.Zero();
  bench.Run(KernelId::kNormSq, {n}, {&x, &state});
  Tensor got = state.Copy(0, state.size());
  CHECK(got.state().grad_norm_sq == squares);
}

TEST_CASE("gpu past 2^31 elements: dropout") {
  if (!HasRoom(2 * k16)) return;
  constexpr int64_t T = M / 4, kTensor = 3;
  constexpr float p = 0.25f;
  LargeBench bench;
  LargeTensor x(Dtype::kBF16, n), y(Dtype::kBF16, n), number(Dtype::kI32, 2);
  x.Uniform(4);
  const std::vector<int32_t> first = {5, 0};
  number.Ints(first);
  bench.Run(KernelId::kDropout, {M, C, T, kTensor}, {&x, &number, &y}, 0, KernelScalars{p});
  const DropRule rule = DropRuleOf(p);
  for (const int64_t i : SomeElements(n)) {
    const Doubles in = x.Read(i, kSome);
    CheckSome(y, i, Some([&](size_t e) {
                const int64_t at = i + static_cast<int64_t>(e), m = at / C, c = at % C;
                const PhiloxBlock words = DropWords(
                    bench.seed, SequenceNumber(first.data()) + static_cast<uint64_t>(m / T),
                    static_cast<uint32_t>(m % T), kTensor, static_cast<uint32_t>(c / kDropColumns));
                const bool kept = Keeps(rule, words, c % kDropColumns);
                return kept ? in[e] * static_cast<double>(rule.scale) : 0.0;
              }),
              1e-6, "dropout");
  }
}

// gu has more than 2^32 elements, y more than 2^31.
TEST_CASE("gpu past 2^31 elements: swiglu") {
  if (!HasRoom(3 * k16)) return;
  LargeBench bench;
  LargeTensor gu(Dtype::kBF16, 2 * n), y(Dtype::kBF16, n);
  gu.Uniform(5);
  struct Place {
    int64_t gate, y;
    Doubles gates, ups, dy;
  };
  std::vector<Place> places;
  for (const int64_t i : SomeElements(2 * n)) {
    const int64_t m = i / (2 * C), c = i % (2 * C) % C / kSome * kSome;
    Place place{2 * m * C + c, m * C + c, {}, {}, {}};
    place.gates = gu.Read(place.gate, kSome), place.ups = gu.Read(place.gate + C, kSome);
    places.push_back(place);
  }
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  bench.Run(KernelId::kSwiGluForward, {M, C}, {&gu, &y});
  for (const Place& p : places) {
    CheckSome(y, p.y, Some([&](size_t e) { return p.gates[e] * sigmoid(p.gates[e]) * p.ups[e]; }),
              1e-5, "swiglu");
  }
  y.Uniform(6);
  for (Place& p : places) p.dy = y.Read(p.y, kSome);
  bench.Run(KernelId::kSwiGluBackward, {M, C}, {&y, &gu});
  for (const Place& p : places) {
    CheckSome(gu, p.gate, Some([&](size_t e) {
                const double s = sigmoid(p.gates[e]);
                return p.dy[e] * p.ups[e] * s * (1 + p.gates[e] * (1 - s));
              }),
              1e-5, "dgate");
    CheckSome(gu, p.gate + C,
              Some([&](size_t e) { return p.dy[e] * p.gates[e] * sigmoid(p.gates[e]); }), 1e-5,
              "dup");
  }
}

struct NormRow {
  double mean = 0, rstd = 0;
  Doubles n;  // normalised
};
NormRow NormOf(const Doubles& x, bool layer, double eps) {
  NormRow row;
  const auto count = static_cast<double>(x.size());
  if (layer) {
    for (const double v : x) row.mean += v / count;
  }
  double squares = 0;
  for (const double v : x) squares += (v - row.mean) * (v - row.mean) / count;
  row.rstd = 1 / std::sqrt(squares + eps);
  for (const double v : x) row.n.push_back((v - row.mean) * row.rstd);
  return row;
}

void CheckNorm(bool layer) {
  LargeBench bench;
  LargeTensor x(Dtype::kBF16, n), y(Dtype::kBF16, n), w(Dtype::kBF16, C), b(Dtype::kBF16, C);
  LargeTensor stats(Dtype::kF32, layer ? 2 * M : M), dx(Dtype::kBF16, n);
  LargeTensor dw(Dtype::kF32, C), db(Dtype::kF32, C);
  x.Uniform(7), w.Uniform(8), b.Uniform(9);
  const Doubles w_C = w.Read(0, C), b_C = b.Read(0, C);
  if (layer) {
    bench.Run(KernelId::kLayerNormForward, {M, C}, {&x, &w, &b, &y, &stats});
  } else {
    bench.Run(KernelId::kRmsNormForward, {M, C}, {&x, &w, &y, &stats});
  }
  constexpr double kEps = 1e-5;
  for (const int64_t m : SomeRows(M, C)) {
    const NormRow row = NormOf(x.Read(m * C, C), layer, kEps);
    CheckSome(y, m * C, Some([&](size_t c) { return row.n[c] * w_C[c] + (layer ? b_C[c] : 0); }, C),
              kRowSlack, "y");
    CheckSome(stats, layer ? 2 * m + 1 : m, {row.rstd}, kRowSlack, "1/std");
  }

  LargeTensor& dy = y.Uniform(10);
  if (layer) {
    bench.Run(KernelId::kLayerNormBackward, {M, C}, {&dy, &x, &w, &stats, &dx, &dw, &db});
  } else {
    bench.Run(KernelId::kRmsNormBackward, {M, C}, {&dy, &x, &w, &stats, &dx, &dw});
  }
  for (const int64_t m : SomeRows(M, C)) {
    const NormRow row = NormOf(x.Read(m * C, C), layer, kEps);
    const Doubles dy_C = dy.Read(m * C, C);
    double mean_d = 0, mean_dn = 0;
    for (size_t c = 0; c < static_cast<size_t>(C); ++c) {
      const double d = dy_C[c] * w_C[c] / C;
      mean_d += layer ? d : 0;
      mean_dn += d * row.n[c];
    }
    CheckSome(
        dx, m * C,
        Some([&](size_t c) { return (dy_C[c] * w_C[c] - mean_d - row.n[c] * mean_dn) * row.rstd; },
             C),
        kRowSlack, "dx");
  }
  const int64_t each = layer ? 2 : 1;
  const Doubles row_stats = stats.Read(0, each * M);
  for (const int64_t first : {int64_t{0}, C - kSome}) {
    const Doubles dy_M = dy.Copy(first, M, C, kSome).values();
    const Doubles x_M = x.Copy(first, M, C, kSome).values();
    Doubles want_dw(kSome), want_db(kSome);
    for (size_t i = 0; i < x_M.size(); ++i) {
      const size_t m = i / kSome, c = i % kSome;
      const double mean = layer ? row_stats[2 * m] : 0;
      const double rstd = layer ? row_stats[2 * m + 1] : row_stats[m];
      want_dw[c] += dy_M[i] * (x_M[i] - mean) * rstd;
      want_db[c] += dy_M[i];
    }
    CheckSome(dw, first, want_dw, kColumnSlack, "dw");
    if (layer) CheckSome(db, first, want_db, kColumnSlack, "db");
  }
}

TEST_CASE("gpu past 2^31 elements: norms") {
  if (!HasRoom(3 * k16)) return;
  for (const bool layer : {true, false}) {
    CAPTURE(layer);
    CheckNorm(layer);
  }
}

// H query heads and one of keys and values; a table of random numbers will do.
constexpr int64_t kHeadSize = 128, H = C / kHeadSize - 2, G = 1, T = M / 4, kHalf = kHeadSize / 2;

// Head `h` of a row turned by the angles of the row's place in its text; sign -1: back.
Doubles Turned(const Doubles& x, const LargeTensor& table, int64_t m, double sign) {
  const Doubles angles = table.Read(m % T * kHeadSize, kHeadSize);
  Doubles y(kHeadSize);
  for (size_t i = 0; i < kHalf; ++i) {
    const double cosine = angles[i], sine = sign * angles[kHalf + i];
    y[i] = x[i] * cosine - x[kHalf + i] * sine;
    y[kHalf + i] = x[kHalf + i] * cosine + x[i] * sine;
  }
  return y;
}

TEST_CASE("gpu past 2^31 elements: rotary positions") {
  if (!HasRoom(k16)) return;
  LargeBench bench;
  LargeTensor qkv(Dtype::kBF16, n), table(Dtype::kF32, T * kHeadSize);
  table.Uniform(11);
  for (const bool backward : {false, true}) {
    qkv.Uniform(12);
    std::vector<Doubles> before;
    for (const int64_t m : SomeRows(M, C)) before.push_back(qkv.Read(m * C, C));
    bench.Run(backward ? KernelId::kRotaryBackward : KernelId::kRotaryForward,
              {M, T, H, G, kHeadSize}, {&qkv, &table});
    size_t at = 0;
    for (const int64_t m : SomeRows(M, C)) {
      const Doubles& row = before[at++];
      for (const int64_t h : {int64_t{0}, H / 2, H, H + G}) {
        CAPTURE(h);
        const auto head = row.begin() + h * kHeadSize;
        const Doubles x(head, head + kHeadSize);
        const bool turns = h < H + G;
        CheckSome(qkv, m * C + h * kHeadSize, turns ? Turned(x, table, m, backward ? -1 : 1) : x,
                  1e-6, "rotary");
      }
    }
  }
}

TEST_CASE("gpu past 2^31 elements: norm of heads and rotary positions") {
  if (!HasRoom(2 * k16)) return;
  LargeBench bench;
  const KernelDims dims = {M, T, H, G, kHeadSize};
  LargeTensor qkv(Dtype::kBF16, n), out(Dtype::kBF16, n), w(Dtype::kBF16, 2 * kHeadSize);
  LargeTensor table(Dtype::kF32, T * kHeadSize), rstd(Dtype::kF32, M * (H + G));
  LargeTensor dw(Dtype::kF32, 2 * kHeadSize);
  qkv.Uniform(13), w.Uniform(14), table.Uniform(15);
  const auto weights = [&](int64_t h) { return w.Read(h < H ? 0 : kHeadSize, kHeadSize); };
  const std::vector<int64_t> heads = {0, H / 2, H};
  constexpr double kEps = 1e-6;
  bench.Run(KernelId::kQkNormRotaryForward, dims, {&qkv, &w, &table, &out, &rstd});
  for (const int64_t m : SomeRows(M, C)) {
    for (const int64_t h : heads) {
      const int64_t at = m * C + h * kHeadSize;
      NormRow row = NormOf(qkv.Read(at, kHeadSize), false, kEps);
      const Doubles w_D = weights(h);
      for (size_t i = 0; i < row.n.size(); ++i) row.n[i] *= w_D[i];
      CheckSome(out, at, Turned(row.n, table, m, 1), kRowSlack, "out");
      CheckSome(rstd, m * (H + G) + h, {row.rstd}, kRowSlack, "1/rms");
    }
  }

  LargeTensor& dqkv = out.Uniform(16);
  std::vector<Doubles> before;
  for (const int64_t m : SomeRows(M, C)) before.push_back(dqkv.Read(m * C, C));
  // Of the one key head: its sums take two columns of dqkv and qkv each.
  const int64_t key = H * kHeadSize;
  const auto columns = [&](const LargeTensor& t, int64_t first) {
    return t.Copy(first, M, C, kSome).values();
  };
  const Doubles dy_low = columns(dqkv, key), dy_high = columns(dqkv, key + kHalf);
  const Doubles x_low = columns(qkv, key), x_high = columns(qkv, key + kHalf);
  bench.Run(KernelId::kQkNormRotaryBackward, dims, {&dqkv, &qkv, &w, &rstd, &table, &dw});
  size_t at = 0;
  for (const int64_t m : SomeRows(M, C)) {
    const Doubles& row = before[at++];
    for (const int64_t h : heads) {
      const auto head = row.begin() + h * kHeadSize;
      const Doubles back = Turned(Doubles(head, head + kHeadSize), table, m, -1), w_D = weights(h);
      const NormRow x = NormOf(qkv.Read(m * C + h * kHeadSize, kHeadSize), false, kEps);
      double mean = 0;
      for (size_t i = 0; i < back.size(); ++i) mean += back[i] * w_D[i] * x.n[i] / kHeadSize;
      CheckSome(
          dqkv, m * C + h * kHeadSize,
          Some([&](size_t i) { return (back[i] * w_D[i] - x.n[i] * mean) * x.rstd; }, kHeadSize),
          kRowSlack, "dqkv");
    }
  }
  const Doubles angles = table.Read(0, T * kHeadSize), inverse = rstd.Copy(H, M, H + G, 1).values();
  Doubles low(kSome), high(kSome);
  for (size_t i = 0; i < x_low.size(); ++i) {
    const size_t m = i / kSome, c = i % kSome, place = m % T * kHeadSize;
    const double cosine = angles[place + c], sine = angles[place + kHalf + c];
    low[c] += (dy_low[i] * cosine + dy_high[i] * sine) * x_low[i] * inverse[m];
    high[c] += (dy_high[i] * cosine - dy_low[i] * sine) * x_high[i] * inverse[m];
  }
  CheckSome(dw, kHeadSize, low, kColumnSlack, "dw of keys");
  CheckSome(dw, kHeadSize + kHalf, high, kColumnSlack, "dw of keys");
}

}  // namespace
}  // namespace zeroplan::kernel_test::large_rows
