#include "planner/footprint.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/base/units.h"

namespace zeroplan {
namespace {

// Calls f(kind, needs, has) for each memory whose capacity is known.
template <typename F>
void ForEachMemory(const MemoryTotals& needs, const Capacity& capacity, F f) {
  if (capacity.gpu_bytes) f(MemoryKind::kGpu, needs.gpu_bytes, *capacity.gpu_bytes);
  if (capacity.host_bytes) f(MemoryKind::kHost, needs.host_bytes, *capacity.host_bytes);
  if (capacity.pinned_bytes) f(MemoryKind::kPinned, needs.pinned_bytes, *capacity.pinned_bytes);
  if (capacity.nvme_bytes) f(MemoryKind::kNvme, needs.nvme_bytes, *capacity.nvme_bytes);
}

NamedBytes Largest(MemoryKind kind, const Footprint& footprint) {
  switch (kind) {
    case MemoryKind::kGpu: {
      const auto classes = GpuClasses(footprint);
      return *std::max_element(
          classes.begin(), classes.end(),
          [](const NamedBytes& a, const NamedBytes& b) { return a.bytes < b.bytes; });
    }
    case MemoryKind::kHost:
      if (footprint.host.pinned > footprint.host.pageable) return {"pinned", footprint.host.pinned};
      return {"pageable", footprint.host.pageable};
    case MemoryKind::kPinned:
      return {"pinned", footprint.host.pinned};
    case MemoryKind::kNvme:
      return {"nvme", footprint.nvme_bytes};
  }
  return {};
}

// " (32.0 GB less 500 MB kept free)".
std::string ReserveText(MemoryKind kind, const Cluster& cluster) {
  uint64_t all = 0, reserve = 0;
  switch (kind) {
    case MemoryKind::kGpu:
      all = cluster.gpu_capacity_bytes;
      reserve = cluster.gpu_reserve_bytes;
      break;
    case MemoryKind::kHost:
      all = cluster.host_capacity_bytes.value_or(0);
      reserve = cluster.host_reserve_bytes;
      break;
    case MemoryKind::kPinned:
    case MemoryKind::kNvme:
      break;
  }
  if (reserve == 0) return "";
  return fmt::format(" ({} less {} kept free)", FormatBytes(all), FormatBytes(reserve));
}

std::string ShortageText(const Shortage& shortage, const Footprint& footprint,
                         const Cluster& cluster) {
  const int ranks = cluster.ranks_per_node();
  const std::string of_ranks = fmt::format("for {} GPU{} a node", ranks, ranks == 1 ? "" : "s");
  std::string detail;
  switch (shortage.kind) {
    case MemoryKind::kGpu:
      detail =
          fmt::format("largest: {} {}", shortage.largest.name, FormatBytes(shortage.largest.bytes));
      break;
    case MemoryKind::kHost:
      detail = fmt::format("{} pinned, {} pageable, {}", FormatBytes(footprint.host.pinned),
                           FormatBytes(footprint.host.pageable), of_ranks);
      break;
    case MemoryKind::kPinned:
      detail =
          of_ranks + "; ⟦pin_memory⟧ off, pin_memory false in a config, leaves states pageable";
      break;
    case MemoryKind::kNvme:
      detail = of_ranks;
  }
  return fmt::format("{} short by {}: needs {}, has {}{}; {}", MemoryKindName(shortage.kind),
                     FormatBytes(shortage.short_by()), FormatBytes(shortage.needs),
                     FormatBytes(shortage.has), ReserveText(shortage.kind, cluster), detail);
}

}  // namespace

uint64_t Footprint::gpu_arena_bytes() const {
  uint64_t sum = 0;
  for (const uint64_t bytes : gpu_class_bytes) sum += bytes;
  return sum;
}

Footprint FootprintOf(const MemoryReport& memory, const Cluster& cluster) {
  const auto ranks = static_cast<uint64_t>(cluster.ranks_per_node());
  const auto of_node = [&](Space space) {
    return CheckedMul(memory.arena(space), ranks, "memory of a node's ranks");
  };
  Footprint footprint;
  footprint.gpu_class_bytes = memory.class_bytes;
  footprint.runtime_bytes = RuntimeBytes(cluster, memory.outside);
  footprint.host = {of_node(Space::kPinned), of_node(Space::kPageable)};
  footprint.nvme_bytes = of_node(Space::kFile);
  return footprint;
}

Footprint FootprintOf(const Program& program, const Cluster& cluster) {
  return FootprintOf(WalkMemory(program), cluster);
}

Footprint FootprintOf(const TorchFootprint& torch, int ranks_per_node) {
  const TorchPeak& peak = torch.peak(torch.DecidingPhase());
  const auto of = [&peak](TorchClass kind) { return peak.class_bytes[static_cast<size_t>(kind)]; };
  const auto ranks = static_cast<uint64_t>(ranks_per_node);
  Footprint footprint;
  const auto set = [&footprint](MemoryClass kind, uint64_t bytes) {
    footprint.gpu_class_bytes[static_cast<size_t>(kind)] = bytes;
  };
  set(MemoryClass::kParams, of(TorchClass::kParams));
  set(MemoryClass::kGrads, of(TorchClass::kGrads));
  set(MemoryClass::kOptimizer, of(TorchClass::kOptimizer));
  set(MemoryClass::kActivations, of(TorchClass::kActivations) + of(TorchClass::kLogits));
  set(MemoryClass::kBuffers, of(TorchClass::kBuffers) + peak.reserved_bytes - peak.allocated_bytes);
  footprint.runtime_bytes = torch.context_bytes;
  footprint.host = {torch.host.pinned_bytes * ranks,
                    (torch.host.pageable_bytes + torch.host_base_bytes) * ranks};
  footprint.nvme_bytes = torch.file_bytes * ranks;
  footprint.torch = torch;
  return footprint;
}

Footprint OnCpuBackend(Footprint footprint, int ranks_per_node) {
  constexpr const char* kWhat = "memory of a node's ranks";
  const uint64_t arenas =
      CheckedMul(footprint.gpu_arena_bytes(), static_cast<uint64_t>(ranks_per_node), kWhat);
  footprint.host.pageable = CheckedAdd(footprint.host.pageable, arenas, kWhat);
  footprint.gpu_class_bytes = {};
  footprint.runtime_bytes = 0;
  return footprint;
}

uint64_t RuntimeBytes(const Cluster& cluster, const OutsideArenas& outside) {
  uint64_t bytes = cluster.runtime_bytes;
  if (cluster.gpus > 1) {
    const int more = outside.Communicators(cluster.shape()) - kProfiledCommunicators;
    const uint64_t difference = static_cast<uint64_t>(std::abs(more)) * cluster.communicator_bytes;
    bytes = more >= 0 ? bytes + difference : bytes - std::min(bytes, difference);
  }
  return bytes + outside.graph_bytes;
}

MemoryTotals TotalsOf(const std::array<uint64_t, kSpaces>& rank_bytes, const OutsideArenas& outside,
                      const Cluster& cluster) {
  MemoryReport memory;
  memory.outside = outside;
  memory.arena_bytes = rank_bytes;
  // Which class they are of does not change a total.
  memory.class_bytes[static_cast<size_t>(MemoryClass::kBuffers)] = memory.arena(Space::kDevice);
  return FootprintOf(memory, cluster).totals();
}

std::array<NamedBytes, kGpuClasses> GpuClasses(const Footprint& footprint) {
  std::array<NamedBytes, kGpuClasses> classes;
  for (size_t c = 0; c < kMemoryClasses; ++c) {
    classes[c] = {MemoryClassName(static_cast<MemoryClass>(c)), footprint.gpu_class_bytes[c]};
  }
  classes.back() = {"runtime", footprint.runtime_bytes};
  return classes;
}

uint64_t HostReserveBytes(uint64_t host_bytes) {
  constexpr double kGib = 1024.0 * 1024 * 1024, kMib = 1024.0 * 1024;
  const struct {
    double up_to, share;
  } brackets[] = {{4 * kGib, 0.25},
                  {8 * kGib, 0.2},
                  {16 * kGib, 0.1},
                  {128 * kGib, 0.06},
                  {std::numeric_limits<double>::infinity(), 0.02}};
  const auto all = static_cast<double>(host_bytes);
  double reserve = 100 * kMib, begin = 0;
  for (const auto& bracket : brackets) {
    reserve += bracket.share * std::max(0.0, std::min(all, bracket.up_to) - begin);
    begin = bracket.up_to;
  }
  constexpr double kStep = 1e8;
  return static_cast<uint64_t>(std::ceil(reserve / kStep) * kStep);
}

Capacity CapacityOf(const Cluster& cluster) {
  const auto without = [](uint64_t all, uint64_t reserve) { return all - std::min(all, reserve); };
  Capacity capacity;
  capacity.gpu_bytes = without(cluster.gpu_capacity_bytes, cluster.gpu_reserve_bytes);
  if (cluster.host_capacity_bytes) {
    capacity.host_bytes = without(*cluster.host_capacity_bytes, cluster.host_reserve_bytes);
  }
  capacity.pinned_bytes = cluster.pinned_limit_bytes;
  capacity.nvme_bytes = cluster.nvme_capacity_bytes;
  return capacity;
}

std::string_view MemoryKindName(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kGpu:
      return "GPU memory";
    case MemoryKind::kHost:
      return "host memory";
    case MemoryKind::kPinned:
      return "pinned host memory";
    case MemoryKind::kNvme:
      return "NVMe";
  }
  return "?";
}

