// What training takes of memory in a runtime other than zeroplan's own executor: a PyTorch process,
// whose allocator keeps more than its tensors need.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace zeroplan {

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
};

// One process's memory on its host, bytes, without what Python and its libraries take.
struct HostPeak {
  uint64_t pinned_bytes = 0, pageable_bytes = 0;
  uint64_t total() const { return pinned_bytes + pageable_bytes; }
};

struct RuntimeFootprint {
  std::string runtime;  // "deepspeed 0.19.6"
  std::array<TorchPeak, kTorchPhases> peaks{};
  uint64_t after_init_bytes = 0;  // allocated when the engine is made
  // CUDA context, NCCL and what libraries take outside the allocator.
  uint64_t context_bytes = 0;
  // Memory of one process when its resident set is largest. `host_base_bytes`: Python with its
  // libraries.
  HostPeak host;
  uint64_t host_base_bytes = 0;
  // The phase in which the allocator could not stay within its limit, if there is one.
  std::optional<TorchPhase> out_of_memory;
  // Segments that the allocator, under a limit, gives back to the driver, and asks for again, in a
  // step like all that follow.
  uint64_t segments_given_back = 0;

  // The phase with the largest reserved memory, the first of several.
  TorchPhase DecidingPhase() const;
  // Peak of the steps, without initialisation.
  uint64_t StepAllocatedBytes() const;
  uint64_t StepReservedBytes() const;
  uint64_t ReservedBytes() const;  // at most, initialisation included
  uint64_t DeviceBytes() const { return ReservedBytes() + context_bytes; }
  uint64_t HostBytes() const { return host.total() + host_base_bytes; }
};

}  // namespace zeroplan
