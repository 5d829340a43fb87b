// How this host is set up: processors, memory, limits. What 'zeroplan doctor' looks at.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "machine/control_group.h"

namespace zeroplan {

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
  int nvidia_devices = 0;  // GPUs of NVIDIA on the PCI bus, with or without a driver
};

// `root`: where proc, sys and dev lie. Affinity and limits are those of this process.
HostState QueryHostState(const std::filesystem::path& root = "/");

}  // namespace zeroplan
