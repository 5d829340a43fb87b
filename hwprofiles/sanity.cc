#include "hwprofiles/sanity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/settings/setup_facts.h"
#include "hwprofiles/fields.h"

namespace zeroplan {
namespace {

// Dense 16-bit matrix FLOP per SM and clock, and plain fp32 FLOP per SM and clock. Source: NVIDIA's
// architecture whitepapers (V100, T4, A100, GA102, Ada, H100, Blackwell, RTX Blackwell). The
// compute capability is that of its first GPU.
// Products of eight bits are twice as fast, where the GPU has them.
struct ArchitectureRate {
  std::string_view name;
  double matrix16;
  double fp32;
  int compute_capability;
};
constexpr ArchitectureRate kRates[] = {
    {"volta", 1024, 128, 70},
    {"turing", 1024, 128, 75},
    {"ampere", 2048, 128, 80},
    {"ampere-ga10x", 1024, 256, 86},
    {"ada", 1024, 256, 89},
    {"hopper", 4096, 256, 90},
    {"blackwell", 8192, 256, 100},
    {"blackwell-gb20x", 1024, 256, 120},
    // A core with two units of AVX-512; it plans in fp32 alone.
    {kCpuArchitecture, 0, 64, 0},
};
double DensePerClock(const ArchitectureRate& rate, Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return rate.fp32;
    case Dtype::kE4M3:
      return Fp8GpuLacks({}, rate.compute_capability).empty() ? 2 * rate.matrix16 : 0;
    default:
      return rate.matrix16;
  }
}

// Sparse figures are twice the dense ones: anything past this much over the rate is one of those.
constexpr double kTolerance = 1.15;
// What a measurement may show above a peak that it cannot pass: clocks and rounding.
constexpr double kMeasuredTolerance = 1.02;

using Found = std::optional<Contradiction>;

const ArchitectureRate* FindRate(std::string_view architecture) {
  for (const ArchitectureRate& rate : kRates) {
    if (rate.name == architecture) return &rate;
  }
  return nullptr;
}

Found CheckPeaks(const GpuProfile& gpu) {
  const ArchitectureRate* rate = FindRate(gpu.architecture);
  if (rate == nullptr) {
    std::string names;
    for (const ArchitectureRate& known : kRates) names += fmt::format(" {}", known.name);
    return Contradiction{"gpu.architecture",
                         fmt::format("\"{}\" is not known; use one of{}", gpu.architecture, names)};
  }
  for (const auto& [dtype, peak] : gpu.dense_peaks) {
    const double per_clock = DensePerClock(*rate, dtype);
    if (per_clock == 0 && dtype == Dtype::kE4M3) {
      return Contradiction{
          "gpu.peaks.e4m3.dense",
          fmt::format("GPUs of architecture {} do not multiply eight bits; remove it",
                      gpu.architecture)};
    }
    const double limit = per_clock * gpu.sm_count.value * gpu.max_sm_clock.value;
    if (peak.value > limit * kTolerance) {
      return Contradiction{
          fmt::format("gpu.peaks.{}.dense.value", DtypeName(dtype)),
          fmt::format("{} {} is more than the {:.0f} TFLOP/s that {:.0f} {} SMs can do dense at "
                      "{:.0f} MHz; this looks like the sparse peak: give half of it",
                      peak.written, peak.unit, limit / 1e12, gpu.sm_count.value, gpu.architecture,
                      gpu.max_sm_clock.value / 1e6)};
    }
    const auto reachable = gpu.reachable_peaks.find(dtype);
    // A datasheet's peak is that of the boost clock; GeForce cards run up to 13 % above it.
    constexpr double kAboveBoost = 1.15;
    if (reachable != gpu.reachable_peaks.end() &&
        reachable->second.value > kAboveBoost * peak.value) {
      return Contradiction{
          fmt::format("gpu.peaks.{}.reachable.value", DtypeName(dtype)),
          fmt::format("{} {} is far more than the dense peak of {} {}; measure again",
                      reachable->second.written, reachable->second.unit, peak.written, peak.unit)};
    }
  }
  return std::nullopt;
}

// What is less than any GPU has, which ranks of a CPU have: "GB/s" that should be "TB/s".
Found CheckLeast(const GpuProfile& gpu) {
  constexpr double kBandwidth = 50e9, kPeak = 0.1e12;
  if (gpu.architecture == kCpuArchitecture) return std::nullopt;
  const auto too_little = [](std::string key, const Figure& figure, double least) {
    return Contradiction{
        std::move(key),
        fmt::format("{} {} is not physical; at least {:g} {}", figure.written, figure.unit,
                    least * figure.written / figure.value, figure.unit)};
  };
  for (const auto& [key, figure] :
       {std::pair{"gpu.hbm_bandwidth.value", &gpu.hbm_bandwidth},
        std::pair{"gpu.copy_bandwidth.value",
                  gpu.copy_bandwidth ? &*gpu.copy_bandwidth : &gpu.hbm_bandwidth}}) {
    if (figure->value < kBandwidth) return too_little(key, *figure, kBandwidth);
  }
  for (const auto& [word, peaks] :
       {std::pair{"dense", &gpu.dense_peaks}, std::pair{"reachable", &gpu.reachable_peaks}}) {
    for (const auto& [dtype, peak] : *peaks) {
      if (peak.value >= kPeak) continue;
      return too_little(fmt::format("gpu.peaks.{}.{}.value", DtypeName(dtype), word), peak, kPeak);
    }
  }
  return std::nullopt;
}

Found CheckCapabilities(const GpuProfile& gpu) {
  if (!gpu.bf16 && !gpu.fp16 && gpu.architecture != kCpuArchitecture) {
    return Contradiction{"gpu.capabilities", "neither bf16 nor fp16 is true; one must be"};
  }
  const std::pair<bool, Dtype> needed[] = {
      {gpu.bf16, Dtype::kBF16}, {gpu.fp16, Dtype::kF16}, {true, Dtype::kF32}};
  for (const auto& [has, dtype] : needed) {
    if (has && !gpu.dense_peaks.contains(dtype)) {
      return Contradiction{fmt::format("gpu.peaks.{}.dense", DtypeName(dtype)),
                           "missing; give the dense peak of each dtype the GPU has"};
    }
  }
  return std::nullopt;
}

// `larger` must be at least `smaller`; both are figures of `profile`.
Found Order(const HardwareProfile& profile, const Figure& smaller, const Figure& larger,
            double tolerance = 1.0) {
  if (smaller.value <= larger.value * tolerance) return std::nullopt;
  return Contradiction{
      fmt::format("{}.value", FigureKey(profile, smaller)),
      fmt::format("{} {} is more than {} ({} {}); correct one of them", smaller.written,
                  smaller.unit, FigureKey(profile, larger), larger.written, larger.unit)};
}

Found CheckPcie(const HardwareProfile& profile) {
  // Both ways at once carries at least nearly what one way does (a little is lost to turnaround).
  constexpr double kSlack = 1.1;
  const PcieProfile& pcie = profile.node.pcie;
  for (const Figure* single : {&pcie.to_device_single, &pcie.from_device_single}) {
    if (auto found = Order(profile, *single, pcie.both_single, kSlack)) return found;
  }
  const std::pair<const Figure*, const std::optional<Figure>*> directions[] = {
      {&pcie.to_device_single, &pcie.to_device_all},
      {&pcie.from_device_single, &pcie.from_device_all}};
  for (const auto& [single, all] : directions) {
    if (!*all) continue;
    if (auto found = Order(profile, *single, **all, kSlack)) return found;
  }
  return std::nullopt;
}

constexpr double kTera = 1e12;

Contradiction TooFast(std::string_view table, size_t row, double rate, std::string_view unit,
                      double limit, std::string_view what) {
  return Contradiction{fmt::format("{}.rows.{}", table, row),
                       fmt::format("{:.4g} {} is more than {} of {:.4g} {}; measure again", rate,
                                   unit, what, limit, unit)};
}

Found CheckAttention(const GpuProfile& gpu) {
  const std::pair<const char*, const std::optional<Figure>*> figures[] = {
      {"gpu.attention_forward", &gpu.attention_forward},
      {"gpu.attention_backward", &gpu.attention_backward}};
  double limit = 0;
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    const auto peak = gpu.dense_peaks.find(dtype);
    if (peak != gpu.dense_peaks.end()) limit = std::max(limit, peak->second.value);
  }
  for (const auto& [key, figure] : figures) {
    if (gpu.attention_forward.has_value() != gpu.attention_backward.has_value()) {
      if (figure->has_value()) continue;
      return Contradiction{key,
                           "missing; give gpu.attention_forward and gpu.attention_backward, "
                           "or neither"};
    }
    if (!figure->has_value()) continue;
    if (!gpu.flash_attention) {
      return Contradiction{key,
                           "needs fused attention; remove it, or set "
                           "gpu.capabilities.flash_attention"};
    }
    if ((*figure)->value > limit) {
      return Contradiction{
          fmt::format("{}.value", key),
          fmt::format(
              "{} {} is more than the dense 16-bit peak of {:.4g} TFLOP/s; count the causal "
              "half of the FLOPs",
              (*figure)->written, (*figure)->unit, limit / 1e12)};
    }
  }
  return std::nullopt;
}

