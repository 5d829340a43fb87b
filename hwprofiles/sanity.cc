#include "hwprofiles/sanity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace zeroplan {
namespace {

// Dense 16-bit matrix FLOP per SM and clock, and plain fp32 FLOP per SM and clock. Source: NVIDIA's
// architecture whitepapers (V100, A100, GA102, Ada, H100, Blackwell).
struct ArchitectureRate {
  std::string_view name;
  double matrix16;
  double fp32;
};
constexpr ArchitectureRate kRates[] = {
    {"volta", 1024, 128},        {"turing", 1024, 128}, {"ampere", 2048, 128},
    {"ampere-ga10x", 1024, 256}, {"ada", 1024, 256},    {"hopper", 4096, 256},
    {"blackwell", 8192, 256},
};
// Sparse figures are twice the dense ones: anything past this much over the rate is one of those.
constexpr double kTolerance = 1.15;

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
    const double per_clock = dtype == Dtype::kF32 ? rate->fp32 : rate->matrix16;
    const double limit = per_clock * gpu.sm_count.value * gpu.max_sm_clock.value;
    if (peak.value > limit * kTolerance) {
      return Contradiction{
          fmt::format("gpu.peaks.{}.dense.value", DtypeName(dtype)),
          fmt::format("{} {} is more than the {:.0f} TFLOP/s that {:.0f} {} SMs can do dense at "
                      "{:.0f} MHz; this looks like the sparse peak: give half of it",
                      peak.written, peak.unit, limit / 1e12, gpu.sm_count.value, gpu.architecture,
                      gpu.max_sm_clock.value / 1e6)};
    }
    const auto measured = gpu.reachable_peaks.find(dtype);
    if (measured != gpu.reachable_peaks.end() && measured->second.value > peak.value) {
      return Contradiction{
          fmt::format("gpu.peaks.{}.measured.value", DtypeName(dtype)),
          fmt::format("{} {} is more than the dense peak of {} {}; measure again",
                      measured->second.written, measured->second.unit, peak.written, peak.unit)};
    }
  }
  return std::nullopt;
}

Found CheckCapabilities(const GpuProfile& gpu) {
  if (!gpu.bf16 && !gpu.fp16) {
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

// `larger` must be at least `smaller`.
Found Order(const Figure& smaller, std::string_view smaller_key, const Figure& larger,
            std::string_view larger_key, double tolerance = 1.0) {
  if (smaller.value <= larger.value * tolerance) return std::nullopt;
  return Contradiction{
      fmt::format("{}.value", smaller_key),
      fmt::format("{} {} is more than {} ({} {}); correct one of them", smaller.written,
                  smaller.unit, larger_key, larger.written, larger.unit)};
}

Found CheckPcie(const PcieProfile& pcie) {
  // Both ways at once carries at least nearly what one way does (a little is lost to turnaround).
  constexpr double kSlack = 1.1;
  if (auto found = Order(pcie.to_device_single, "node.pcie.to_device_single", pcie.both_single,
                         "node.pcie.both_single", kSlack)) {
    return found;
  }
  if (auto found = Order(pcie.from_device_single, "node.pcie.from_device_single", pcie.both_single,
                         "node.pcie.both_single", kSlack)) {
    return found;
  }
  if (pcie.to_device_all) {
    if (auto found = Order(pcie.to_device_single, "node.pcie.to_device_single", *pcie.to_device_all,
                           "node.pcie.to_device_all", kSlack)) {
      return found;
    }
  }
  if (pcie.from_device_all) {
    return Order(pcie.from_device_single, "node.pcie.from_device_single", *pcie.from_device_all,
                 "node.pcie.from_device_all", kSlack);
  }
  return std::nullopt;
}

}  // namespace

Found FindContradiction(const HardwareProfile& profile) {
  const GpuProfile& gpu = profile.gpu;
  if (auto found = CheckPeaks(gpu)) return found;
  if (auto found = CheckCapabilities(gpu)) return found;
  // "141 GB" on a data sheet may be GB or GiB, so allow the 7 % between them.
  if (auto found = Order(gpu.usable_memory, "gpu.usable_memory", gpu.memory, "gpu.memory", 1.075)) {
    return found;
  }
  if (gpu.copy_bandwidth) {
    if (auto found = Order(*gpu.copy_bandwidth, "gpu.copy_bandwidth", gpu.hbm_bandwidth,
                           "gpu.hbm_bandwidth")) {
      return found;
    }
  }
  return CheckPcie(profile.node.pcie);
}

}  // namespace zeroplan
