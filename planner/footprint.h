// A choice's bytes in each kind of memory, and the check whether machines have them. A Footprint is
// a plain value, filled from a step program or by a model of another runtime. Check decides whether
// something fits.
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

// The bytes that decide whether a choice fits: of one GPU with runtime, of one host with all its
// ranks, of one node's disks, and the page-locked part of the host's bytes.
struct MemoryTotals {
  uint64_t gpu_bytes = 0;
  uint64_t host_bytes = 0;
  uint64_t nvme_bytes = 0;
  uint64_t pinned_bytes = 0;
};

// The purpose of tensors on a GPU.
enum class TorchClass : uint8_t {
  kParams,       // parameters in the compute dtype, whole or sharded, and gathered ones
  kGrads,        // gradients, their sums and shards
  kOptimizer,    // master parameters and the optimizer's states, and gradients cast for them
  kActivations,  // tensors saved for backward, and temporaries within an operation
  kLogits,       // logits, their copies, the loss, and the gradients of logits and loss
  kBuffers,      // buckets of collectives, staging, libraries' workspaces
};
inline constexpr size_t kTorchClasses = 6;
std::string_view TorchClassName(TorchClass kind);

enum class TorchPhase : uint8_t { kInit, kForwardBackward, kStep };
inline constexpr size_t kTorchPhases = 3;
std::string_view TorchPhaseName(TorchPhase phase);  // "init", "forward_backward", "step"

// One GPU's peak in one phase, bytes.
struct TorchPeak {
  uint64_t allocated_bytes = 0;
  std::array<uint64_t, kTorchClasses> class_bytes{};  // at the peak; they sum to allocated_bytes
  uint64_t reserved_bytes = 0;
  bool operator==(const TorchPeak&) const = default;
};

// One process's memory on its host, bytes, without Python and its libraries.
struct HostPeak {
  uint64_t pinned_bytes = 0, pageable_bytes = 0;
  uint64_t total() const { return pinned_bytes + pageable_bytes; }
  bool operator==(const HostPeak&) const = default;
};

// A phase around the steps of transformers' Trainer, or of DeepSpeed's engine. kGathering: a script
// gathers the whole model, to generate text or to have its state dict.
enum class AroundPhase : uint8_t { kLoading, kEvaluation, kSaving, kResuming, kGathering };
std::string_view AroundPhaseName(AroundPhase phase);  // "loading", "evaluation", ...

struct AroundBytes {
  uint64_t gpu = 0;  // a GPU's: tensors, and memory outside the allocator
  // Host memory of a process: rank 0's, and any other's; includes Python, excludes mapped files.
  uint64_t rank_0_host = 0, other_host = 0;

  // Bytes on the node of rank 0.
  uint64_t NodeHost(int ranks_per_node) const {
    return rank_0_host + static_cast<uint64_t>(ranks_per_node - 1) * other_host;
  }
  bool operator==(const AroundBytes&) const = default;
};

// The peak of such a phase (planner/runtimes/torch_phases.h).
struct AroundPeak {
  AroundPhase phase = AroundPhase::kLoading;
  AroundBytes bytes;
  std::string why;      // "rank 0 gathers all 16-bit weights"
  std::string setting;  // the setting that decides, as used; "": there is none
  std::string instead;  // another value of it, and its memory; "": none
  AroundBytes instead_bytes;
  // The other value changes no number of the run: it is taken where this one does not fit.
  bool takes_instead = false;
  // If machines were given: "saving: host memory: ..."; "": it fits. `instead_fits`: whether the
  // other value would fit.
  std::string why_not;
  bool instead_fits = false;
  bool operator==(const AroundPeak&) const = default;
};

// The memory of a PyTorch process, whose allocator reserves more than its tensors need.
struct TorchFootprint {
  std::array<TorchPeak, kTorchPhases> peaks{};
  uint64_t after_init_bytes = 0;  // allocated once the engine is made
  // CUDA context, NCCL and libraries' memory outside the allocator.
  uint64_t context_bytes = 0;
  // Memory of one process when its resident set is largest. `host_base_bytes`: Python with its
  // libraries.
  HostPeak host;
  uint64_t host_base_bytes = 0;
  // One process's files on a disk; and bytes that the driver moves to the host when the GPU
  // is short of memory (cudaMallocManaged), which no other member includes.
  uint64_t file_bytes = 0, managed_bytes = 0;
  // Bytes that a step copies between GPU and host, both directions, without managed memory.
  uint64_t copied_bytes = 0;
  // The phase in which the allocator could not stay within its limit, if any.
  std::optional<TorchPhase> out_of_memory;
  // Segments that an allocator under a limit returns to the driver and requests again in a step, in
  // the steady state.
  uint64_t segments_given_back = 0;
  // By AroundPhase; empty if unknown.
  std::vector<AroundPeak> around;
  // Gathers of the whole model that scripts may ask for (kGathering). Most runs have none, so that
  // these are not among `around`.
  std::vector<AroundPeak> gathers;
  // The model is one that zeroplan plans for other programs alone, in all parameters or with
  // adapters: the runtime's runs were not of such.
  bool of_planned_model = false, of_planned_adapters = false;

  // The phase with the largest reserved memory, the first among equals.
  TorchPhase DecidingPhase() const;
  const TorchPeak& peak(TorchPhase phase) const { return peaks[static_cast<size_t>(phase)]; }
  uint64_t TensorBytes() const;  // peak of allocated bytes
  // Peak of the steps, without initialisation.
  uint64_t StepAllocatedBytes() const;
  uint64_t StepReservedBytes() const;
  uint64_t ReservedBytes() const;  // peak of reserved bytes, initialisation included
  uint64_t DeviceBytes() const { return ReservedBytes() + context_bytes; }
  uint64_t HostBytes() const { return host.total() + host_base_bytes; }
  bool operator==(const TorchFootprint&) const = default;
};

