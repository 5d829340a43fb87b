#include "cost_models/kernel_cost.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "core/base/error.h"
#include "hwprofiles/product_kind.h"
#include "hwprofiles/sanity.h"

namespace zeroplan {
namespace {

// Kernels that only move bytes, beside a collective that moves some too: two H200, layer norms of
// 4 to 50 MB beside NCCL's rings, time alone over time beside, 0.70 to 0.82.
constexpr double kMemoryBesideCollective = 0.75;

// Of the fp32 peak, by a GELU's FLOPs as KernelRow counts them, on a product's sums before they are
// written: products of 2,048 to 16,384 rows and 256 to 4,096 channels on an H200, 42 of them
// (cuda_kernels_benchmark --gelu). Without it they are 10 (forward) and 15 % short in the mean,
// 43 at most; with it 1 short and 2 long, 20 at most.
constexpr double kGeluShare = 0.33;

constexpr size_t kBackwardScratch = 5;  // of kAttentionBackward's arguments

// See Key. A program for the CPU has no workspace: as if it were for the GPU.
uint64_t BackwardWorkspace(const Program& program, const LaunchKernel& launch) {
  if (launch.kernel != KernelId::kAttentionBackward) return 0;
  return program.backend == Backend::kCuda
             ? program.args(launch)[kBackwardScratch].bytes
             : AttentionWorkspaceBytes(launch.dims, program.setup.deterministic);
}

bool IsFusedAttention(CostKind cost) {
  return cost == CostKind::kAttentionForward || cost == CostKind::kAttentionBackward;
}

// A product of a layer as GemmCost times it.
struct TimedShape {
  GemmKind kind;
  int64_t m, k, n;
};
// kFp8Matmul multiplies [M,K] by [N,K] in every direction: with fast sums forward, without as a
// gradient, of which a product of M by N over K is [M,K'] = [M,N'] * [K',N']^T.
TimedShape ShapeOf(CostKind cost, Dtype dtype, const KernelDims& dims) {
  if (IsGrouped(cost)) {
    const GroupedCost::Shape shape = GroupedCost::ShapeOf(cost, dims);
    return {shape.kind, shape.m, shape.k, shape.n};
  }
  const auto [M, K, N, rows_a, rows_b, fast] = dims;
  if (DtypeBytes(dtype) == 1 && fast == 0) return {GemmKind::kData, M, N, K};
  return {*ProductKind(cost), M, K, N};
}

bool WithinDocuments(const Program& program, const LaunchKernel& launch) {
  const int at = KernelInfo(launch.kernel).starts;
  return at >= 0 && at < launch.arg_count && !program.args(launch)[static_cast<size_t>(at)].null();
}

}  // namespace

KernelCost::KernelCost(const GpuProfile& gpu, double overlapped_compute)
    : power_(gpu),
      gemm_(gpu),
      memory_(gpu),
      attention_(gpu, gemm_),
      grouped_(gpu, gemm_),
      hbm_seconds_per_byte_(1 / gpu.hbm_bandwidth.value),
      launch_seconds_(gpu.launch_overhead.value),
      overlapped_compute_(overlapped_compute),
      slots_(256) {
  // Rows of a CPU's products have it in them.
  const auto fp32 = gpu.dense_peaks.find(Dtype::kF32);
  if (fp32 != gpu.dense_peaks.end() && gpu.architecture != kCpuArchitecture) {
    gelu_seconds_per_flop_ = 1 / (kGeluShare * fp32->second.value);
  }
}

double KernelCost::HbmBytesPerSecond() const {
  return std::max(memory_.MostBytesPerSecond(), 1 / hbm_seconds_per_byte_);
}

uint64_t KernelCost::Hash(const Key& key) {
  uint64_t hash = static_cast<uint64_t>(key.kernel) * 31 + static_cast<uint64_t>(key.dtype);
  auto mix = [&](uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 32;
  };
  for (const int64_t dim : key.dims) mix(static_cast<uint64_t>(dim));
  mix(key.bytes);
  mix(key.workspace);
  mix((key.documents ? 1u : 0u) + (key.deterministic ? 2u : 0u) + (key.own_documents ? 4u : 0u));
  mix(std::bit_cast<uint64_t>(key.visible_keys));
  return hash;
}

void KernelCost::Grow() const {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.cost.seconds < 0) continue;
    size_t at = Hash(slot.key) & (slots_.size() - 1);
    while (slots_[at].cost.seconds >= 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = slot;
  }
}

