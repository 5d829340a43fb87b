#include "cost_models/kernel_cost.h"

#include <algorithm>

#include "core/base/error.h"

namespace zeroplan {
namespace {

double Bytes(const Ref& ref) { return static_cast<double>(ref.bytes); }

Dtype DtypeOf(const Program& program, const Ref& ref) { return program.buffers[ref.buffer].dtype; }

double ArgumentBytes(const LaunchKernel& launch, std::span<const Ref> args) {
  const KernelRow& row = KernelInfo(launch.kernel);
  double bytes = 0;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].null() || row.modes[i] == ArgMode::kScratch) continue;
    const ArgMode mode = AccessMode(launch.kernel, static_cast<int>(i), launch.flags);
    bytes += Bytes(args[i]) * ((Reads(mode) ? 1 : 0) + (Writes(mode) ? 1 : 0));
  }
  return bytes;
}

// No default: a new kernel has to say what it is.
bool TimedByShape(KernelId kernel) {
  switch (kernel) {
    case KernelId::kMatmulForward:
    case KernelId::kMatmulBackwardData:
    case KernelId::kMatmulBackwardWeight:
    case KernelId::kAttentionForward:
    case KernelId::kAttentionBackward:
    case KernelId::kUnfusedAttentionForward:
    case KernelId::kUnfusedAttentionBackward:
    case KernelId::kMatmulGeluForward:
    case KernelId::kMatmulGeluBackward:
      return true;
    case KernelId::kEmbedForward:
    case KernelId::kLayerNormForward:
    case KernelId::kGeluForward:
    case KernelId::kCrossEntropy:
    case KernelId::kLossReduce:
    case KernelId::kLayerNormBackward:
    case KernelId::kGeluBackward:
    case KernelId::kEmbedBackward:
    case KernelId::kFill:
    case KernelId::kConvert:
    case KernelId::kNormSq:
    case KernelId::kStepScalars:
    case KernelId::kAdamW:
    case KernelId::kParamInit:
    case KernelId::kSelectRow:
      return false;
    case KernelId::kCount:
      break;
  }
  ZEROPLAN_CHECK(false, "kernel {} has no cost function", static_cast<int>(kernel));
  return false;
}

}  // namespace

double LaunchBytes(const Program& program, const LaunchKernel& launch) {
  const std::span<const Ref> args = program.args(launch);
  switch (launch.kernel) {
    case KernelId::kEmbedForward:  // a row of wte for each row of x
      return Bytes(args[0]) + Bytes(args[2]) + 2 * Bytes(args[3]);
    case KernelId::kEmbedBackward: {  // the named rows of dwte are read and written
      const double rows = static_cast<double>(launch.dims[0] * launch.dims[1] * launch.dims[2]) *
                          static_cast<double>(DtypeBytes(DtypeOf(program, args[2])));
      const bool adds = (launch.flags & kAccumulate) != 0;
      return Bytes(args[0]) + Bytes(args[1]) + 2 * rows + (adds ? 2 : 1) * Bytes(args[3]);
    }
    case KernelId::kSelectRow:
      return 2 * Bytes(args[2]);
    case KernelId::kCrossEntropy:
      return ((launch.flags & kForwardOnly) != 0 ? 1 : 3) * Bytes(args[0]) + Bytes(args[1]) +
             Bytes(args[3]);
    case KernelId::kLayerNormBackward: {
      const double workspace = args.size() > 7 && !args[7].null() ? Bytes(args[7]) : 0;
      return ArgumentBytes(launch, args) + 2 * workspace;
    }
    case KernelId::kMatmulBackwardWeight: {
      const bool bias = args.size() > 3 && !args[3].null();
      return ArgumentBytes(launch, args) + (bias ? Bytes(args[1]) : 0);
    }
    default:
      return ArgumentBytes(launch, args);
  }
}

