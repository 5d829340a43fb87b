// Matrix products as the executor runs them: the shapes that to_profile.py takes for the built-in
// tables, so that the cost model is fitted to the same corners.
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "executor/measure/cuda/device_parts.h"

namespace zeroplan {
namespace {

struct ProductShape {
  int64_t m = 0, k = 0, n = 0;
};

BenchArg Random(Dtype dtype, int64_t elements) { return {ArgKind::kRandom, dtype, elements}; }
BenchArg Output(Dtype dtype, int64_t elements) { return {ArgKind::kOutput, dtype, elements}; }

// With one scale a tensor.
std::optional<double> EightBitSeconds(KernelBench& bench, GemmKind kind, const ProductShape& s) {
  constexpr Dtype kCodes = Dtype::kE4M3;
  // Rows and columns of the output, and the contraction.
  const auto [rows, columns, depth] = kind == GemmKind::kForward ? std::array{s.m, s.n, s.k}
                                      : kind == GemmKind::kData  ? std::array{s.m, s.k, s.n}
                                                                 : std::array{s.k, s.n, s.m};
  const int64_t fast = kind == GemmKind::kForward ? 1 : 0;
  const BenchArg scale = Random(Dtype::kF32, 1), absent;
  // a scale_a b scale_b bias? residual? -> y
  return bench.Seconds(KernelId::kFp8Matmul, {rows, depth, columns, 0, 0, fast},
                       {Random(kCodes, rows * depth), scale, Random(kCodes, columns * depth), scale,
                        absent, absent, Output(Dtype::kBF16, rows * columns)});
}

std::optional<double> ProductSeconds(KernelBench& bench, GemmKind kind, Dtype dtype,
                                     const ProductShape& s) {
  if (dtype == Dtype::kE4M3) return EightBitSeconds(bench, kind, s);
  const KernelDims dims = {s.m, s.k, s.n, 0};
  const BenchArg a = Random(dtype, s.m * s.k), w = Random(dtype, s.k * s.n);
  const BenchArg dy = Random(dtype, s.m * s.n), absent;
  switch (kind) {
    case GemmKind::kForward:  // a w bias? residual? -> y
      return bench.Seconds(KernelId::kMatmulForward, dims,
                           {a, w, absent, absent, Output(dtype, s.m * s.n)});
    case GemmKind::kData:  // dy w -> dx
      return bench.Seconds(KernelId::kMatmulBackwardData, dims, {dy, w, Output(dtype, s.m * s.k)});
    case GemmKind::kWeight:  // a dy -> dw db?
      return bench.Seconds(KernelId::kMatmulBackwardWeight, dims,
                           {a, dy, Output(dtype, s.k * s.n), absent});
  }
  return std::nullopt;
}

constexpr int64_t kHead = 50304;

// The products of a layer, and of the head, whose width is the padded vocabulary.
std::vector<ProductShape> LayerShapes(bool quick) {
  const std::vector<int64_t> rows =
      quick ? std::vector<int64_t>{2048, 16384} : std::vector<int64_t>{2048, 8192, 16384, 32768};
  const std::vector<int64_t> hidden =
      quick ? std::vector<int64_t>{768, 4096} : std::vector<int64_t>{768, 1600, 4096};
  std::vector<ProductShape> shapes;
  const auto add_layer = [&](int64_t m, int64_t h) {
    for (const auto& [k, n] : {std::pair{h, 3 * h}, {h, h}, {h, 4 * h}, {4 * h, h}}) {
      shapes.push_back({m, k, n});
    }
  };
  // Too small to fill the GPU: what a call takes at least.
  add_layer(512, 256);
  if (!quick) add_layer(4096, 256);
  if (!quick) add_layer(32768, 256);
  if (!quick) add_layer(1024, 768);
  // Heads of narrow models, which are most of their FLOPs.
  if (!quick) shapes.push_back({2048, 256, kHead});
  if (!quick) shapes.push_back({16384, 256, 8192});
  shapes.push_back({16384, 256, kHead});
  // Heads behind few tokens: reading the weights takes longer than multiplying.
  for (const int64_t m : {128, 256, 512}) {
    if (!quick) shapes.insert(shapes.end(), {{m, 512, kHead}, {m, 1024, kHead}});
  }
  for (const int64_t h : hidden) {
    for (const int64_t m : rows) {
      // Seconds each to tune, and no faster than with half the rows.
      if (m != 32768 || h != 4096) add_layer(m, h);
    }
    for (const int64_t m : {2048, 16384}) {
      if (!quick || m == 16384) shapes.push_back({m, h, kHead});
    }
  }
  return shapes;
}

void MeasureSquares(KernelBench& bench, Dtype dtype, const std::vector<int64_t>& sides,
                    int64_t reached_by, KernelRates& rates) {
  for (const int64_t n : sides) {
    const auto seconds = ProductSeconds(bench, GemmKind::kForward, dtype, {n, n, n});
    if (!seconds) continue;
    const auto side = static_cast<double>(n);
    const double rate = 2 * side * side * side / *seconds;
    rates.gemm.push_back({GemmKind::kForward, dtype, n, n, n, rate});
    if (n <= reached_by) rates.reachable[dtype] = {n, rate};
  }
}

void MeasureLayer(KernelBench& bench, Dtype dtype, const ProductShape& shape, KernelRates& rates) {
  for (const GemmKind kind : {GemmKind::kForward, GemmKind::kData, GemmKind::kWeight}) {
    const auto seconds = ProductSeconds(bench, kind, dtype, shape);
    if (!seconds) continue;
    const double flops = 2 * static_cast<double>(shape.m) * static_cast<double>(shape.k) *
                         static_cast<double>(shape.n);
    rates.gemm.push_back({kind, dtype, shape.m, shape.k, shape.n, flops / *seconds});
  }
}

}  // namespace

void MeasureGemms(KernelBench& bench, const DeviceProperties& device, bool quick,
                  KernelRates& rates) {
  const Dtype half = HalfDtype(device);
  for (const ProductShape& shape : LayerShapes(quick)) MeasureLayer(bench, half, shape, rates);
  // Rising: the largest that fits is what a GPU can reach.
  constexpr int64_t kLargest = 16384, kLargestFp32 = 4096;
  if (half == Dtype::kBF16) {
    MeasureSquares(bench, Dtype::kBF16, {1024, kLargest}, kLargest, rates);
  }
  if (half == Dtype::kBF16) {
    MeasureSquares(bench, Dtype::kF16, {4096, 8192}, 8192, rates);
  } else {
    MeasureSquares(bench, Dtype::kF16, {4096, kLargest}, kLargest, rates);
  }
  MeasureSquares(bench, Dtype::kF32, {1024, kLargestFp32}, kLargestFp32, rates);
  bench.SaveTuned();
}

namespace {

// The experts of a layer with `rows` rows: gate and up, then down.
struct ExpertShape {
  int64_t rows, experts, hidden, width;
};

// Borders of the experts' rows: even, or with shares that fall as 1/(1 + i/8), as routers leave
// them that no auxiliary loss balances.
std::vector<int32_t> Borders(int64_t rows, int64_t experts, bool even) {
  std::vector<double> shares;
  double sum = 0;
  for (int64_t e = 0; e < experts; ++e) {
    // The order of the experts is no order of their sizes.
    const int64_t place = even ? 0 : e * 5 % experts;
    shares.push_back(1 / (1 + static_cast<double>(place) / 8));
    sum += shares.back();
  }
  std::vector<int32_t> starts = {0};
  double before = 0;
  for (const double share : shares) {
    before += share / sum;
    starts.push_back(static_cast<int32_t>(static_cast<double>(rows) * before + 0.5));
  }
  starts.back() = static_cast<int32_t>(rows);
  return starts;
}

std::optional<double> GroupedSeconds(KernelBench& bench, GemmKind kind, Dtype dtype,
                                     const KernelDims& dims, const std::vector<int32_t>& borders) {
  const auto [R, K, N, E] = FirstDims<4>(dims);
  const BenchArg a = Random(dtype, R * K), dy = Random(dtype, R * N), w = Random(dtype, E * N * K);
  const BenchArg starts{ArgKind::kInts, Dtype::kI32, E + 1, borders};
  switch (kind) {
    case GemmKind::kForward:
      return bench.Seconds(KernelId::kGroupedMatmulForward, dims,
                           {a, w, starts, Output(dtype, R * N)});
    case GemmKind::kData:
      return bench.Seconds(KernelId::kGroupedMatmulBackwardData, dims,
                           {dy, w, starts, Output(dtype, R * K)});
    case GemmKind::kWeight:
      return bench.Seconds(KernelId::kGroupedMatmulBackwardWeight, dims,
                           {a, dy, starts, Output(dtype, E * N * K)});
  }
  return std::nullopt;
}

}  // namespace

void MeasureGroupedGemms(KernelBench& bench, const DeviceProperties& device, bool quick,
                         KernelRates& rates) {
  const Dtype dtype = HalfDtype(device);
  std::vector<ExpertShape> shapes = {{65536, 128, 2048, 768}, {32768, 64, 2048, 1024}};
  if (!quick) shapes.insert(shapes.end(), {{131072, 128, 2048, 768}, {16384, 8, 4096, 14336}});
  for (const ExpertShape& s : shapes) {
    for (const bool even : {true, false}) {
      const std::vector<int32_t> borders = Borders(s.rows, s.experts, even);
      int32_t most = 0;
      for (size_t e = 0; e + 1 < borders.size(); ++e) {
        most = std::max(most, borders[e + 1] - borders[e]);
      }
      const auto fullest = (int64_t{100} * most * s.experts + s.rows / 2) / s.rows;
      for (const auto& [k, n] : {std::pair{s.hidden, 2 * s.width}, {s.width, s.hidden}}) {
        for (const GemmKind kind : {GemmKind::kForward, GemmKind::kData, GemmKind::kWeight}) {
          const KernelDims dims = {s.rows, k, n, s.experts};
          const auto seconds = GroupedSeconds(bench, kind, dtype, dims, borders);
          if (!seconds) continue;
          const double flops = KernelInfo(KernelId::kGroupedMatmulForward).flops(dims);
          rates.grouped.push_back(
              {kind, dtype, s.rows, k, n, s.experts, even ? 100 : fullest, flops / *seconds});
        }
      }
    }
  }
}

void MeasureEightBitGemms(KernelBench& bench, const DeviceProperties&, bool quick,
                          KernelRates& rates) {
  for (const ProductShape& shape : LayerShapes(quick)) {
    if (shape.n != kHead) MeasureLayer(bench, Dtype::kE4M3, shape, rates);  // heads stay in 16 bits
  }
  constexpr int64_t kLargest = 16384;
  MeasureSquares(bench, Dtype::kE4M3, {1024, kLargest}, kLargest, rates);
  bench.SaveTuned();
}

namespace {

struct AttentionShape {
  int64_t batch, heads, seq, head_dim;
};
// The cost model wants five rows or more. Building a plan takes cuDNN about a second.
// The small ones say what a call takes at least.
constexpr AttentionShape kQuickShapes[] = {{1, 8, 128, 64},    {1, 12, 1024, 64},
                                           {16, 12, 1024, 64}, {16, 25, 1024, 64},
                                           {8, 32, 1024, 128}, {4, 32, 2048, 128}};
constexpr AttentionShape kMoreShapes[] = {{8, 12, 128, 64},  {16, 4, 256, 64},   {4, 16, 2048, 64},
                                          {4, 25, 1024, 64}, {1, 32, 1024, 128}, {2, 16, 8192, 128},
                                          {4, 16, 4096, 64}, {16, 12, 512, 64},  {1, 8, 65536, 64},
                                          {1, 8, 65536, 128}};

}  // namespace

void MeasureAttention(KernelBench& bench, const DeviceProperties& device, bool quick,
                      KernelRates& rates) {
  const Dtype dtype = HalfDtype(device);
  std::vector<AttentionShape> shapes(std::begin(kQuickShapes), std::end(kQuickShapes));
  if (!quick) shapes.insert(shapes.end(), std::begin(kMoreShapes), std::end(kMoreShapes));
  for (const AttentionShape& s : shapes) {
    const int64_t channels = s.heads * s.head_dim, rows = s.batch * s.seq;
    const KernelDims dims = {s.batch, s.seq, s.heads, s.heads, s.head_dim};
    const BenchArg qkv{ArgKind::kRandom, dtype, rows * 3 * channels};
    const BenchArg grad{ArgKind::kRandom, dtype, rows * channels};
    const BenchArg lse{ArgKind::kZero, Dtype::kF32, s.batch * s.heads * s.seq};
    const auto forward = bench.Seconds(KernelId::kAttentionForward, dims,
                                       {qkv,
                                        {ArgKind::kOutput, dtype, rows * channels},
                                        {ArgKind::kOutput, Dtype::kF32, lse.elements}});
    // With lse = 0 and values below 1/2 the probabilities are finite; they cost what others cost.
    const auto backward =
        bench.Seconds(KernelId::kAttentionBackward, dims,
                      {grad, qkv, grad, lse, {ArgKind::kOutput, dtype, rows * 3 * channels}});
    if (!forward || !backward) continue;
    rates.attention.push_back({s.batch, s.heads, s.seq, s.head_dim,
                               KernelInfo(KernelId::kAttentionForward).flops(dims) / *forward,
                               KernelInfo(KernelId::kAttentionBackward).flops(dims) / *backward});
  }
}

}  // namespace zeroplan
