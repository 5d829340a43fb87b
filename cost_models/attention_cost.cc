#include "cost_models/attention_cost.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base/error.h"
#include "core/base/units.h"
#include "cost_models/power_limit.h"
#include "hwprofiles/sanity.h"

namespace zeroplan {
namespace {

constexpr double kBlockRows = 128;
// Fitted on the H200's rows of the fit set.
constexpr double kForwardDiagonal = 585, kForwardFill = 1.59;
constexpr double kBackwardDiagonal = 582, kBackwardFill = 0.789;
// Fused rates of the H200 over the 702 TFLOP/s that its products sustain, heads of at most 64 and
// larger ones; and the start of each pass.
constexpr std::array<double, 2> kForwardShare = {0.69, 0.99}, kBackwardShare = {0.51, 0.64};
// Softmax over rows of scores moves its bytes slower than a copy does: PyTorch's kernels on an
// H200, 1024 tokens, forward 2.67 and backward 1.9 TB/s where a copy reaches 4.25.
constexpr double kSoftmaxForwardSlowdown = 1.6, kSoftmaxBackwardSlowdown = 2.2;
constexpr double kBackwardFlops = 2.5;  // five products for the forward's two
// A deterministic backward pass beyond the usual one: the kernel that makes dQ takes as long as its
// last queries walk over all keys, and a share of the gradients of the scores, half of the square
// written and read. Fitted to 20 launches on an H200 (tests/attention_rows.h).
constexpr double kOrderedSecondsOfToken = 8e-9, kOrderedShare = 0.32;
// The slowdown of cuDNN's kernels for ragged batches where each document fills its row: medians of
// three shapes on an H200 (8 x 2048 with 32 heads of 64, 8 of keys; 2 x 4096 with 32 of 128, 8 of
// keys; 16 x 1024 with 12 of 64), cuDNN 9.14. Documents of a quarter to a sixteenth of a row took
// 0.27 to 1.2 of the usual kernels' time; 267 of about 64 tokens in 16 x 1024 took 1.75 forward and
// 1.36 backward, which no plan has.
constexpr double kDocumentsForward = 1.13, kDocumentsBackward = 1.10;
// Own fused kernels on an H200, whose large matmuls reach kH200Matmul, for heads padded to 64, to
// 96 or 128, and to 256 channels. Fitted to the launches of tests/attention_rows.h
// (docs/cost-model.md, "Own fused kernels").
constexpr double kH200Matmul = 695e12;
struct OwnRates {
  std::array<double, 3> flops_per_second;
  std::array<double, 3> diagonal;  // as kForwardDiagonal
  double fill;                     // as kForwardFill; backward by heads of keys
  double start_seconds;
};
constexpr OwnRates kOwnForward = {{328e12, 361e12, 316e12}, {567, 551, 431}, 0, 24e-6};
constexpr OwnRates kOwnBackward = {{291e12, 306e12, 177e12}, {645, 605, 293}, 0.69, 28e-6};
constexpr OwnRates kOwnOrdered = {{152e12, 188e12, 97e12}, {405, 454, 171}, 0.55, 30e-6};
// The share of a GPU's peak that mma.sync is taken to reach: less than all on Hopper, whose peak
// takes wgmma, and on B200, whose peak takes tcgen05, at as many FLOPs an SM and clock as on
// Hopper. Other GPUs have mma.sync alone.
constexpr double kMmaHopper = 0.62, kMmaB200 = 0.31, kMmaOthers = 1;
// Own kernels were not timed on other GPUs: they are taken to be slower by this factor than the
// H200's rates imply. FlashAttention 2 reaches 0.55 to 0.7 of an A100's peak (Dao 2023).
constexpr double kOwnMargin = 1.15;
// Plain kernels: what their products reach of the GPU's fp32 rate, for heads of at most 64, 128 and
// 256 channels. Measured on an H200 (tests/attention_rows.h), but for 256 channels in 16 bits,
// which are taken to be as much faster than fp32 as the others.
struct PlainShare {
  double fp32, half;
};
constexpr std::array<PlainShare, 3> kPlainForward = {{{0.30, 0.47}, {0.29, 0.50}, {0.155, 0.23}}};
constexpr std::array<PlainShare, 3> kPlainBackward = {{{0.36, 0.47}, {0.225, 0.34}, {0.121, 0.18}}};
// Triton's kernels of 2022 and 2023 beside the rates of their GPUs' profiles: fitted to the
// published runs of Composer (tests/fixtures/published_runs.jsonl) on A100 and H100. Of other GPUs
// the one of the same or the nearest older kind is assumed.
constexpr double kTritonBefore90 = 0.54, kTritonFrom90 = 0.32;
// CUTLASS's kernels beside FlashAttention 2 on the same GPU, forward and backward: RTX 3090,
// causal, heads of 64 (Dao-AILab/flash-attention, issue 416, 4,096 and 8,192 tokens: 0.82 and 0.59,
// 0.53 and 0.45), and heads of 128, forward (NVIDIA/TileGym, pull request 49, 0.44). Assumed for
// GPUs that have no FlashAttention, whose profiles' rates are in proportion to their products.
constexpr double kMemoryEfficientForward = 0.5, kMemoryEfficientBackward = 0.49;
// Tiles of keys that a tile of queries takes the time of beside those that it meets.
constexpr double kPlainStart = 4;

size_t HeadClass(const AttentionShape& shape) { return shape.head_dim <= 64 ? 0 : 1; }
double PaddedHead(const AttentionShape& shape) {
  return std::ceil(static_cast<double>(shape.head_dim) / 64) * 64;
}
size_t OwnClass(int64_t padded_head) { return padded_head <= 64 ? 0 : padded_head <= 128 ? 1 : 2; }

double MmaShare(int compute_capability) {
  const int major = compute_capability / 10;
  return major == 9 ? kMmaHopper : major == 10 ? kMmaB200 : kMmaOthers;
}

// In whole blocks.
double PaddedTokens(const AttentionShape& shape) {
  return std::ceil(static_cast<double>(shape.seq) / kBlockRows) * kBlockRows;
}

// The length of a row without documents that has as much attention a token: T, less within
// documents. Padded in proportion to the sequence.
double Span(const AttentionShape& shape, double tokens) {
  if (shape.visible_keys <= 0) return tokens;
  const double span = std::max(1.0, 2 * shape.visible_keys - 1);
  return tokens * std::min(1.0, span / static_cast<double>(shape.seq));
}

AttentionShape ShapeOf(const AttentionRate& row) {
  return {row.batch, row.seq, row.heads, row.head_dim};
}
AttentionShape ShapeOf(const KernelDims& dims) {
  const auto [B, T, H, G, D] = FirstDims<5>(dims);
  return {B, T, H, D, G};
}

double ForwardFlops(const AttentionShape& shape, double tokens) {
  return 2 * static_cast<double>(shape.batch) * tokens * tokens *
         static_cast<double>(shape.heads * shape.head_dim);
}
double ForwardFlops(const AttentionShape& shape) {
  return ForwardFlops(shape, static_cast<double>(shape.seq));
}
// Bytes of dK of every query head in 16 bits; dV has as many.
double KeyGradientBytes(const AttentionShape& shape) {
  return 2 * static_cast<double>(shape.batch * shape.heads) * static_cast<double>(shape.seq) *
         static_cast<double>(shape.head_dim);
}

LocalCorrection::Position Position(const AttentionShape& shape) {
  return {std::log2(static_cast<double>(shape.batch * shape.heads)),
          std::log2(static_cast<double>(shape.seq)),
          std::log2(static_cast<double>(shape.head_dim))};
}

}  // namespace

AttentionCost::AttentionCost(const GpuProfile& gpu, const GemmCost& gemm)
    : multiprocessors_(std::max(1.0, gpu.sm_count.value)) {
  const Dtype dtype = gpu.bf16 ? Dtype::kBF16 : gpu.fp16 ? Dtype::kF16 : Dtype::kF32;
  dense_peak_ = gemm.DensePeak(dtype);
  forward_.diagonal = kForwardDiagonal;
  forward_.fill = kForwardFill;
  backward_.flops_factor = kBackwardFlops;
  backward_.launches_of_call = 2 * forward_.launches_of_call;
  backward_.diagonal = kBackwardDiagonal;
  backward_.fill = kBackwardFill;
  const double forward = gpu.attention_forward ? gpu.attention_forward->value
                                               : kForwardShare[1] * gemm.Sustained(dtype);
  const double backward = gpu.attention_backward ? gpu.attention_backward->value
                                                 : kBackwardShare[1] * gemm.Sustained(dtype);
  for (size_t i = 0; i < 2; ++i) {
    forward_.seconds_per_flop[i] = kForwardShare[1] / kForwardShare[i] / forward;
    backward_.seconds_per_flop[i] = kBackwardShare[1] / kBackwardShare[i] / backward;
  }
  forward_.start_seconds = backward_.start_seconds = gpu.launch_overhead.value;
  launch_seconds_ = gpu.launch_overhead.value;
  seconds_per_byte_ = 1 / MemoryCost(gpu).BytesPerSecond();
  compute_capability_ = ComputeCapability(gpu.architecture);
  if (const auto fp32 = gpu.dense_peaks.find(Dtype::kF32); fp32 != gpu.dense_peaks.end()) {
    fp32_peak_ = fp32->second.value;
  }
  const bool hopper = compute_capability_ / 10 == 9;
  const auto reachable = gpu.reachable_peaks.find(dtype);
  const double matmul =
      reachable != gpu.reachable_peaks.end() ? reachable->second.value : gemm.Sustained(dtype);
  own_scale_ = matmul / kH200Matmul * (MmaShare(compute_capability_) / kMmaHopper) /
               (hopper ? 1 : kOwnMargin);
  Fit(gpu, &AttentionRate::forward_flops_per_second, forward_);
  Fit(gpu, &AttentionRate::backward_flops_per_second, backward_);
}

double AttentionCost::Work(const Pass& pass, const AttentionShape& shape,
                           double padded_head) const {
  const double tokens = PaddedTokens(shape);
  const double padding = padded_head / static_cast<double>(shape.head_dim);
  const double waves =
      static_cast<double>(shape.batch * shape.heads) * (tokens / kBlockRows) / multiprocessors_;
  return pass.flops_factor * ForwardFlops(shape, tokens) * padding *
         ((Span(shape, tokens) + pass.diagonal) / tokens) * (1 + pass.fill / waves);
}

double AttentionCost::Formula(const Pass& pass, const AttentionShape& shape) const {
  return pass.start_seconds +
         Work(pass, shape, PaddedHead(shape)) * pass.seconds_per_flop[HeadClass(shape)];
}

double AttentionCost::Seconds(const Pass& pass, const AttentionShape& shape) const {
  const double factor = pass.correction[HeadClass(shape)].Factor(Position(shape));
  return std::max(
      {Formula(pass, shape) * factor, pass.floor_seconds, LeastSeconds(pass.flops_factor, shape)});
}

double AttentionCost::LeastSeconds(double flops_factor, const AttentionShape& shape) const {
  const auto tokens = static_cast<double>(shape.seq);
  return flops_factor * ForwardFlops(shape) * (Span(shape, tokens) / tokens) / dense_peak_;
}

double AttentionCost::Seconds(AttentionLaunch launch, double visible_keys) const {
  launch.compute_capability = compute_capability_;
  const AttentionPath path = AttentionPathOf(launch);
  AttentionShape whole = ShapeOf(launch.dims);
  if (launch.documents) whole.visible_keys = visible_keys;
  switch (path.kernels) {
    case AttentionKernels::kLibrary:
      break;
    case AttentionKernels::kOwn:
      return OwnSeconds(whole, launch.backward, launch.deterministic);
    case AttentionKernels::kPlain:
      return PlainSeconds(whole, launch.dtype, launch.backward);
  }
  AttentionShape part = ShapeOf(PartDims(launch.dims, path.part));
  part.visible_keys = whole.visible_keys;
  double call = launch.backward ? BackwardSeconds(part) : ForwardSeconds(part);
  if (launch.documents) call *= launch.backward ? kDocumentsBackward : kDocumentsForward;
  if (launch.backward && launch.deterministic) call += OrderedSeconds(part);
  return static_cast<double>(path.calls) * call;
}

double AttentionCost::OwnSeconds(const AttentionShape& shape, bool backward,
                                 bool deterministic) const {
  const OwnRates& own = !backward ? kOwnForward : deterministic ? kOwnOrdered : kOwnBackward;
  const double tokens = PaddedTokens(shape), factor = backward ? kBackwardFlops : 1;
  const int64_t padded = OwnHead(shape.head_dim), keys = shape.key_heads;
  const int64_t heads = backward && keys > 0 ? keys : shape.heads;
  const size_t size = OwnClass(padded);
  const double waves =
      static_cast<double>(shape.batch * heads) * (tokens / kBlockRows) / multiprocessors_;
  const double flops = factor * 2 * static_cast<double>(shape.batch * shape.heads * padded) *
                       tokens * (Span(shape, tokens) + own.diagonal[size]) * (1 + own.fill / waves);
  return std::max(own.start_seconds + flops / (own.flops_per_second[size] * own_scale_),
                  LeastSeconds(factor, shape));
}

double AttentionCost::TorchSeconds(TorchFused kernels, const AttentionShape& shape,
                                   bool backward) const {
  double share = 1;
  if (kernels == TorchFused::kTriton) {
    share = compute_capability_ < 90 ? kTritonBefore90 : kTritonFrom90;
  } else if (kernels == TorchFused::kMemoryEfficient) {
    share = backward ? kMemoryEfficientBackward : kMemoryEfficientForward;
  }
  return (backward ? BackwardSeconds(shape) : ForwardSeconds(shape)) / share;
}

double AttentionCost::SharedSeconds(const AttentionShape& shape) const {
  if (shape.key_heads == 0 || shape.key_heads == shape.heads) return 0;
  const double kept = static_cast<double>(shape.key_heads) / static_cast<double>(shape.heads);
  return launch_seconds_ + 2 * KeyGradientBytes(shape) * (1 + kept) * seconds_per_byte_;
}

double AttentionCost::OrderedSeconds(const AttentionShape& shape) const {
  const double tokens = PaddedTokens(shape);
  const double square_bytes = 2 * static_cast<double>(shape.batch * shape.heads) * tokens * tokens;
  return kOrderedSecondsOfToken * tokens + kOrderedShare * square_bytes * seconds_per_byte_;
}

// As attention_tiles.cuh has it: tiles of 64 tokens, 32 where heads are past 128 channels. Scores
// and dP take a head's channels, the other products those of the tile, 64, 128 or 256. The backward
// pass makes scores and dP twice.
double AttentionCost::PlainSeconds(const AttentionShape& shape, Dtype dtype, bool backward) const {
  ZEROPLAN_CHECK(fp32_peak_ > 0, "no fp32 peak");
  const size_t size = shape.head_dim <= 64 ? 0 : shape.head_dim <= 128 ? 1 : 2;
  const double padded = static_cast<double>(64 << size);
  const auto head = static_cast<double>(AlignUp(static_cast<uint64_t>(shape.head_dim), 4));
  const double tile = size < 2 ? 64 : 32;
  const double tiles = std::ceil(static_cast<double>(shape.seq) / tile);
  const double channels = backward ? 4 * head + 3 * padded : head + padded;
  const double flops = 2 * channels * tile * tile *
                       (tiles * (Span(shape, tiles) + 1) / 2 + kPlainStart * tiles) *
                       static_cast<double>(shape.batch * shape.heads);
  const PlainShare& share = (backward ? kPlainBackward : kPlainForward)[size];
  return (backward ? 2 : 1) * launch_seconds_ +
         flops / (fp32_peak_ * (dtype == Dtype::kF32 ? share.fp32 : share.half));
}

// The fastest row may measure a call's cost instead of the kernel: then the formula, fitted to the
// other rows, says that the kernel takes less. If it says more, the row counts as any other.
void AttentionCost::Fit(const GpuProfile& gpu, double AttentionRate::*rate, Pass& pass) const {
  if (!gpu.attention) return;
  const PowerLimit power(gpu);
  std::vector<Timed> rows;
  for (const AttentionRate& row : gpu.attention->rows) {
    const AttentionShape shape = ShapeOf(row);
    const double flops = pass.flops_factor * ForwardFlops(shape);
    rows.push_back({shape, power.AttentionAtTopClock(flops / (row.*rate), flops, 0)});
  }
  if (rows.size() < 5) return;
  const auto fastest =
      std::min_element(rows.begin(), rows.end(),
                       [](const Timed& a, const Timed& b) { return a.seconds < b.seconds; });
  std::vector<Timed> others = rows;
  others.erase(others.begin() + (fastest - rows.begin()));
  FitRates(others, pass);
  const bool is_a_call = Formula(pass, fastest->shape) <= fastest->seconds;
  if (!is_a_call) FitRates(rows, pass);
  pass.floor_seconds = std::min(fastest->seconds, pass.launches_of_call * launch_seconds_);
  for (const Timed& row : is_a_call ? others : rows) {
    pass.correction[HeadClass(row.shape)].Add(Position(row.shape),
                                              row.seconds / Formula(pass, row.shape));
  }
}

void AttentionCost::FitRates(const std::vector<Timed>& rows, Pass& pass) const {
  std::vector<FitRow> fit;
  for (const Timed& row : rows) {
    std::vector<double> terms = {1, 0, 0};
    terms[1 + HeadClass(row.shape)] = Work(pass, row.shape, PaddedHead(row.shape));
    fit.push_back({std::move(terms), row.seconds});
  }
  const std::vector<double> fitted = FitRelative(fit);
  pass.start_seconds = fitted[0];
  for (size_t i = 0; i < 2; ++i) {
    if (fitted[1 + i] > 0) pass.seconds_per_flop[i] = fitted[1 + i];
  }
}

double UnfusedAttentionSeconds(const GemmCost& gemm, const MemoryCost& memory, Dtype dtype,
                               const AttentionShape& shape, bool backward) {
  const double squares = static_cast<double>(shape.batch * shape.heads);
  const auto tokens = static_cast<double>(shape.seq);
  const auto head = static_cast<double>(shape.head_dim);
  const double square_bytes = squares * tokens * tokens * static_cast<double>(DtypeBytes(dtype));
  // Into the square (Q*K^T, dO*V^T) and out of it (P*V, P^T*dO, dS*K, dS^T*Q).
  const double into = gemm.Seconds(dtype, Product{tokens, tokens, head, squares});
  const double out_of = gemm.Seconds(dtype, Product{tokens, head, tokens, squares});
  if (!backward) return into + memory.Seconds(kSoftmaxForwardSlowdown * 2 * square_bytes) + out_of;
  return into + memory.Seconds(kSoftmaxBackwardSlowdown * 3 * square_bytes) + 3 * out_of;
}

}  // namespace zeroplan