std::vector<Shortage> Check(const Footprint& footprint, const Capacity& capacity) {
  std::vector<Shortage> shortages;
  ForEachMemory(footprint.totals(), capacity, [&](MemoryKind kind, uint64_t needs, uint64_t has) {
    if (needs > has) shortages.push_back({kind, needs, has, Largest(kind, footprint)});
  });
  return shortages;
}

double Excess(const MemoryTotals& needs, const Capacity& capacity) {
  double excess = 0;
  ForEachMemory(needs, capacity, [&](MemoryKind, uint64_t need, uint64_t has) {
    const double share =
        static_cast<double>(need) / static_cast<double>(std::max<uint64_t>(has, 1));
    // Exact around 1, where a double may round.
    excess = std::max(
        excess, need <= has ? std::min(1.0, share) : std::max(std::nextafter(1.0, 2.0), share));
  });
  return excess;
}

std::string ExplainMisfit(const Footprint& footprint, const Cluster& cluster) {
  std::string why;
  for (const Shortage& shortage : Check(footprint, CapacityOf(cluster))) {
    if (!why.empty()) why += "; and ";
    why += ShortageText(shortage, footprint, cluster);
  }
  return why;
}

std::string_view TorchClassName(TorchClass kind) {
  switch (kind) {
    case TorchClass::kParams:
      return "params";
    case TorchClass::kGrads:
      return "grads";
    case TorchClass::kOptimizer:
      return "optimizer";
    case TorchClass::kActivations:
      return "activations";
    case TorchClass::kLogits:
      return "logits";
    case TorchClass::kBuffers:
      return "buffers";
  }
  return "";
}