struct Footprint {
  // One GPU's bytes by MemoryClass, at the instant when most is live; gaps of placement count as
  // buffers.
  std::array<uint64_t, kMemoryClasses> gpu_class_bytes{};
  uint64_t runtime_bytes =
      0;  // one GPU, outside the arenas: context, communicators, libraries, CUDA graphs
  HostBytes host;
  uint64_t nvme_bytes = 0;  // one node
  // Bytes that an allocator would keep in addition, if there were more memory; no other member
  // includes them. Above 0: it returns cached memory while it runs.
  uint64_t gpu_spare_bytes = 0;
  // Set for a PyTorch process, which the classes summarise: those of its deciding phase, logits as
  // activations, and the reserved bytes beyond the tensors as buffers.
  std::optional<TorchFootprint> torch;

  uint64_t gpu_arena_bytes() const;  // sum of the classes
  uint64_t gpu_total() const { return gpu_arena_bytes() + runtime_bytes; }
  MemoryTotals totals() const { return {gpu_total(), host.total(), nvme_bytes, host.pinned}; }
  bool operator==(const Footprint&) const = default;
};

// The footprint of `program` on `cluster`; uses the cluster's runtime_bytes and ranks of a node.
Footprint FootprintOf(const Program& program, const Cluster& cluster);
// The same for callers that have WalkMemory's report.
Footprint FootprintOf(const MemoryReport& memory, const Cluster& cluster);
// The footprint of PyTorch processes, `ranks_per_node` on a host.
Footprint FootprintOf(const TorchFootprint& torch, int ranks_per_node);
// The footprint of the same run on the CPU backend: a GPU's arena becomes host memory.
Footprint OnCpuBackend(Footprint footprint, int ranks_per_node);
// The totals alone, without a walk: `rank_bytes` are one rank's, by Space.
MemoryTotals TotalsOf(const std::array<uint64_t, kSpaces>& rank_bytes, const OutsideArenas& outside,
                      const Cluster& cluster);

// Bytes of one GPU outside the arenas.
uint64_t RuntimeBytes(const Cluster& cluster, const OutsideArenas& outside);

// Bytes of one GPU by name: the MemoryClasses, then "runtime". They sum to the total.
struct NamedBytes {
  std::string_view name;
  uint64_t bytes = 0;
};
inline constexpr size_t kGpuClasses = kMemoryClasses + 1;
std::array<NamedBytes, kGpuClasses> GpuClasses(const Footprint& footprint);

// Default of --gpu-reserve, kept free on each GPU. Runs on H200s used up to 0.3 % more than
// predicted (docs/performance.md); this is more than 0.3 % of any built-in GPU. A number, not a
// share, so that "from N bytes a GPU on" holds for the GPU that has N.
inline constexpr uint64_t kGpuReserveBytes = 500'000'000;
// Default of --host-reserve, kept free for the system of a host with `host_bytes`: the part that
// Google Kubernetes Engine reserves on a node (cloud.google.com/kubernetes-engine/docs/concepts/
// plan-node-sizes): 25 % of the first 4 GiB, 20 % of the next 4, 10 % of the next 8, 6 % of the
// next 112 and 2 % of the rest, and 100 MiB. Rounded up to 0.1 GB.
uint64_t HostReserveBytes(uint64_t host_bytes);

// The capacity of machines for a run. Unset: unknown, not checked.
struct Capacity {
  std::optional<uint64_t> gpu_bytes;     // one GPU's
  std::optional<uint64_t> host_bytes;    // one host's
  std::optional<uint64_t> nvme_bytes;    // one node's
  std::optional<uint64_t> pinned_bytes;  // one host's
};
// The capacity of `cluster`, reserves deducted.
Capacity CapacityOf(const Cluster& cluster);

enum class MemoryKind : uint8_t { kGpu, kHost, kPinned, kNvme };
// "GPU memory", "host memory", "pinned host memory", "NVMe"
std::string_view MemoryKindName(MemoryKind kind);

// One kind of memory whose need exceeds its capacity.
struct Shortage {
  MemoryKind kind = MemoryKind::kGpu;
  uint64_t needs = 0, has = 0;  // `has`: bytes that a run may use
  // Its largest part: one of GpuClasses, "pinned" or "pageable", or "nvme".
  NamedBytes largest;

  uint64_t short_by() const { return needs - has; }
};
// Every shortage, in the order of MemoryKind. Empty: it fits. Exactly full fits.
std::vector<Shortage> Check(const Footprint& footprint, const Capacity& capacity);

// Whether Check finds nothing short; cheap, because searches call it for every candidate.
inline bool Fits(const MemoryTotals& needs, const Capacity& capacity) {
  const auto enough = [](uint64_t need, const std::optional<uint64_t>& has) {
    return !has || need <= *has;
  };
  return enough(needs.gpu_bytes, capacity.gpu_bytes) &&
         enough(needs.host_bytes, capacity.host_bytes) &&
         enough(needs.pinned_bytes, capacity.pinned_bytes) &&
         enough(needs.nvme_bytes, capacity.nvme_bytes);
}
// The factor by which the scarcest memory is exceeded: above 1 if and only if it does not fit.
double Excess(const MemoryTotals& needs, const Capacity& capacity);

// Why `footprint` does not fit `cluster`: one clause a memory, joined by "; and ". Empty if it
// fits.
std::string ExplainMisfit(const Footprint& footprint, const Cluster& cluster);

}  // namespace zeroplan
