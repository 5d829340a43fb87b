#include "hwprofiles/unequal.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/base/error.h"
#include "core/base/units.h"
#include "hwprofiles/sanity.h"

namespace zeroplan {
namespace {

void TakeLess(Figure& figure, const Figure& other) {
  if (other.value < figure.value) figure = other;
}
void TakeLess(std::optional<Figure>& figure, const std::optional<Figure>& other) {
  if (!figure || (other && other->value < figure->value)) figure = other;
}

// What large products reach in `dtype`, else the peak; 0: the GPU has none.
double ProductRate(const GpuProfile& gpu, Dtype dtype) {
  for (const auto* peaks : {&gpu.reachable_peaks, &gpu.dense_peaks}) {
    if (const auto at = peaks->find(dtype); at != peaks->end()) return at->second.value;
  }
  return 0;
}

// The dtype of 16 bits that all have.
Dtype CommonDtype(const std::vector<GpuKind>& kinds) {
  const bool all =
      std::all_of(kinds.begin(), kinds.end(), [](const GpuKind& kind) { return kind.gpu.bf16; });
  return all ? Dtype::kBF16 : Dtype::kF16;
}

void TakeSlower(GpuProfile& gpu, const GpuProfile& other) {
  TakeLess(gpu.memory, other.memory);
  TakeLess(gpu.usable_memory, other.usable_memory);
  if (other.hbm_bandwidth.value < gpu.hbm_bandwidth.value) {
    gpu.hbm_bandwidth = other.hbm_bandwidth;
    gpu.copy_bandwidth = other.copy_bandwidth;
    gpu.memory_kernels = other.memory_kernels;
    gpu.kernels = other.kernels;
  }
  const auto lacks = [&](const auto& peak) { return !other.dense_peaks.contains(peak.first); };
  std::erase_if(gpu.dense_peaks, lacks);
  std::erase_if(gpu.reachable_peaks, lacks);
  for (auto& [dtype, peak] : gpu.dense_peaks) TakeLess(peak, other.dense_peaks.at(dtype));
  for (auto& [dtype, peak] : gpu.reachable_peaks) {
    const auto at = other.reachable_peaks.find(dtype);
    TakeLess(peak, at != other.reachable_peaks.end() ? at->second : other.dense_peaks.at(dtype));
  }
  TakeLess(gpu.attention_forward, other.attention_forward);
  TakeLess(gpu.attention_backward, other.attention_backward);
  if (other.launch_overhead.value > gpu.launch_overhead.value) {
    gpu.launch_overhead = other.launch_overhead;
  }
  if (ComputeCapability(other.architecture) < ComputeCapability(gpu.architecture)) {
    gpu.architecture = other.architecture;
  }
  gpu.bf16 = gpu.bf16 && other.bf16;
  gpu.fp16 = gpu.fp16 && other.fp16;
  gpu.flash_attention = gpu.flash_attention && other.flash_attention;
}

std::string KindText(const GpuKind& kind) {
  return fmt::format("{:.0f} x {}", kind.gpus.value, kind.gpu.name);
}

}  // namespace

void AddTo(GpuCounts& counts, const std::string& name, int count) {
  for (auto& [known, of_known] : counts) {
    if (known != name) continue;
    of_known += count;
    return;
  }
  counts.emplace_back(name, count);
}

std::string KindsText(const HardwareProfile& profile) {
  std::vector<std::string> texts;
  for (const GpuKind& kind : profile.kinds) texts.push_back(KindText(kind));
  return fmt::format("{}", fmt::join(texts, ", "));
}

void TakeSlowest(HardwareProfile& profile) {
  const std::vector<GpuKind>& kinds = profile.kinds;
  ZEROPLAN_CHECK(kinds.size() > 1);
  const Dtype dtype = CommonDtype(kinds);
  const auto speed = [&](const GpuKind& kind) {
    return std::tuple(ProductRate(kind.gpu, dtype), kind.gpu.hbm_bandwidth.value,
                      kind.gpu.memory.value);
  };
  const auto slowest =
      std::min_element(kinds.begin(), kinds.end(),
                       [&](const GpuKind& a, const GpuKind& b) { return speed(a) < speed(b); });
  GpuProfile gpu = slowest->gpu;
  double watts = 0;
  bool all_say = true;
  for (const GpuKind& kind : kinds) {
    TakeSlower(gpu, kind.gpu);
    all_say = all_say && kind.gpu.board_power;
    if (all_say) watts += kind.gpus.value * kind.gpu.board_power->value;
  }
  gpu.name = fmt::format("{} (slowest of {} kinds)", slowest->gpu.name, kinds.size());
  gpu.board_power.reset();
  if (all_say) {
    Figure mean = *slowest->gpu.board_power;
    mean.value = mean.written = watts / profile.node.gpus.value;
    mean.unit = "W";
    mean.source = FigureSource::kDerived;
    mean.reference = fmt::format("mean of {}", KindsText(profile));
    gpu.board_power = std::move(mean);
  }
  profile.gpu = std::move(gpu);
}

std::string UnequalNote(const HardwareProfile& profile) {
  if (profile.kinds.empty()) return "";
  const GpuProfile& all = profile.gpu;
  const Dtype dtype = CommonDtype(profile.kinds);
  const double rate = ProductRate(all, dtype), gpus = profile.node.gpus.value;
  const auto size = [](double bytes) { return FormatBytes(static_cast<uint64_t>(bytes)); };
  std::string text = fmt::format(
      "Unequal GPUs: {}. Ranks run in step and hold equal shards, so each is planned as the "
      "slowest and smallest are: {:.3g} TFLOP/s of products in {}, {:.4g} GB/s, {}.",
      KindsText(profile), rate / 1e12, DtypeName(dtype), all.hbm_bandwidth.value / 1e9,
      size(all.usable_memory.value));
  for (const GpuKind& kind : profile.kinds) {
    std::vector<std::string> faster, lost;
    const auto add = [&](double own, double planned, const char* what) {
      const double times = std::floor(100 * own / planned) / 100;
      if (times > 1) faster.push_back(fmt::format("{:.2f} times the {}", times, what));
    };
    add(ProductRate(kind.gpu, dtype), rate, "products");
    add(kind.gpu.hbm_bandwidth.value, all.hbm_bandwidth.value, "memory bandwidth");
    const double free = kind.gpu.usable_memory.value - all.usable_memory.value;
    if (!faster.empty()) {
      lost.push_back(fmt::format("has {}, and waits", fmt::join(faster, " and ")));
    }
    if (free >= 1e9) lost.push_back(fmt::format("leaves {} of its memory free", size(free)));
    if (lost.empty()) continue;
    text += fmt::format(" {} {}.", kind.gpu.name, fmt::join(lost, "; it "));
    const double own = kind.gpus.value * ProductRate(kind.gpu, dtype) / (gpus * rate);
    if (own < 1) continue;
    text += fmt::format(
        " By products alone {} would be {:.2f} times as fast as all {:.0f}; ⟦hw⟧ with these alone "
        "plans that.",
        KindText(kind), std::floor(100 * own) / 100, gpus);
  }
  return text;
}

}  // namespace zeroplan
