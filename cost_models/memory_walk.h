// Adds up the memory of a step program: bytes per class, per phase, and the buffers of the peak.
// One walk over Alloc and Free in the order in which the sections run, which knows nothing of
// transformers or ZeRO.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/program/program.h"
#include "cost_models/cluster_shape.h"

namespace zeroplan {

// Device memory of an engine outside its arenas, as far as the step program determines it.
struct OutsideArenas {
  // A communicator with an all-to-all: its number of ranks, and the distance between them
  // (RankAxes).
  struct Exchange {
    int ranks = 0, apart = 1;
    bool operator==(const Exchange&) const = default;
  };

  int communicators = 0;  // communicators that an engine makes (core/program/collectives.h)
  std::vector<Exchange> exchanges;  // the communicators among them that have an all-to-all
  uint64_t graph_bytes = 0;         // the CUDA graphs that it replays; 0 on the CPU backend

  // The number of communicators to charge memory for, in a cluster of `shape`: the engine's, and
  // one more for each rank of its node that a rank exchanges with. NCCL's sends and receives use
  // connections of their own: 0.45 to 0.59 GB on two H200s with NVLink (four runs), 3 times 0.48 on
  // four H100s, where a communicator needs 0.51. Over sockets they needed nothing.
  int Communicators(const ClusterShape& shape) const {
    int sum = communicators;
    for (const Exchange& exchange : exchanges) {
      sum += shape.OfGroup(exchange.ranks, exchange.apart).ranks_per_node() - 1;
    }
    return sum;
  }
  bool operator==(const OutsideArenas&) const = default;
};

// Bytes of a captured graph, and of a launch or copy in it: least squares over the memory in use
// beyond arenas, context and communicators in 72 random runs on H200s (benchmarks/fidelity.py,
// driver of CUDA 13.0, which allocates by 2 MB). 2 MB off in the mean, 7 at most.
inline constexpr uint64_t kGraphBytes = 86'000, kGraphNodeBytes = 3'700;

OutsideArenas OutsideArenasOf(const Program& program);

// Buffers of one label that are live together.
struct Culprit {
  std::string label;  // "qkv"
  uint64_t bytes = 0;
  int count = 0;
};
// "qkv x12" or "logits".
std::string CulpritName(const Culprit& culprit);

struct PhasePeak {
  uint64_t bytes = 0;             // peak of live device bytes during the phase; 0: no such phase
  std::vector<Culprit> culprits;  // by falling bytes, at most kMaxCulprits
};
inline constexpr size_t kMaxCulprits = 8;

// The memory of one rank.
struct MemoryReport {
  std::array<uint64_t, kSpaces> arena_bytes{};      // the executor's allocations, by Space
  std::array<uint64_t, kSpaces> live_peak_bytes{};  // largest sum of live buffers, by Space

  // Device bytes by MemoryClass at the instant when most is live. `buffers` includes gap_bytes, so
  // the classes sum to the device arena.
  std::array<uint64_t, kMemoryClasses> class_bytes{};
  // arena minus live bytes at that instant: alignment and holes of placement
  uint64_t gap_bytes = 0;

  std::array<PhasePeak, kPhases> phases;
  OutsideArenas outside;

  uint64_t of(MemoryClass memory_class) const {
    return class_bytes[static_cast<size_t>(memory_class)];
  }
  uint64_t arena(Space space) const { return arena_bytes[static_cast<size_t>(space)]; }
};

// Live device bytes by MemoryClass (excluding gaps of placement) right after one instruction. Only
// an Alloc or Free of a device buffer changes them.
struct LiveBytes {
  Section section;
  uint8_t kinds;   // kinds of micro-step; kEvery outside of it
  uint32_t index;  // index into its section
  Phase phase;
  std::array<uint64_t, kMemoryClasses> class_bytes;
};
using LiveObserver = std::function<void(const LiveBytes&)>;

// REQUIRES: `program` is placed (arena_bytes set). Throws CheckFailure if a buffer is allocated
// twice, freed while not live. `observe`, if set, is called after every Alloc and Free of a device
// buffer and at the begin of each phase of a section, in the order of the walk.
MemoryReport WalkMemory(const Program& program, const LiveObserver& observe = nullptr);

}  // namespace zeroplan
