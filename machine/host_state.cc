#include "machine/host_state.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/strings.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// Version 1 writes a number near 2^63 where there is no limit, version 2 "max".
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

std::optional<uint64_t> ReadNumber(const fs::path& file) {
  uint64_t number = 0;
  std::ifstream in(file);
  if (in >> number) return number;
  return std::nullopt;
}

// The sum of the file's lines "KEY NUMBER" with these keys.
uint64_t SumOf(const fs::path& file, std::string_view first, std::string_view second) {
  uint64_t sum = 0;
  std::ifstream in(file);
  uint64_t number = 0;
  for (std::string key; in >> key >> number;) {
    if (key == first || key == second) sum += number;
  }
  return sum;
}

struct Version {
  std::vector<const char*> limits;
  const char* used;
  const char* inactive_files;
  const char* active_files;
};
const Version kVersion1 = {
    {"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file", "total_active_file"};
const Version kVersion2 = {
    {"memory.max", "memory.high"}, "memory.current", "inactive_file", "active_file"};

// Calls look(folder) for the group `path` below `mount` and all above it. A container may see its
// own group as the mount itself, whatever `path` says.
template <typename Look>
void ForEachGroup(const fs::path& mount, std::string_view path, Look look) {
  std::error_code ignored;
  fs::path folder = mount / fs::path(path).relative_path();
  const bool is_inside = path.find("..") == std::string_view::npos;
  if (!is_inside || !fs::is_directory(folder, ignored)) folder = mount;
  for (;; folder = folder.parent_path()) {
    look(folder);
    if (folder == mount) return;
  }
}

void LookForMemory(const fs::path& mount, std::string_view path, const Version& version,
                   std::optional<ControlGroupMemory>& found) {
  ForEachGroup(mount, path, [&](const fs::path& folder) {
    const uint64_t used = ReadNumber(folder / version.used).value_or(0);
    const uint64_t cached =
        SumOf(folder / "memory.stat", version.inactive_files, version.active_files);
    const uint64_t taken = used - std::min(used, cached);
    for (const char* name : version.limits) {
      const uint64_t limit = ReadNumber(folder / name).value_or(kNoLimit);
      if (limit >= kNoLimit) continue;
      const uint64_t available = limit - std::min(limit, taken);
      if (!found) {
        found = ControlGroupMemory{limit, available, folder / name};
        continue;
      }
      found->limit_bytes = std::min(found->limit_bytes, limit);
      if (available >= found->available_bytes) continue;
      found->available_bytes = available;
      found->limiting = folder / name;
    }
  });
}

// Version 2: "max 100000" without a quota, else microseconds of all processors a period. Version 1
// has a file for each of both, -1 without a quota.
void LookForCpus(const fs::path& mount, std::string_view path, bool version_2,
                 std::optional<ControlGroupCpus>& found) {
  ForEachGroup(mount, path, [&](const fs::path& folder) {
    const fs::path file = folder / (version_2 ? "cpu.max" : "cpu.cfs_quota_us");
    double quota = 0, period = 0;
    std::ifstream in(file);
    in >> quota;
    if (version_2) {
      in >> period;
    } else if (const auto microseconds = ReadNumber(folder / "cpu.cfs_period_us")) {
      period = static_cast<double>(*microseconds);
    }
    if (!in || quota <= 0 || period <= 0) return;
    if (!found || quota / period < found->processors) {
      found = ControlGroupCpus{quota / period, file};
    }
  });
}

// Calls version_1(controllers, path) and version_2(path) for each group of this process.
template <typename One, typename Two>
void ForEachMembership(const fs::path& root, One version_1, Two version_2) {
  std::ifstream groups(root / "proc/self/cgroup");
  // "4:memory:/path" of version 1, "0::/path" of version 2.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (line.starts_with("0::")) {
      version_2(path);
    } else {
      version_1(controllers, path);
    }
  }
}

}  // namespace

std::optional<ControlGroupMemory> QueryControlGroupMemory(const fs::path& root) {
  std::optional<ControlGroupMemory> found;
  const fs::path mounts = root / "sys/fs/cgroup";
  ForEachMembership(
      root,
      [&](const std::string& controllers, const std::string& path) {
        if (controllers.find(",memory,") == std::string::npos) return;
        LookForMemory(mounts / "memory", path, kVersion1, found);
      },
      [&](const std::string& path) {
        LookForMemory(mounts, path, kVersion2, found);
        LookForMemory(mounts / "unified", path, kVersion2, found);
      });
  return found;
}

std::optional<ControlGroupCpus> QueryControlGroupCpus(const fs::path& root) {
  std::optional<ControlGroupCpus> found;
  const fs::path mounts = root / "sys/fs/cgroup";
  ForEachMembership(
      root,
      [&](const std::string& controllers, const std::string& path) {
        if (controllers.find(",cpu,") == std::string::npos) return;
        LookForCpus(mounts / "cpu", path, /*version_2=*/false, found);
      },
      [&](const std::string& path) {
        LookForCpus(mounts, path, /*version_2=*/true, found);
        LookForCpus(mounts / "unified", path, /*version_2=*/true, found);
      });
  return found;
}

std::optional<uint64_t> MemoryInfo(std::string_view key, const std::filesystem::path& file) {
  const std::string name = std::string(key) + ":";
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);  // "Node 0 MemTotal: 600 kB" of a node
    std::string word;
    while (words >> word && word != name) {
    }
    uint64_t number = 0;
    if (word != name || !(words >> number)) continue;
    return words >> word && word == "kB" ? number * 1024 : number;
  }
  return std::nullopt;
}

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
  for (const std::string_view part : Split(text, ',')) {
    int low = 0, high = 0;
    char dash = 0;
    std::istringstream range{std::string(part)};
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
  // "Linux version 5.15.153.1-microsoft-standard-WSL2 ...".
  host.wsl = FirstLine(root / "proc/version").find("icrosoft") != std::string::npos;
  host.nvidia_devices = NvidiaDevices(root);
  return host;
}

}  // namespace zeroplan
