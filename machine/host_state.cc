#include "machine/host_state.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#include "machine/memory_info.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

std::string FirstLine(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// "0-3,8" of the kernel's lists.
std::vector<int> ReadList(const std::string& text) {
  std::vector<int> numbers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    int low = 0, high = 0;
    char dash = 0;
    std::istringstream range(part);
    if (!(range >> low)) continue;
    high = range >> dash >> high && dash == '-' ? high : low;
    for (int i = low; i <= high && numbers.size() < 65536; ++i) numbers.push_back(i);
  }
  return numbers;
}

void AskProcessors(const fs::path& root, HostState& host) {
  const std::vector<int> online = ReadList(FirstLine(root / "sys/devices/system/cpu/online"));
  host.online = static_cast<int>(online.size());
  // The fixed set of the C library ends at 1024; machines with more tell their number all the same.
  cpu_set_t allowed;
  const bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  host.allowed =
      known ? CPU_COUNT(&allowed) : static_cast<int>(std::thread::hardware_concurrency());
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root / "sys/devices/system/node", ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("node") || name.size() < 5 || name[4] < '0' || name[4] > '9') continue;
    NumaNode node;
    node.id = std::stoi(name.substr(4, 6));
    const std::vector<int> processors = ReadList(FirstLine(entry.path() / "cpulist"));
    node.processors = static_cast<int>(processors.size());
    node.memory_bytes = MemoryInfo("MemTotal", entry.path() / "meminfo").value_or(0);
    node.used = std::any_of(processors.begin(), processors.end(), [&](int processor) {
      return known && processor < CPU_SETSIZE && CPU_ISSET(processor, &allowed);
    });
    host.nodes.push_back(node);
  }
  std::sort(host.nodes.begin(), host.nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
}

// "always [madvise] never": what is in brackets.
std::string Chosen(const std::string& line) {
  const size_t open = line.find('['), close = line.find(']');
  return open == std::string::npos || close == std::string::npos || close < open
             ? ""
             : line.substr(open + 1, close - open - 1);
}

// CAP_IPC_LOCK among the effective capabilities (<linux/capability.h>).
bool MayPassLockedLimit(const fs::path& root) {
  constexpr int kIpcLock = 14;
  std::ifstream in(root / "proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("CapEff:")) continue;
    uint64_t mask = 0;
    std::istringstream(line.substr(7)) >> std::hex >> mask;
    return (mask >> kIpcLock & 1) != 0;
  }
  return false;
}

int NvidiaDevices(const fs::path& root) {
  int count = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root / "sys/bus/pci/devices", ignored)) {
    // Vendor 10de; class 03: display controllers, compute cards among them (0302).
    const bool nvidia = FirstLine(entry.path() / "vendor") == "0x10de";
    if (nvidia && FirstLine(entry.path() / "class").starts_with("0x03")) ++count;
  }
  return count;
}

}  // namespace

HostState QueryHostState(const fs::path& root) {
  HostState host;
  AskProcessors(root, host);
  host.quota = QueryControlGroupCpus(root);
  const fs::path meminfo = root / "proc/meminfo";
  host.memory_bytes = MemoryInfo("MemTotal", meminfo).value_or(0);
  host.available_bytes = MemoryInfo("MemAvailable", meminfo).value_or(0);
  host.group = QueryControlGroupMemory(root);
  host.transparent_huge_pages =
      Chosen(FirstLine(root / "sys/kernel/mm/transparent_hugepage/enabled"));
  host.huge_page_bytes = MemoryInfo("Hugepagesize", meminfo).value_or(0);
  host.huge_pages = MemoryInfo("HugePages_Total", meminfo).value_or(0);
  host.free_huge_pages = MemoryInfo("HugePages_Free", meminfo).value_or(0);
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
    host.locked_limit = limit.rlim_cur == RLIM_INFINITY ? std::numeric_limits<uint64_t>::max()
                                                        : static_cast<uint64_t>(limit.rlim_cur);
  }
  host.may_pass_locked_limit = MayPassLockedLimit(root);
  struct statvfs shared {};
  if (statvfs((root / "dev/shm").c_str(), &shared) == 0) {
    host.shared_bytes = static_cast<uint64_t>(shared.f_blocks) * shared.f_frsize;
    host.shared_free_bytes = static_cast<uint64_t>(shared.f_bavail) * shared.f_frsize;
  }
  host.nvidia_devices = NvidiaDevices(root);
  return host;
}

}  // namespace zeroplan