std::string_view TorchPhaseName(TorchPhase phase) {
  switch (phase) {
    case TorchPhase::kInit:
      return "init";
    case TorchPhase::kForwardBackward:
      return "forward_backward";
    case TorchPhase::kStep:
      return "step";
  }
  return "";
}

std::string_view AroundPhaseName(AroundPhase phase) {
  switch (phase) {
    case AroundPhase::kLoading:
      return "loading";
    case AroundPhase::kEvaluation:
      return "evaluation";
    case AroundPhase::kSaving:
      return "saving";
    case AroundPhase::kResuming:
      return "resuming";
    case AroundPhase::kGathering:
      return "gathering";
  }
  ZEROPLAN_CHECK(false);
}

TorchPhase TorchFootprint::DecidingPhase() const {
  const auto largest = std::max_element(
      peaks.begin(), peaks.end(),
      [](const TorchPeak& a, const TorchPeak& b) { return a.reserved_bytes < b.reserved_bytes; });
  return static_cast<TorchPhase>(largest - peaks.begin());
}

uint64_t TorchFootprint::TensorBytes() const {
  uint64_t most = 0;
  for (const TorchPeak& peak : peaks) most = std::max(most, peak.allocated_bytes);
  return most;
}

uint64_t TorchFootprint::StepAllocatedBytes() const {
  return std::max(peaks[static_cast<size_t>(TorchPhase::kForwardBackward)].allocated_bytes,
                  peaks[static_cast<size_t>(TorchPhase::kStep)].allocated_bytes);
}

uint64_t TorchFootprint::StepReservedBytes() const {
  return std::max(peaks[static_cast<size_t>(TorchPhase::kForwardBackward)].reserved_bytes,
                  peaks[static_cast<size_t>(TorchPhase::kStep)].reserved_bytes);
}

uint64_t TorchFootprint::ReservedBytes() const {
  return peaks[static_cast<size_t>(DecidingPhase())].reserved_bytes;
}

}  // namespace zeroplan
