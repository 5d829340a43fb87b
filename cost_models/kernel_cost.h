// Seconds of a kernel of the program on the GPU, by its row's cost kind and the bytes it moves.
// Excludes workspaces of matmuls and attention, because they were measured with the kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program/program.h"
#include "cost_models/attention_cost.h"
#include "cost_models/gemm_cost.h"
#include "cost_models/grouped_cost.h"
#include "cost_models/memory_cost.h"
#include "cost_models/power_limit.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

class KernelCost {
 public:
  // `overlapped_compute`: see Cost.
  KernelCost(const GpuProfile& gpu, double overlapped_compute);

  struct Cost {
    double seconds = -1;  // at the GPU's top clock; < 0: not set
    // The share (0 to 1] of its speed that the kernel keeps while a collective runs concurrently,
    // if large matmuls keep `overlapped_compute` of theirs.
    double beside_collective = 1;
    GpuWork work;  // its seconds and energy
  };
  // Caches matmuls and attention by shape, because each costs many exponentials. Embedding backward
  // is charged for its bytes only: colliding tokens, which atomics serialise, add nothing.
  Cost Of(const Program& program, const LaunchKernel& launch) const;
  double Seconds(const Program& program, const LaunchKernel& launch) const {
    return Of(program, launch).seconds;
  }
  // The cost of an event between two kernels of a stream, because it splits their graph. On an
  // H200, where a kernel follows another in 2.1 us, at least 10.8 us and usually 11 to 15.
  double EventSeconds() const { return 5 * launch_seconds_; }

  const PowerLimit& power() const { return power_; }
  const GemmCost& gemm() const { return gemm_; }
  const MemoryCost& memory() const { return memory_; }
  double HbmBytesPerSecond() const;  // at least LaunchBytes over Seconds

 private:
  struct Key {
    KernelDims dims{};
    uint64_t bytes = 0;
    KernelId kernel = KernelId::kCount;
    Dtype dtype = Dtype::kU8;
    uint64_t workspace = 0;      // bytes, of attention's backward pass
    bool documents = false;      // attention stays within documents
    bool deterministic = false;  // Program's, of attention; without documents of its backward pass
    bool own_documents = false;  // this and the next: Program's, of attention with documents
    double visible_keys = 0;
    bool operator==(const Key&) const = default;
  };
  struct Slot {
    Key key;
    Cost cost;
  };
  // `cost` plus launches of side kernels that last `seconds`.
  static Cost WithSide(Cost cost, double seconds);
  double Compute(const Key& key) const;
  static double VisibleShare(const Key& key);
  double SpeedBesideCollective(const Key& key) const;
  double ProductSeconds(const Key& key) const;
  static uint64_t Hash(const Key& key);
  void Grow() const;

  PowerLimit power_;
  GemmCost gemm_;
  MemoryCost memory_;
  AttentionCost attention_;
  GroupedCost grouped_;
  double hbm_seconds_per_byte_ = 0, launch_seconds_ = 0, overlapped_compute_ = 1;
  double gelu_seconds_per_flop_ = 0;  // for GELU within a matmul
  mutable std::vector<Slot> slots_;   // size is a power of two; linear probing
  mutable size_t used_ = 0;
};

}  // namespace zeroplan
