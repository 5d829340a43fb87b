// What a choice takes of each kind of memory, and whether machines have it. A Footprint is a plain
// value: it is filled from a step program here, and may be filled by a model of another runtime.
// Whoever asks whether something fits asks Check.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/program/program.h"
#include "cost_models/memory_walk.h"
#include "planner/cluster.h"

namespace zeroplan {

// Bytes on one host: all its ranks together.
struct HostBytes {
  uint64_t pinned = 0;
  uint64_t pageable = 0;

  uint64_t total() const { return pinned + pageable; }
  bool operator==(const HostBytes&) const = default;
};

// What decides whether a choice fits: bytes of one GPU with runtime, of one host with all its
// ranks, of one node's disks.
struct MemoryTotals {
  uint64_t gpu_bytes = 0;
  uint64_t host_bytes = 0;
  uint64_t nvme_bytes = 0;
};

struct Footprint {
  // One GPU, by MemoryClass, at the instant when most is live; gaps of placement count as buffers.
  std::array<uint64_t, kMemoryClasses> gpu_class_bytes{};
  uint64_t runtime_bytes =
      0;  // one GPU, outside the arenas: context, communicators, libraries, CUDA graphs
  HostBytes host;
  uint64_t nvme_bytes = 0;  // one node

  uint64_t gpu_arena_bytes() const;  // the classes together
  uint64_t gpu_total() const { return gpu_arena_bytes() + runtime_bytes; }
  MemoryTotals totals() const { return {gpu_total(), host.total(), nvme_bytes}; }
  bool operator==(const Footprint&) const = default;
};

// What `program` takes on `cluster`, whose runtime_bytes and ranks of a node count.
Footprint FootprintOf(const Program& program, const Cluster& cluster);
// The same where WalkMemory has been called.
Footprint FootprintOf(const MemoryReport& memory, const Cluster& cluster);
// A footprint's run with each rank on the CPU backend: what a GPU's arena would hold is host
// memory.
Footprint OnCpuBackend(Footprint footprint, int ranks_per_node);
// The totals alone, without a walk: `rank_bytes` are one rank's, by Space.
MemoryTotals TotalsOf(const std::array<uint64_t, kSpaces>& rank_bytes, const OutsideArenas& outside,
                      const Cluster& cluster);

// What one GPU has outside the arenas.
uint64_t RuntimeBytes(const Cluster& cluster, const OutsideArenas& outside);

// Bytes of one GPU under their fixed names: the MemoryClasses, then "runtime". They sum to the
// total.
struct NamedBytes {
  std::string_view name;
  uint64_t bytes = 0;
};
inline constexpr size_t kGpuClasses = kMemoryClasses + 1;
std::array<NamedBytes, kGpuClasses> GpuClasses(const Footprint& footprint);

// Kept free of each GPU unless --gpu-reserve says otherwise. Runs on H200s used up to 0.3 % more
// than was predicted (docs/performance.md); this is more than that of any built-in GPU. A number,
// not a share, so that "from N bytes a GPU on" holds for the GPU that has N.
inline constexpr uint64_t kGpuReserveBytes = 500'000'000;
// Kept free of a host with `host_bytes` for its system, unless --host-reserve says otherwise: what
// Google Kubernetes Engine keeps of a node (cloud.google.com/kubernetes-engine/docs/concepts/
// plan-node-sizes): 25 % of the first 4 GiB, 20 % of the next 4, 10 % of the next 8, 6 % of the
// next 112 and 2 % of the rest, and 100 MiB. Rounded up to 0.1 GB.
uint64_t HostReserveBytes(uint64_t host_bytes);

// What machines have for a run. Unset: not known, not checked.
struct Capacity {
  std::optional<uint64_t> gpu_bytes;   // of one GPU
  std::optional<uint64_t> host_bytes;  // of one host
  std::optional<uint64_t> nvme_bytes;  // of one node
};
// What `cluster` has, without its reserves.
Capacity CapacityOf(const Cluster& cluster);

enum class MemoryKind : uint8_t { kGpu, kHost, kNvme };
std::string_view MemoryKindName(MemoryKind kind);  // "GPU memory", "host memory", "NVMe"

// One memory of which more is needed than there is.
struct Shortage {
  MemoryKind kind = MemoryKind::kGpu;
  uint64_t needs = 0, has = 0;  // `has` is what a run may take
  // The part that takes most of it: one of GpuClasses, "pinned" or "pageable", or "nvme".
  NamedBytes largest;

  uint64_t short_by() const { return needs - has; }
};
// Every memory that is short, in the order of MemoryKind. Empty: it fits. Exactly full fits.
std::vector<Shortage> Check(const Footprint& footprint, const Capacity& capacity);

// Whether Check finds nothing short; searches ask it of every candidate.
inline bool Fits(const MemoryTotals& needs, const Capacity& capacity) {
  const auto enough = [](uint64_t need, const std::optional<uint64_t>& has) {
    return !has || need <= *has;
  };
  return enough(needs.gpu_bytes, capacity.gpu_bytes) &&
         enough(needs.host_bytes, capacity.host_bytes) &&
         enough(needs.nvme_bytes, capacity.nvme_bytes);
}
// The factor by which the scarcest memory is exceeded: above 1 exactly where it does not fit.
double Excess(const MemoryTotals& needs, const Capacity& capacity);

// Why `footprint` does not fit `cluster`: one clause a memory, joined by "; and ". Empty if it
// fits.
std::string ExplainMisfit(const Footprint& footprint, const Cluster& cluster);

}  // namespace zeroplan
