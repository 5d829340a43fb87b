// The memory and processor time that this process's control groups leave it. Past the memory limit
// the kernel ends it without a word (exit code 137).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace zeroplan {

struct ControlGroupMemory {
  uint64_t limit_bytes = 0;  // the smallest limit
  // The least that one of them has left: its limit less what its processes use, file caches not
  // counted, which the kernel gives back.
  uint64_t available_bytes = 0;
  std::filesystem::path limiting;  // the file with that limit
};

// The limit of this process's groups and all above them, of version 1 (memory.limit_in_bytes) and 2
// (memory.max, and memory.high, past which processes are held back until they hardly run). nullopt:
// no limit. `root`: where proc/self/cgroup and sys/fs/cgroup lie.
std::optional<ControlGroupMemory> QueryControlGroupMemory(const std::filesystem::path& root = "/");

struct ControlGroupCpus {
  double processors = 0;           // that all its processes get together: 1.5
  std::filesystem::path limiting;  // the file that says so
};

// The smallest quota of its groups and all above them: cpu.cfs_quota_us of version 1, cpu.max of
// version 2. nullopt: none.
std::optional<ControlGroupCpus> QueryControlGroupCpus(const std::filesystem::path& root = "/");

}  // namespace zeroplan