template <typename Row>
Found CheckMemoryRows(const GpuProfile& gpu, std::string_view key,
                      const std::optional<Measured<Row>>& table) {
  if (!table) return std::nullopt;
  for (size_t i = 0; i < table->rows.size(); ++i) {
    const double rate = table->rows[i].bytes / table->rows[i].seconds;
    if (rate > gpu.hbm_bandwidth.value * kMeasuredTolerance) {
      return TooFast(key, i, rate / kTera, "TB/s", gpu.hbm_bandwidth.value / kTera,
                     "gpu.hbm_bandwidth (cached?)");
    }
  }
  return std::nullopt;
}

Found CheckGpuTables(const GpuProfile& gpu) {
  auto peak = [&](Dtype dtype) {
    const auto found = gpu.dense_peaks.find(dtype);
    return found == gpu.dense_peaks.end() ? 0.0 : found->second.value;
  };
  if (gpu.gemm) {
    for (size_t i = 0; i < gpu.gemm->rows.size(); ++i) {
      const GemmRate& row = gpu.gemm->rows[i];
      const double limit = peak(row.dtype);
      if (limit == 0) {
        return Contradiction{fmt::format("gpu.gemm.rows.{}", i),
                             fmt::format("gpu.peaks.{0}.dense is missing; give the dense peak of "
                                         "each dtype that has rows, or remove those of {0}",
                                         DtypeName(row.dtype))};
      }
      if (row.flops_per_second > limit * kMeasuredTolerance) {
        return TooFast("gpu.gemm", i, row.flops_per_second / kTera, "TFLOP/s", limit / kTera,
                       fmt::format("the dense {} peak", DtypeName(row.dtype)));
      }
    }
  }
  if (gpu.attention) {
    if (!gpu.flash_attention) {
      return Contradiction{"gpu.attention",
                           "needs fused attention; remove it, or set "
                           "gpu.capabilities.flash_attention"};
    }
    const double limit = std::max(peak(Dtype::kBF16), peak(Dtype::kF16));
    for (size_t i = 0; i < gpu.attention->rows.size(); ++i) {
      const AttentionRate& row = gpu.attention->rows[i];
      const double rate = std::max(row.forward_flops_per_second, row.backward_flops_per_second);
      if (rate > limit * kMeasuredTolerance) {
        return TooFast("gpu.attention", i, rate / kTera, "TFLOP/s", limit / kTera,
                       "the dense 16-bit peak");
      }
    }
  }
  for (size_t i = 0; gpu.grouped && i < gpu.grouped->rows.size(); ++i) {
    const GroupedRate& row = gpu.grouped->rows[i];
    const double limit = peak(row.dtype);
    if (row.flops_per_second > limit * kMeasuredTolerance) {
      return TooFast("gpu.grouped", i, row.flops_per_second / kTera, "TFLOP/s", limit / kTera,
                     fmt::format("the dense {} peak", DtypeName(row.dtype)));
    }
  }
  if (Found found = CheckMemoryRows(gpu, "gpu.memory_kernels", gpu.memory_kernels)) return found;
  return CheckMemoryRows(gpu, "gpu.kernels", gpu.kernels);
}

