// Embeddings, the loss, parameters and their states, copies of eight bits and the cache of keys and
// values, past 2^31 elements. Legend: kernel_rows.inc's; n elements.
#include <algorithm>
#include <memory>

#include "core/base/fp8.h"
#include "core/base/int_blocks.h"
#include "tests/executor/cuda/large_tensor.h"
#include "tests/executor/kernels/unit_fixture.h"

namespace zeroplan::kernel_test::large_tables {
namespace {

constexpr int64_t M = kLargeRows, C = kLargeColumns, n = kLargeElements;
constexpr double k8 = n, k16 = 2.0 * n, k32 = 4.0 * n;  // bytes of one

TEST_CASE("gpu past 2^31 elements: embeddings of many tokens") {
  constexpr int64_t V = 1024, B = 4, T = M / B;
  if (!HasRoom(k16 + 2.0 * T * C)) return;
  LargeBench bench;
  LargeTensor tokens(Dtype::kI32, M), wte(Dtype::kBF16, V * C), wpe(Dtype::kBF16, T * C);
  LargeTensor x(Dtype::kBF16, n), dwte(Dtype::kF32, V * C);
  // Odd, so that V positions that follow one another have all the tokens.
  const auto id_of = [](int64_t m) { return m * 7919 % V; };
  std::vector<int32_t> ids;
  for (int64_t m = 0; m < M; ++m) ids.push_back(static_cast<int32_t>(id_of(m)));
  tokens.Ints(ids), wte.Uniform(1), wpe.Uniform(2);
  bench.Run(KernelId::kEmbedForward, {B, T, C, V}, {&tokens, &wte, &wpe, &x});
  for (const int64_t i : SomeElements(n)) {
    const int64_t m = i / C, c = i % C;
    const Doubles token = wte.Read(id_of(m) * C + c, kSome), place = wpe.Read(m % T * C + c, kSome);
    CheckSome(x, i, Some([&](size_t e) { return token[e] + place[e]; }), 1e-6, "x");
  }

  LargeTensor &dx = x.Uniform(3), &dwpe = wpe;
  dwte.Zero();
  bench.Run(KernelId::kEmbedBackward, {B, T, C, V}, {&tokens, &dx, &dwte, &dwpe});
  for (const int64_t i : SomeElements(n)) {
    const int64_t m = i / C, c = i % C;
    const auto sums = [&](int64_t first, int64_t rows, int64_t stride) {
      const Doubles all = dx.Copy(first, rows, stride, kSome).values();
      Doubles sum(kSome);
      for (size_t j = 0; j < all.size(); ++j) sum[j % kSome] += all[j];
      return sum;
    };
    // Sums of 256 numbers below 1/2, and of 4.
    CheckSome(dwte, id_of(m) * C + c, sums(m % V * C + c, M / V, V * C), 1e-4, "dwte");
    CheckSome(dwpe, m % T * C + c, sums(m % T * C + c, B, T * C), 1e-6, "dwpe");
  }
}

TEST_CASE("gpu past 2^31 elements: embeddings of a large vocabulary") {
  constexpr int64_t V = M;
  if (!HasRoom(k16)) return;
  LargeBench bench;
  std::vector<int32_t> ids;
  for (const int64_t row : SomeRows(V, C)) ids.push_back(static_cast<int32_t>(row));
  const auto T = static_cast<int64_t>(ids.size());
  LargeTensor tokens(Dtype::kI32, T), wte(Dtype::kBF16, n), x(Dtype::kBF16, T * C);
  tokens.Ints(ids), wte.Uniform(4);
  bench.Run(KernelId::kEmbedForward, {1, T, C, V}, {&tokens, &wte, nullptr, &x});
  for (int64_t t = 0; t < T; ++t) {
    CheckSome(x, t * C, wte.Read(ids[static_cast<size_t>(t)] * C, C), 0, "x");
  }
  LargeTensor &dx = x.Uniform(5), &dwte = wte;
  dwte.Zero();
  bench.Run(KernelId::kEmbedBackward, {1, T, C, V}, {&tokens, &dx, &dwte});
  for (int64_t t = 0; t < T; ++t) {
    CheckSome(dwte, ids[static_cast<size_t>(t)] * C, dx.Read(t * C, C), 0, "dwte");
  }
}

TEST_CASE("gpu past 2^31 elements: rows and columns of single tokens") {
  constexpr int64_t kRows = 8;
  if (!HasRoom(k16 + 4.0 * M * kRows)) return;
  LargeBench bench;
  LargeTensor places(Dtype::kI32, M), rows(Dtype::kBF16, kRows * C), x(Dtype::kBF16, n);
  const std::vector<int64_t> some = SomeRows(M, C);
  std::vector<int32_t> of(static_cast<size_t>(M), static_cast<int32_t>(kRows));  // none
  for (const int64_t m : some) of[static_cast<size_t>(m)] = static_cast<int32_t>(m % kRows);
  places.Ints(of), rows.Uniform(11), x.Uniform(12);
  bench.Run(KernelId::kEmbedRows, {1, M, C, kRows}, {&places, &rows, nullptr, &x});
  for (const int64_t m : some) CheckSome(x, m * C, rows.Read(m % kRows * C, C), 0, "x");

  LargeTensor columns(Dtype::kI32, kRows), narrow(Dtype::kBF16, M * kRows);
  LargeTensor& wide = x.Uniform(13);
  std::vector<int32_t> which;
  for (int64_t j = 0; j < kRows; ++j) which.push_back(static_cast<int32_t>(C - 1 - 3 * j));
  columns.Ints(which), narrow.Uniform(14);
  const auto sides = [&](int64_t m) {
    Doubles both = narrow.Read(m * kRows, kRows);
    for (const int32_t column : which) both.push_back(wide.Read(m * C + column, 1)[0]);
    return both;
  };
  std::vector<Doubles> before;
  for (const int64_t m : some) before.push_back(sides(m));
  bench.Run(KernelId::kSwapColumns, {M, kRows, C}, {&columns, &narrow, &wide});
  for (size_t i = 0; i < some.size(); ++i) {
    std::rotate(before[i].begin(), before[i].begin() + kRows, before[i].end());
    CHECK(sides(some[i]) == before[i]);
  }
}

void CheckLoss(Dtype dtype, int64_t R, int64_t V, int64_t Vp) {
  CAPTURE(DtypeName(dtype));
  CAPTURE(Vp);
  LargeBench bench;
  LargeTensor logits(dtype, R * Vp), targets(Dtype::kI32, R), loss(Dtype::kF32, R);
  LargeTensor state(Dtype::kU8, sizeof(StepState));
  state.State({});  // gradients times 1
  const std::vector<int64_t> rows = SomeRows(R, Vp);
  std::vector<int32_t> ids;
  for (int64_t r = 0; r < R; ++r) {
    const bool counts = r % 5 != 3 || std::find(rows.begin(), rows.end(), r) != rows.end();
    ids.push_back(counts ? static_cast<int32_t>(r * 31 % V) : -1);
  }
  targets.Ints(ids);
  for (const bool gradients : {false, true}) {
    CAPTURE(gradients);
    logits.Uniform(6);
    std::vector<Doubles> before;
    for (const int64_t r : rows) before.push_back(logits.Read(r * Vp, V));
    bench.Run(KernelId::kCrossEntropy, {R, V, Vp}, {&logits, &targets, &state, &loss},
              gradients ? 0 : kForwardOnly);
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t r = rows[i];
      const auto target = static_cast<size_t>(ids[static_cast<size_t>(r)]);
      double sum = 0;
      for (const double x : before[i]) sum += std::exp(x);
      // As in the tests of small ones: a few roundings of numbers near 12.
      CheckSome(loss, r, {std::log(sum) - before[i][target]}, 4e-6, "loss");
      if (!gradients) continue;
      Doubles want = Some([&](size_t v) { return std::exp(before[i][v]) / sum; }, V);
      want[target] -= 1;
      want.resize(static_cast<size_t>(Vp));
      CheckSome(logits, r * Vp, want, 1e-8, "dlogits");
    }
  }
}

// By blocks that hold a row or a part of one, by warps, and in fp32.
TEST_CASE("gpu past 2^31 elements: cross-entropy") {
  constexpr int64_t kVocab = 128256, kFew = 2048;
  if (HasRoom(k16)) CheckLoss(Dtype::kBF16, n / kVocab, kVocab - 250, kVocab);
  if (HasRoom(k16)) CheckLoss(Dtype::kBF16, n / kFew, kFew - 48, kFew);
  if (HasRoom(k32)) CheckLoss(Dtype::kF32, n / kVocab, kVocab - 250, kVocab);
}

TEST_CASE("gpu past 2^31 elements: AdamW") {
  if (!HasRoom(2 * k16 + 3 * k32)) return;
  LargeBench bench;
  ParamLayout& layout = bench.program.layout;
  layout.tensors = std::make_shared<std::vector<ParamTensor>>(
      std::vector<ParamTensor>{TestTensor(M, C, true, InitKind::kNormal, M)});
  layout.shards = 1;
  constexpr auto kAll = static_cast<uint64_t>(n);
  layout.units.push_back({.layer = 0,
                          .persistent = false,
                          .slots = {{0, 0, kAll}},
                          .elements = kAll,
                          .param_elements = kAll,
                          .shard_elements = kAll,
                          .padded_elements = kAll});
  OptimizerConfig& optimizer = bench.program.setup.optimizer;
  optimizer.betas = {0.9, 0.99};
  optimizer.eps = 1e-6;
  optimizer.weight_decay = 0.1;
  StepState first;
  first.step = 1;
  first.lr = 0.01f;
  first.grad_factor = 0.25f;
  first.bias_correction1 = 0.1f;
  first.bias_correction2 = 0.01f;
  LargeTensor grad(Dtype::kBF16, n), state(Dtype::kU8, sizeof(StepState)), master(Dtype::kF32, n);
  LargeTensor m(Dtype::kF32, n), v(Dtype::kF32, n), param(Dtype::kBF16, n);
  grad.Uniform(7), state.State(first), master.Uniform(8), m.Zero(), v.Zero();
  std::vector<Doubles> before;
  for (const int64_t i : SomeElements(n)) before.push_back(master.Read(i, kSome));
  bench.Run(KernelId::kAdamW, {n, 0, 0}, {&grad, &state, &master, &m, &v, &param});
  size_t at = 0;
  for (const int64_t i : SomeElements(n)) {
    const Doubles g = grad.Read(i, kSome), &old = before[at++];
    const Doubles want = Some([&](size_t e) {
      const double of = 0.25 * g[e];  // both corrections take the moments of one step back to it
      return old[e] - 0.01 * (of / (std::abs(of) + 1e-6) + 0.1 * old[e]);
    });
    CheckSome(master, i, want, 1e-6, "master");
    CheckSome(param, i, want, 1e-6, "parameter");
    CheckSome(m, i, Some([&](size_t e) { return 0.1 * 0.25 * g[e]; }), 1e-7, "m");
  }
}

TEST_CASE("gpu past 2^31 elements: masters in two halves") {
  if (!HasRoom(2 * k16 + k32)) return;
  LargeBench bench;
  LargeTensor master(Dtype::kF32, n), param(Dtype::kBF16, n), rest(Dtype::kI16, n);
  master.Uniform(9);
  std::vector<Tensor> before;
  for (const int64_t i : SomeElements(n)) before.push_back(master.Copy(i, kSome));
  bench.Run(KernelId::kSplitMaster, {n}, {&master, &param, &rest});
  bench.Run(KernelId::kJoinMaster, {n}, {&param, &rest, &master});
  size_t at = 0;
  for (const int64_t i : SomeElements(n)) {
    Tensor& whole = before[at++];
    Tensor want_param(Dtype::kBF16, kSome), want_rest(Dtype::kI16, kSome);
    bench.RunOnCpu(KernelId::kSplitMaster, {kSome}, {&whole, &want_param, &want_rest});
    CAPTURE(i);
    CHECK(param.Copy(i, kSome) == want_param);
    CHECK(rest.Copy(i, kSome) == want_rest);
    CHECK(master.Copy(i, kSome) == whole);
  }
}

// The CPU makes the same bytes of the same numbers.
TEST_CASE("gpu past 2^31 elements: blocks of four and eight bits") {
  if (!HasRoom(k32 + 1.1 * k8)) return;
  LargeBench bench;
  LargeTensor x(Dtype::kF32, n);
  for (const Dtype kind : {Dtype::kNf4, Dtype::kInt8Blocks, Dtype::kInt4Blocks, Dtype::kDynamic8}) {
    CAPTURE(DtypeName(kind));
    const auto of_block = static_cast<int64_t>(DtypeElements(kind)), count = n / of_block;
    LargeTensor blocks(kind, count);
    x.Uniform(10);
    bench.Run(KernelId::kConvert, {n}, {&x, &blocks});
    std::vector<Tensor> wanted;
    const std::vector<int64_t> some = SomeRows(count, of_block);
    for (const int64_t b : some) {
      Tensor numbers = x.Copy(b * of_block, of_block), want(kind, 1), again(Dtype::kF32, of_block);
      bench.RunOnCpu(KernelId::kConvert, {of_block}, {&numbers, &want});
      CAPTURE(b);
      CHECK(blocks.Copy(b, 1) == want);
      bench.RunOnCpu(KernelId::kConvert, {of_block}, {&want, &again});
      wanted.push_back(again);
    }
    bench.Run(KernelId::kConvert, {n}, {&blocks, &x});
    for (size_t i = 0; i < some.size(); ++i) {
      CAPTURE(some[i]);
      CHECK(x.Copy(some[i] * of_block, of_block) == wanted[i]);
    }
    if (!IsIntBlocks(kind)) continue;
    // As four parts: the sum of a block of each.
    constexpr int64_t kParts = 4, kPart = n / kParts;
    bench.Run(KernelId::kSumParts, {kPart, kParts}, {&blocks, &x});
    for (const int64_t b : {int64_t{0}, kPart / of_block - 1}) {
      Tensor parts = blocks.Copy(b, kParts, kPart / of_block, 1), sum(Dtype::kF32, of_block);
      bench.RunOnCpu(KernelId::kSumParts, {of_block, kParts}, {&parts, &sum});
      CHECK(x.Copy(b * of_block, of_block) == sum);
    }
  }
}

// Codes of x times the inverse scale, element by element.
Tensor CodesOf(Tensor x, float inverse) {
  Tensor codes(Dtype::kE4M3, x.size());
  for (int64_t i = 0; i < x.size(); ++i) {
    codes.arg().as<uint8_t>()[i] = ToE4M3(static_cast<float>(x[i]) * inverse);
  }
  return codes;
}
float LargestOf(const Tensor& x) {
  double largest = 0;
  for (const double v : x.values()) largest = std::max(largest, std::abs(v));
  return static_cast<float>(largest);
}

TEST_CASE("gpu past 2^31 elements: copies of eight bits") {
  if (!HasRoom(k16 + 2.1 * k8)) return;
  LargeBench bench;
  LargeTensor x(Dtype::kBF16, n), q(Dtype::kE4M3, n), qt(Dtype::kE4M3, n), amax(Dtype::kF32, 1);
  LargeTensor scale(Dtype::kF32, n / kFp8Block), scale_t(Dtype::kF32, n / kFp8Block);
  x.Uniform(11), amax.Write(0, {0.5});
  bench.Run(KernelId::kQuantize, {M, C, 0}, {&x, &amax, &qt, &scale_t, &q, &scale});
  const float inverse = Fp8InverseScale(0.5f, kLargestE4M3);
  for (const int64_t i : SomeElements(n)) {
    CAPTURE(i);
    CHECK(q.Copy(i, kSome) == CodesOf(x.Copy(i, kSome), inverse));
    const int64_t k = i / M, m = i % M;
    CHECK(qt.Copy(i, kSome) == CodesOf(x.Copy(m * C + k, kSome, C, 1), inverse));
  }
  // A scale for 128 neighbours along a row, and of the transposed copy along a column.
  bench.Run(KernelId::kQuantize, {M, C, 1}, {&x, nullptr, &qt, &scale_t, &q, &scale});
  for (const int64_t i : SomeElements(n)) {
    CAPTURE(i);
    const auto check = [&](const LargeTensor& copy, const LargeTensor& scales, int64_t row,
                           int64_t column, int64_t rows, int64_t columns, const Tensor& block) {
      const float largest = LargestOf(block);
      const int64_t first = row * columns + column / kFp8Block * kFp8Block;
      CHECK(copy.Copy(first, kFp8Block) == CodesOf(block, Fp8InverseScale(largest, kLargestE4M3)));
      CHECK(scales.Get(column / kFp8Block * rows + row) ==
            static_cast<double>(Fp8Scale(largest, kLargestE4M3)));
    };
    const int64_t m = i / C, c = i % C, first_m = i % M / kFp8Block * kFp8Block, k = i / M;
    check(q, scale, m, c, M, C, x.Copy(m * C + c / kFp8Block * kFp8Block, kFp8Block));
    check(qt, scale_t, k, i % M, C, M, x.Copy(first_m * C + k, kFp8Block, C, 1));
  }
}

// The keys and values of 1.1M tokens.
TEST_CASE("gpu past 2^31 elements: a token's attention over a cache") {
  constexpr int64_t T = (1 << 20) + (1 << 16), H = 8, G = 8, D = 128;
  constexpr int64_t kKept = 2 * G * D, kRow = H * D + kKept;
  if (!HasRoom(2.0 * T * (kKept + kRow))) return;
  static_assert(T * kKept > kPast);
  LargeBench bench;
  LargeTensor qkv(Dtype::kBF16, T * kRow), cache(Dtype::kBF16, T * kKept);
  qkv.Uniform(12);
  bench.Run(KernelId::kKeepKeysValues, {T, H, G, D}, {&qkv, &cache});
  for (const int64_t i : SomeElements(T * kKept)) {
    CheckSome(cache, i, qkv.Read(i / kKept * kRow + H * D + i % kKept, kSome), 0, "kept");
  }

  LargeTensor token(Dtype::kBF16, kRow), state(Dtype::kU8, sizeof(StepState));
  LargeTensor out(Dtype::kBF16, H * D);
  StepState last;
  last.position = T - 1;
  token.Uniform(13), state.State(last);
  bench.Run(KernelId::kAttendToken, {T, H, G, D}, {&token, &state, &cache, &out});
  CheckSome(cache, (T - 1) * kKept, token.Read(H * D, kKept), 0, "the token's own");
  constexpr int64_t h = H - 1;  // of the last keys
  const Doubles query = token.Read(h * D, D);
  const std::vector<float> keys = cache.Floats(h * D, T, kKept, D);
  const std::vector<float> values = cache.Floats((G + h) * D, T, kKept, D);
  Doubles sums(D);
  double all = 0;
  for (size_t t = 0; t < static_cast<size_t>(T); ++t) {
    double score = 0;
    for (size_t d = 0; d < D; ++d) score += query[d] * static_cast<double>(keys[t * D + d]);
    const double weight = std::exp(score / std::sqrt(static_cast<double>(D)));
    all += weight;
    for (size_t d = 0; d < D; ++d) sums[d] += weight * static_cast<double>(values[t * D + d]);
  }
  for (double& sum : sums) sum /= all;
  // Means of numbers below 1/2 over so many tokens are some 3e-4.
  CheckSome(out, h * D, sums, 3e-6, "out");
}

}  // namespace
}  // namespace zeroplan::kernel_test::large_tables