KernelCost::Cost KernelCost::Of(const Program& program, const LaunchKernel& launch) const {
  const double bytes = LaunchBytes(program, launch);
  const KernelRow& row = KernelInfo(launch.kernel);
  const CostKind cost = row.cost;
  const bool has_side = row.side.count > 0 && !program.args(launch)[row.side.arg].null();
  const double side = has_side ? row.side.count * launch_seconds_ : 0;
  if (cost == CostKind::kMemory || cost == CostKind::kAdam) {
    const double seconds = memory_.Seconds(launch.kernel, bytes, side);
    return {seconds, std::min(overlapped_compute_, kMemoryBesideCollective),
            power_.Memory(seconds, bytes)};
  }
  const Dtype dtype = program.buffers[program.args(launch)[0].buffer].dtype;
  Key key = {launch.dims, static_cast<uint64_t>(bytes), launch.kernel, dtype,
             BackwardWorkspace(program, launch)};
  key.documents = WithinDocuments(program, launch);
  const bool backward = cost == CostKind::kAttentionBackward;
  key.deterministic = (key.documents || backward) && program.setup.deterministic;
  if (key.documents && IsFusedAttention(cost)) {
    key.own_documents = program.own_documents;
    key.visible_keys = program.visible_keys;
  }
  size_t at = Hash(key) & (slots_.size() - 1);
  while (slots_[at].cost.seconds >= 0) {
    if (slots_[at].key == key) return WithSide(slots_[at].cost, side);
    at = (at + 1) & (slots_.size() - 1);
  }
  const double seconds = Compute(key), flops = row.flops(launch.dims) * VisibleShare(key);
  // What a FLOP draws is known in 16 bits.
  const Cost found = {seconds, SpeedBesideCollective(key),
                      dtype == Dtype::kF32 ? GpuWork{seconds}
                      : ProductKind(cost) || IsGrouped(cost)
                          ? power_.Product(seconds, power_.As16Bits(dtype, flops), bytes)
                          : power_.Attention(seconds, flops, bytes)};
  slots_[at] = {key, found};
  if (++used_ * 2 > slots_.size()) Grow();
  return WithSide(found, side);
}

KernelCost::Cost KernelCost::WithSide(Cost cost, double seconds) {
  cost.seconds += seconds;
  cost.work.fixed_seconds += seconds;
  return cost;
}

// The share of a whole row's attention that is within documents.
double KernelCost::VisibleShare(const Key& key) {
  if (key.visible_keys <= 0) return 1;
  const auto tokens = static_cast<double>(key.dims[1]);
  return std::clamp((2 * key.visible_keys - 1) / tokens, 1 / tokens, 1.0);
}

double KernelCost::SpeedBesideCollective(const Key& key) const {
  const CostKind cost = KernelInfo(key.kernel).cost;
  if (!ProductKind(cost) && !IsGrouped(cost)) return overlapped_compute_;
  const TimedShape shape = ShapeOf(cost, key.dtype, key.dims);
  return std::min(overlapped_compute_, gemm_.SpeedOnShare(shape.kind, key.dtype, shape.m, shape.k,
                                                          shape.n, overlapped_compute_));
}

double KernelCost::Compute(const Key& key) const {
  const AttentionShape shape = {key.dims[0], key.dims[1], key.dims[2], key.dims[4]};
  const double least = static_cast<double>(key.bytes) * hbm_seconds_per_byte_;
  const CostKind cost = KernelInfo(key.kernel).cost;
  // No default: a new kind has to say what it costs.
  switch (cost) {
    case CostKind::kForwardProduct:
    case CostKind::kDataProduct:
    case CostKind::kWeightProduct:
      return std::max(least, ProductSeconds(key));
    case CostKind::kGroupedForward:
    case CostKind::kGroupedData:
    case CostKind::kGroupedWeight:
      return std::max(least, grouped_.Seconds(gemm_, cost, key.dtype, key.dims));
    case CostKind::kAttentionForward:
    case CostKind::kAttentionBackward:
      return std::max(least, attention_.Seconds({.dims = key.dims,
                                                 .dtype = key.dtype,
                                                 .backward = cost == CostKind::kAttentionBackward,
                                                 .deterministic = key.deterministic,
                                                 .workspace_bytes = key.workspace,
                                                 .documents = key.documents,
                                                 .own_documents = key.own_documents},
                                                key.visible_keys));
    case CostKind::kUnfusedAttentionForward:
      return std::max(least, UnfusedAttentionSeconds(gemm_, memory_, key.dtype, shape, false));
    case CostKind::kUnfusedAttentionBackward:
      return std::max(least, UnfusedAttentionSeconds(gemm_, memory_, key.dtype, shape, true));
    case CostKind::kMemory:
    case CostKind::kAdam:
      break;
  }
  ZEROPLAN_CHECK(false, "cost kind {} is not timed by its shape", static_cast<int>(cost));
  return 0;
}

// What a launch moves beyond the bare product (bias, residual, a wider or accumulated output, the
// second output of a product with GELU or the input of its gradient) comes on top, at the bandwidth
// of memory kernels, and so does a GELU's arithmetic.
double KernelCost::ProductSeconds(const Key& key) const {
  const KernelRow& row = KernelInfo(key.kernel);
  const auto [kind, m, k, n] = ShapeOf(row.cost, key.dtype, key.dims);
  const Product product = LayerProduct(kind, m, k, n);
  const double extra =
      std::max(0.0, static_cast<double>(key.bytes) - BareBytes(key.dtype, product));
  const double gelu = row.flops(key.dims) - product.flops();
  return gemm_.Seconds(kind, key.dtype, m, k, n) + extra / memory_.BytesPerSecond() +
         gelu * gelu_seconds_per_flop_;
}

}  // namespace zeroplan