Found CheckCopies(const HardwareProfile& profile) {
  constexpr double kGiga = 1e9;
  constexpr double kSlack = 1.1;
  const PcieProfile& pcie = profile.node.pcie;
  if (!pcie.copies) return std::nullopt;
  for (size_t i = 0; i < pcie.copies->rows.size(); ++i) {
    const CopyTime& row = pcie.copies->rows[i];
    const std::pair<double, const Figure*> directions[] = {
        {row.to_device_seconds, &pcie.to_device_single},
        {row.from_device_seconds, &pcie.from_device_single}};
    for (const auto& [seconds, single] : directions) {
      if (row.bytes / seconds > single->value * kSlack) {
        return TooFast("pcie.copies", i, row.bytes / seconds / kGiga, "GB/s", single->value / kGiga,
                       FigureKey(profile, *single));
      }
    }
  }
  return std::nullopt;
}

// A rank of an all-gather receives, and one of a reduce-scatter sends, (N-1)/N of the bytes at
// least, whatever the algorithm. An all-reduce sends and receives its bytes once at least where
// the switch reduces (NVLink SHARP), and no algorithm does with less.
Found CheckCollectives(const NodeProfile& node) {
  constexpr double kGiga = 1e9;
  if (!node.collectives) return std::nullopt;
  for (size_t i = 0; i < node.collectives->rows.size(); ++i) {
    const CollectiveTime& row = node.collectives->rows[i];
    if (row.world_size < 2 || row.world_size > node.gpus.value) {
      return Contradiction{fmt::format("link.collectives.rows.{}", i),
                           fmt::format("world_size {} is not allowed; use 2 to {} (gpus)",
                                       row.world_size, node.gpus.written)};
    }
    const double share =
        row.op == CollectiveOp::kAllReduce ? 1.0 : (row.world_size - 1.0) / row.world_size;
    const double rate = row.bytes * share / row.seconds;
    if (rate > node.gpu_link.value * kMeasuredTolerance) {
      return TooFast("link.collectives", i, rate / kGiga, "GB/s", node.gpu_link.value / kGiga,
                     "link.bandwidth");
    }
  }
  return std::nullopt;
}

}  // namespace

