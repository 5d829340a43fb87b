// Bytes that one rank moves in one optimizer step: over the network, over PCIe, to and from disk.
#pragma once

#include <array>
#include <cstdint>

#include "core/program/program.h"

namespace zeroplan {

struct StepTraffic {
  uint64_t collective_bytes = 0;  // bytes sent, excluding scalar reductions
  // The same by RankAxis: over all ranks, within a shard group, between groups, among the ranks
  // that share sequences.
  std::array<uint64_t, kAxes> axis_bytes{};
  uint64_t scalar_bytes = 0;  // sent by scalar reductions (norm, loss, overflow)
  uint64_t host_to_device_bytes = 0;
  uint64_t device_to_host_bytes = 0;
  uint64_t file_read_bytes = 0;
  uint64_t file_write_bytes = 0;

  uint64_t over_all() const { return axis_bytes[static_cast<size_t>(RankAxis::kAll)]; }
  uint64_t within_groups() const { return axis_bytes[static_cast<size_t>(RankAxis::kShard)]; }
  uint64_t across_groups() const { return axis_bytes[static_cast<size_t>(RankAxis::kReplica)]; }
  uint64_t pcie_bytes() const { return host_to_device_bytes + device_to_host_bytes; }
};

// Sums the program's micro-steps (each kind as often as it occurs) and its optimizer step.
StepTraffic WalkTraffic(const Program& program);

}  // namespace zeroplan