KernelCost::KernelCost(const GpuProfile& gpu)
    : gemm_(gpu),
      memory_(gpu),
      attention_(gpu, gemm_),
      hbm_seconds_per_byte_(1 / gpu.hbm_bandwidth.value),
      slots_(256) {}

double KernelCost::HbmBytesPerSecond() const {
  return std::max(memory_.BytesPerSecond(), 1 / hbm_seconds_per_byte_);
}

uint64_t KernelCost::Hash(const Key& key) {
  uint64_t hash = static_cast<uint64_t>(key.kernel) * 31 + static_cast<uint64_t>(key.dtype);
  auto mix = [&](uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 32;
  };
  for (const int64_t dim : key.dims) mix(static_cast<uint64_t>(dim));
  mix(key.bytes);
  return hash;
}

void KernelCost::Grow() const {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.seconds < 0) continue;
    size_t at = Hash(slot.key) & (slots_.size() - 1);
    while (slots_[at].seconds >= 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = slot;
  }
}

double KernelCost::Seconds(const Program& program, const LaunchKernel& launch) const {
  const double bytes = LaunchBytes(program, launch);
  if (!TimedByShape(launch.kernel)) return memory_.Seconds(bytes);
  const Key key = {launch.dims, static_cast<uint64_t>(bytes), launch.kernel,
                   DtypeOf(program, program.args(launch)[0])};
  size_t at = Hash(key) & (slots_.size() - 1);
  while (slots_[at].seconds >= 0) {
    if (slots_[at].key == key) return slots_[at].seconds;
    at = (at + 1) & (slots_.size() - 1);
  }
  const double seconds = Compute(key);
  slots_[at] = {key, seconds};
  if (++used_ * 2 > slots_.size()) Grow();
  return seconds;
}

double KernelCost::Compute(const Key& key) const {
  const AttentionShape shape = {key.dims[0], key.dims[1], key.dims[2], key.dims[3]};
  const double least = static_cast<double>(key.bytes) * hbm_seconds_per_byte_;
  switch (key.kernel) {
    case KernelId::kMatmulForward:
    case KernelId::kMatmulGeluForward:
      return std::max(least, ProductSeconds(GemmKind::kForward, key));
    case KernelId::kMatmulBackwardData:
    case KernelId::kMatmulGeluBackward:
      return std::max(least, ProductSeconds(GemmKind::kData, key));
    case KernelId::kMatmulBackwardWeight:
      return std::max(least, ProductSeconds(GemmKind::kWeight, key));
    case KernelId::kAttentionForward:
      return std::max(least, attention_.ForwardSeconds(shape));
    case KernelId::kAttentionBackward:
      return std::max(least, attention_.BackwardSeconds(shape));
    case KernelId::kUnfusedAttentionForward:
      return std::max(least, UnfusedAttentionSeconds(gemm_, memory_, key.dtype, shape, false));
    case KernelId::kUnfusedAttentionBackward:
      return std::max(least, UnfusedAttentionSeconds(gemm_, memory_, key.dtype, shape, true));
    default:
      break;
  }
  ZEROPLAN_CHECK(false, "kernel {} is not timed by its shape", KernelInfo(key.kernel).name);
  return 0;
}

// What a launch moves beyond the bare product (bias, residual, a wider or accumulated output, the
// second output of a product with GELU or the input of its gradient) comes on top, at the bandwidth
// of memory kernels. That the arithmetic of GELU hides behind this is an assumption.
double KernelCost::ProductSeconds(GemmKind kind, const Key& key) const {
  const auto m = static_cast<double>(key.dims[0]), k = static_cast<double>(key.dims[1]),
             n = static_cast<double>(key.dims[2]);
  const double bare = (m * k + k * n + m * n) * static_cast<double>(DtypeBytes(key.dtype));
  const double extra = std::max(0.0, static_cast<double>(key.bytes) - bare);
  return gemm_.Seconds(kind, key.dtype, key.dims[0], key.dims[1], key.dims[2]) +
         extra / memory_.BytesPerSecond();
}

}  // namespace zeroplan
