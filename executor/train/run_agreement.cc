#include "executor/train/run_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <span>
#include <sstream>
#include <string_view>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/version.h"
#include "machine/library_facts.h"

#ifdef ZEROPLAN_WITH_CUDA
#include <nccl.h>
#endif

namespace zeroplan {
namespace {

// The most that clocks may differ. Reading them takes as long as a barrier's answer takes to reach
// every rank.
constexpr int64_t kMaxSkewMs = 5'000;

std::string HashOfProgram() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file),
                                std::istreambuf_iterator<char>()};
  if (bytes.empty()) return "unreadable";
  return fmt::format("{:016x}", HashBytes(std::as_bytes(std::span(bytes))));
}

std::string NcclVersion() {
#ifdef ZEROPLAN_WITH_CUDA
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "unknown";
  return LibraryVersionText(version);
#else
  return "none";
#endif
}

void CompareFacts(ProcessGroup& group, const NamedFacts& facts) {
  std::string mine;
  for (const auto& [name, value] : facts) mine += value + "\n";
  const std::vector<std::string> all = group.AllGather(mine);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    std::istringstream first(all[0]), other(all[rank]);
    for (const auto& [name, value] : facts) {
      std::string of_first, of_other;
      std::getline(first, of_first);
      std::getline(other, of_other);
      if (of_first == of_other) continue;
      ThrowUsage(
          "{}: rank {} has {}, rank 0 {}; give all ranks the same command line, files and "
          "version of zeroplan",
          name, rank, of_other, of_first);
    }
  }
}

void CompareClocks(ProcessGroup& group) {
  group.Barrier();
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  std::vector<int64_t> clocks;
  for (const std::string& text : group.AllGather(std::to_string(ms))) {
    const int64_t clock = std::strtoll(text.c_str(), nullptr, 10);
    clocks.push_back(std::clamp(clock, int64_t{0}, int64_t{1} << 52));  // whatever it sent
  }
  const std::string warning = ClockWarning(clocks);
  if (group.rank() == 0 && !warning.empty()) LogWarning("{}", warning);
}

}  // namespace

void AgreeAtStart(ProcessGroup& group, const NamedFacts& facts) {
  if (group.world_size() == 1) return;
  NamedFacts all = OwnBinary();
  all.insert(all.end(), facts.begin(), facts.end());
  CompareFacts(group, all);
  CompareClocks(group);
}

void AgreeOnFacts(ProcessGroup& group, const NamedFacts& facts) { CompareFacts(group, facts); }

std::string CudaLibraries(const std::filesystem::path& maps) {
  constexpr std::string_view kLibraries[] = {"libcublas", "libcudart", "libcudnn"};
  std::set<std::string> found;
  std::ifstream lines(maps);
  // "55d0c0000000-55d0c0001000 r-xp 00000000 08:01 1234   /usr/lib/libcudart.so.13.0.96"
  for (std::string line; std::getline(lines, line);) {
    const size_t slash = line.rfind('/');
    if (slash == std::string::npos) continue;
    const std::string name = line.substr(slash + 1);
    for (const std::string_view known : kLibraries) {
      if (name.starts_with(known)) found.insert(name);
    }
  }
  return found.empty() ? "none loaded" : fmt::format("{}", fmt::join(found, ", "));
}

NamedFacts OwnBinary() {
  static const std::string hash = HashOfProgram();
  return {{"version of zeroplan", std::string(kVersion)},
          {"build of zeroplan (hash of its program)", hash},
          {"version of NCCL", NcclVersion()},
          {"CUDA libraries", CudaLibraries()}};
}

std::string ClockWarning(const std::vector<int64_t>& clocks_ms) {
  std::vector<int64_t> sorted = clocks_ms;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.back() - sorted.front() <= kMaxSkewMs) return "";
  const int64_t median = sorted[(sorted.size() - 1) / 2];
  const auto off = [&](int64_t clock) { return std::max(clock, median) - std::min(clock, median); };
  const auto farthest = std::max_element(clocks_ms.begin(), clocks_ms.end(),
                                         [&](int64_t a, int64_t b) { return off(a) < off(b); });
  return fmt::format(
      "the clock of rank {} is {:.1f} s {} the other ranks'; set the clocks of the hosts (NTP), "
      "since times of files and logs are compared",
      farthest - clocks_ms.begin(), static_cast<double>(off(*farthest)) / 1e3,
      *farthest > median ? "ahead of" : "behind");
}

}  // namespace zeroplan
