// What a choice takes of each kind of memory, and whether machines have it. A Footprint is a plain
// value: it is filled from a step program or by a model of another runtime.
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
// ranks, of one node's disks, and of the host's bytes those that are page-locked.
struct MemoryTotals {
  uint64_t gpu_bytes = 0;
  uint64_t host_bytes = 0;
  uint64_t nvme_bytes = 0;
  uint64_t pinned_bytes = 0;
};

// What tensors on a GPU are for.
enum class TorchClass : uint8_t {
  kParams,       // parameters in the dtype that computes, whole or sharded, and gathered ones
  kGrads,        // gradients, their sums and shards
  kOptimizer,    // master parameters and the optimizer's states, and gradients cast for them
  kActivations,  // what forward keeps for backward, and what lives within an operation
  kLogits,       // logits, their copies, the loss, and the gradients of these
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
  std::array<uint64_t, kTorchClasses> class_bytes{};  // at that instant, sum to allocated_bytes
  uint64_t reserved_bytes = 0;
  bool operator==(const TorchPeak&) const = default;
};

// One process's memory on its host, bytes, without what Python and its libraries take.
struct HostPeak {
  uint64_t pinned_bytes = 0, pageable_bytes = 0;
  uint64_t total() const { return pinned_bytes + pageable_bytes; }
  bool operator==(const HostPeak&) const = default;
};

// A phase around the steps of transformers' Trainer, or of DeepSpeed's engine.
enum class AroundPhase : uint8_t { kLoading, kEvaluation, kSaving, kResuming };
std::string_view AroundPhaseName(AroundPhase phase);  // "loading", "evaluation", ...

struct AroundBytes {
  uint64_t gpu = 0;  // of a GPU: tensors, and what lies outside the allocator
  // Of the host, a process: rank 0's, and any other's; Python included, mapped files not.
  uint64_t rank_0_host = 0, other_host = 0;

  // Of the node of rank 0.
  uint64_t NodeHost(int ranks_per_node) const {
    return rank_0_host + static_cast<uint64_t>(ranks_per_node - 1) * other_host;
  }
  bool operator==(const AroundBytes&) const = default;
};

// What such a phase takes at most (planner/runtimes/torch_phases.h).
struct AroundPeak {
  AroundPhase phase = AroundPhase::kLoading;
  AroundBytes bytes;
  std::string why;      // "rank 0 gathers all 16-bit weights"
  std::string setting;  // that decides, as it was taken; "": there is none
  std::string instead;  // what else it can be, and what that takes; "": nothing
  AroundBytes instead_bytes;
  // Of machines that were asked about: "saving: host memory: ..."; "": it fits. Else whether it
  // would instead.
  std::string why_not;
  bool instead_fits = false;
  bool operator==(const AroundPeak&) const = default;
};

// What a PyTorch process takes, whose allocator keeps more than its tensors need.
struct TorchFootprint {
  std::array<TorchPeak, kTorchPhases> peaks{};
  uint64_t after_init_bytes = 0;  // allocated when the engine is made
  // CUDA context, NCCL and what libraries take outside the allocator.
  uint64_t context_bytes = 0;
  // Memory of one process when its resident set is largest. `host_base_bytes`: Python with its
  // libraries.
  HostPeak host;
  uint64_t host_base_bytes = 0;
  // Of one process: its files on a disk; what the driver moves to the host where the GPU is short
  // of memory (cudaMallocManaged), which is in none of the above.
  uint64_t file_bytes = 0, managed_bytes = 0;
  // What a step copies between GPU and host, both ways, without managed memory.
  uint64_t copied_bytes = 0;
  // The phase in which the allocator could not stay within its limit, if there is one.
  std::optional<TorchPhase> out_of_memory;
  // Segments that the allocator, under a limit, gives back to the driver, and asks for again, in a
  // step like all that follow.
  uint64_t segments_given_back = 0;
  // By AroundPhase; empty where they are not known.
  std::vector<AroundPeak> around;

  // The phase with the largest reserved memory, the first of several.
  TorchPhase DecidingPhase() const;
  const TorchPeak& peak(TorchPhase phase) const { return peaks[static_cast<size_t>(phase)]; }
  uint64_t TensorBytes() const;  // allocated at most
  // Peak of the steps, without initialisation.
  uint64_t StepAllocatedBytes() const;
  uint64_t StepReservedBytes() const;
  uint64_t ReservedBytes() const;  // at most, initialisation included
  uint64_t DeviceBytes() const { return ReservedBytes() + context_bytes; }
  uint64_t HostBytes() const { return host.total() + host_base_bytes; }
  bool operator==(const TorchFootprint&) const = default;
};

struct Footprint {
  // One GPU, by MemoryClass, at the instant when most is live; gaps of placement count as buffers.
  std::array<uint64_t, kMemoryClasses> gpu_class_bytes{};
  uint64_t runtime_bytes =
      0;  // one GPU, outside the arenas: context, communicators, libraries, CUDA graphs
  HostBytes host;
  uint64_t nvme_bytes = 0;  // one node
  // Of the buffers: what an allocator keeps, but gives back where memory is as short as it is.
  uint64_t gpu_spare_bytes = 0;
  // Of a PyTorch process, behind the classes: those of its deciding phase, logits with activations,
  // and what is reserved beyond the tensors as buffers.
  std::optional<TorchFootprint> torch;

  uint64_t gpu_arena_bytes() const;  // the classes together
  uint64_t gpu_total() const { return gpu_arena_bytes() + runtime_bytes; }
  MemoryTotals totals() const {
    return {gpu_total() - gpu_spare_bytes, host.total(), nvme_bytes, host.pinned};
  }
  bool operator==(const Footprint&) const = default;
};

// What `program` takes on `cluster`, whose runtime_bytes and ranks of a node count.
Footprint FootprintOf(const Program& program, const Cluster& cluster);
// The same where WalkMemory has been called.
Footprint FootprintOf(const MemoryReport& memory, const Cluster& cluster);
// Of PyTorch processes, so many on a host.
Footprint FootprintOf(const TorchFootprint& torch, int ranks_per_node);
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
  std::optional<uint64_t> gpu_bytes;     // of one GPU
  std::optional<uint64_t> host_bytes;    // of one host
  std::optional<uint64_t> nvme_bytes;    // of one node
  std::optional<uint64_t> pinned_bytes;  // of one host
};
// What `cluster` has, without its reserves.
Capacity CapacityOf(const Cluster& cluster);

enum class MemoryKind : uint8_t { kGpu, kHost, kPinned, kNvme };
// "GPU memory", "host memory", "pinned host memory", "NVMe"
std::string_view MemoryKindName(MemoryKind kind);

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
         enough(needs.pinned_bytes, capacity.pinned_bytes) &&
         enough(needs.nvme_bytes, capacity.nvme_bytes);
}
// The factor by which the scarcest memory is exceeded: above 1 exactly where it does not fit.
double Excess(const MemoryTotals& needs, const Capacity& capacity);

// Why `footprint` does not fit `cluster`: one clause a memory, joined by "; and ". Empty if it
// fits.
std::string ExplainMisfit(const Footprint& footprint, const Cluster& cluster);

}  // namespace zeroplan