double DenseFlopsPerClock(std::string_view architecture, Dtype dtype) {
  const ArchitectureRate* rate = FindRate(architecture);
  if (rate == nullptr) return 0;
  return DensePerClock(*rate, dtype);
}

int ComputeCapability(std::string_view architecture) {
  const ArchitectureRate* rate = FindRate(architecture);
  return rate == nullptr ? 0 : rate->compute_capability;
}

Found FindContradiction(const HardwareProfile& profile) {
  const GpuProfile& gpu = profile.gpu;
  if (auto found = CheckPeaks(gpu)) return found;
  if (auto found = CheckLeast(gpu)) return found;
  if (auto found = CheckCapabilities(gpu)) return found;
  // "141 GB" on a data sheet may be GB or GiB, so allow the 7 % between them.
  if (auto found = Order(profile, gpu.usable_memory, gpu.memory, 1.075)) return found;
  if (gpu.copy_bandwidth) {
    if (auto found = Order(profile, *gpu.copy_bandwidth, gpu.hbm_bandwidth)) return found;
  }
  if (gpu.power) {
    if (auto found = Order(profile, gpu.power->base, gpu.power->limit)) return found;
  }
  if (auto found = CheckAttention(gpu)) return found;
  if (auto found = CheckGpuTables(gpu)) return found;
  if (auto found = CheckPcie(profile)) return found;
  if (auto found = CheckCopies(profile)) return found;
  return CheckCollectives(profile.node);
}

}  // namespace zeroplan
