// What one rank moves in one optimizer step: over the network, over PCIe, to and from disk.
#pragma once

#include <cstdint>

#include "core/program/program.h"

namespace zeroplan {

struct StepTraffic {
  uint64_t collective_bytes = 0;  // sent, scalar reductions not counted
  uint64_t scalar_bytes = 0;      // sent by scalar reductions (norm, loss, overflow)
  uint64_t host_to_device_bytes = 0;
  uint64_t device_to_host_bytes = 0;
  uint64_t file_read_bytes = 0;
  uint64_t file_write_bytes = 0;

  uint64_t pcie_bytes() const { return host_to_device_bytes + device_to_host_bytes; }
};

// Bytes that one of `world_size` ranks sends on a ring for a collective over `full_bytes` (what all
// ranks hold together, or one rank's whole input of an all-reduce): n(N-1)/N, twice for an
// all-reduce, which is a reduce-scatter and an all-gather. Source: Patarasuk and Yuan 2009,
// "Bandwidth optimal all-reduce algorithms for clusters of workstations". A broadcast by each owner
// and a reduction to each owner count as the all-gather and the reduce-scatter that they spell out,
// the mean over ranks.
uint64_t RingSentBytes(CollectiveKind kind, uint64_t full_bytes, int world_size);

// What a collective is over, all its segments: what all ranks hold together, or one rank's whole
// input of an all-reduce.
uint64_t CollectiveFullBytes(const Program& program, const Collective& collective);

// Sums the program's micro-steps (each kind as often as it occurs) and its optimizer step.
StepTraffic WalkTraffic(const Program& program);

}  // namespace zeroplan
