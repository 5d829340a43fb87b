#include "executor/process/host_list.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <numeric>
#include <optional>
#include <string_view>

#include "core/base/error.h"
#include "executor/process/star_frames.h"

namespace zeroplan {
namespace {

constexpr int kMaxRanksOfHost = 1024;

// Nothing that ssh or a shell could take for anything but a host.
bool IsHostName(std::string_view name) {
  if (name.empty() || name.front() == '-') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-@:%").find(c) != std::string_view::npos;
  });
}

// `where`: the option, or file and line.
void Add(std::string_view name, std::string_view count, const std::string& where,
         std::vector<HostShare>& hosts) {
  if (!IsHostName(name)) {
    ThrowUsage("{}: '{}' is no host's name; use letters, digits, '.', '_', '-', such as node1",
               where, PeerText(std::string(name)));
  }
  int ranks = 0;
  const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), ranks);
  if (error != std::errc() || end != count.data() + count.size() || ranks < 1 ||
      ranks > kMaxRanksOfHost) {
    ThrowUsage("{}: '{}' is no number of ranks for {}; use the number of its GPUs, from 1 to {}",
               where, PeerText(std::string(count)), name, kMaxRanksOfHost);
  }
  for (const HostShare& host : hosts) {
    if (host.name == name) ThrowUsage("{}: {} is named twice; add its ranks up", where, name);
  }
  hosts.push_back({std::string(name), ranks});
}

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

}  // namespace

std::string HostShare::address() const {
  const size_t at = name.rfind('@');
  return at == std::string::npos ? name : name.substr(at + 1);
}

std::vector<HostShare> ParseHosts(const std::string& text, const std::string& option) {
  std::vector<HostShare> hosts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view entry = Trim(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    std::string_view name = entry, count;
    if (const size_t closed = entry.find("]:"); closed != std::string_view::npos) {
      // "[fe80::1]:8" and "user@[fe80::1]:8": brackets set the address apart from the count.
      const size_t open = entry.find('[');
      if (open == std::string_view::npos || open > closed) {
        ThrowUsage("{}: '{}' has ] without [", option, PeerText(std::string(entry)));
      }
      const std::string bare = std::string(entry.substr(0, open)) +
                               std::string(entry.substr(open + 1, closed - open - 1));
      Add(bare, entry.substr(closed + 2), option, hosts);
      continue;
    }
    const size_t colon = entry.rfind(':');
    if (colon != std::string_view::npos) {
      name = entry.substr(0, colon);
      count = entry.substr(colon + 1);
    }
    if (name.find(':') != std::string_view::npos) {
      ThrowUsage("{}: '{}' needs brackets around an IPv6 address, such as [fe80::1]:8", option,
                 PeerText(std::string(entry)));
    }
    if (count.empty()) {
      ThrowUsage("{}: '{}' is not HOST:GPUS; use for example node1:8,node2:8", option,
                 PeerText(std::string(entry)));
    }
    Add(name, count, option, hosts);
  }
  return hosts;
}

std::vector<HostShare> ReadHostFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) ThrowUsage("{}: cannot read: {}", path, std::strerror(errno));
  std::vector<HostShare> hosts;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    const std::string where = path + ":" + std::to_string(++number);
    const std::string_view text = Trim(std::string_view(line).substr(0, line.find('#')));
    if (text.empty()) continue;
    const size_t gap = std::min(text.find_first_of(" \t"), text.size());
    const std::string_view rest = Trim(text.substr(gap));
    constexpr std::string_view kSlots = "slots=";
    if (!rest.starts_with(kSlots)) {
      ThrowUsage("{}: '{}' is not 'HOST slots=GPUS'; use for example: node1 slots=8", where,
                 PeerText(std::string(text)));
    }
    Add(text.substr(0, gap), rest.substr(kSlots.size()), where, hosts);
  }
  if (hosts.empty()) ThrowUsage("{}: names no host; give each a line such as: node1 slots=8", path);
  return hosts;
}

int RanksOf(const std::vector<HostShare>& hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), 0,
                         [](int sum, const HostShare& host) { return sum + host.ranks; });
}

}  // namespace zeroplan
