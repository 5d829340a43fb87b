#include "machine/control_group.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

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

}  // namespace zeroplan
