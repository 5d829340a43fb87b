// How this host is set up: processors, memory, limits, control groups. What 'zeroplan doctor' looks
// at.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

// The memory and processor time that this process's control groups leave it. Past the memory limit
// the kernel ends it without a word (exit code 137).
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

// The number behind "KEY:" in the machine's meminfo, or in a NUMA node's: bytes where the line says
// kB, else as it is (HugePages_Total counts pages). nullopt: the file is not there or does not say.
std::optional<uint64_t> MemoryInfo(std::string_view key,
                                   const std::filesystem::path& file = "/proc/meminfo");

struct NumaNode {
  int id = 0;
  int processors = 0;  // online; those this process may not use too
  uint64_t memory_bytes = 0;
  bool used = false;  // this process may use a processor of it
};

// What cannot be told is empty, or 0 where the comment says so.
struct HostState {
  int online = 0;   // processors; 0: not known
  int allowed = 0;  // of them by affinity; 0: not known
  std::optional<ControlGroupCpus> quota;
  std::vector<NumaNode> nodes;
  uint64_t memory_bytes = 0;     // of the machine; 0: not known
  uint64_t available_bytes = 0;  // MemAvailable; 0: not known
  std::optional<ControlGroupMemory> group;
  // "always", "madvise" or "never"; "" not known. Of transparent huge pages.
  std::string transparent_huge_pages;
  uint64_t huge_page_bytes = 0;
  uint64_t huge_pages = 0, free_huge_pages = 0;  // set aside (vm.nr_hugepages)
  // RLIMIT_MEMLOCK's soft limit; the largest number: none. May be passed: CAP_IPC_LOCK.
  std::optional<uint64_t> locked_limit;
  bool may_pass_locked_limit = false;
  std::optional<uint64_t> shared_bytes, shared_free_bytes;  // of /dev/shm; empty: it is not there
  bool wsl = false;                                         // the kernel is Windows' (WSL2)
  int nvidia_devices = 0;  // GPUs of NVIDIA on the PCI bus, with or without a driver
};

// `root`: where proc, sys and dev lie. Affinity and limits are those of this process.
HostState QueryHostState(const std::filesystem::path& root = "/");

}  // namespace zeroplan
