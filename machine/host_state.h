// The state of this host for 'zeroplan doctor': processors, memory, limits, control groups.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

// The memory that this process's control groups leave it. Beyond the limit the kernel kills it
// without a message (exit code 137).
struct ControlGroupMemory {
  uint64_t limit_bytes = 0;  // the smallest limit
  // The least free memory of any of them: its limit minus the memory of its processes, without file
  // caches, which the kernel can reclaim.
  uint64_t available_bytes = 0;
  std::filesystem::path limiting;  // the file with that limit
};

// The limit of this process's groups and all above them, of version 1 (memory.limit_in_bytes) and 2
// (memory.max, and memory.high, beyond which processes are throttled until they hardly run).
// nullopt: no limit. `root`: the folder with proc/self/cgroup and sys/fs/cgroup.
std::optional<ControlGroupMemory> QueryControlGroupMemory(const std::filesystem::path& root = "/");

struct ControlGroupCpus {
  double processors = 0;           // processors that all its processes get together: 1.5
  std::filesystem::path limiting;  // the file with that quota
};

// The smallest quota of its groups and all above them: cpu.cfs_quota_us of version 1, cpu.max of
// version 2. nullopt: none.
std::optional<ControlGroupCpus> QueryControlGroupCpus(const std::filesystem::path& root = "/");

// The number after "KEY:" in the machine's meminfo, or in a NUMA node's: bytes if the line has kB,
// else the number itself (HugePages_Total counts pages). nullopt: the file or the key is missing.
std::optional<uint64_t> MemoryInfo(std::string_view key,
                                   const std::filesystem::path& file = "/proc/meminfo");

struct NumaNode {
  int id = 0;
  int processors = 0;  // online, including those that this process may not use
  uint64_t memory_bytes = 0;
  bool used = false;  // this process may use one of its processors
};

// Unknown members are empty, or 0 if their comment mentions it.
struct HostState {
  int online = 0;   // processors; 0: unknown
  int allowed = 0;  // processors allowed by affinity; 0: unknown
  std::optional<ControlGroupCpus> quota;
  std::vector<NumaNode> nodes;
  uint64_t memory_bytes = 0;     // the machine's; 0: unknown
  uint64_t available_bytes = 0;  // MemAvailable; 0: unknown
  std::optional<ControlGroupMemory> group;
  // Mode of transparent huge pages: "always", "madvise" or "never"; "": unknown.
  std::string transparent_huge_pages;
  uint64_t huge_page_bytes = 0;
  uint64_t huge_pages = 0, free_huge_pages = 0;  // reserved (vm.nr_hugepages)
  // RLIMIT_MEMLOCK's soft limit; the largest number: none. CAP_IPC_LOCK may exceed it.
  std::optional<uint64_t> locked_limit;
  bool may_pass_locked_limit = false;
  std::optional<uint64_t> shared_bytes, shared_free_bytes;  // /dev/shm's; empty: it does not exist
  bool wsl = false;                                         // the kernel is that of Windows (WSL2)
  int nvidia_devices = 0;  // NVIDIA GPUs on the PCI bus, with or without a driver
};

// `root`: the folder with proc, sys and dev. Affinity and limits are this process's.
HostState QueryHostState(const std::filesystem::path& root = "/");

}  // namespace zeroplan
