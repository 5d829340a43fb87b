#include "machine/network_state.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <string_view>

#include "core/base/files.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// The first line; "" where the file cannot be read, as a driver refuses what it does not know.
std::string LineOf(const fs::path& file) {
  std::string line;
  std::ifstream in(file);
  std::getline(in, line);
  return line;
}

int64_t NumberOf(const fs::path& file) {
  int64_t number = 0;
  std::ifstream in(file);
  return in >> number ? number : 0;
}

// Names of the entries of a folder, in order; none where there is no such folder.
std::vector<std::string> NamesIn(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::map<std::string, std::vector<std::string>> OwnAddresses() {
  std::map<std::string, std::vector<std::string>> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return addresses;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr) continue;
    const bool v4 = at->ifa_addr->sa_family == AF_INET;
    if (!v4 && at->ifa_addr->sa_family != AF_INET6) continue;
    char text[NI_MAXHOST] = "";
    const auto bytes = static_cast<socklen_t>(v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (getnameinfo(at->ifa_addr, bytes, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) {
      continue;
    }
    addresses[at->ifa_name].emplace_back(text);
  }
  return addresses;
}

std::vector<NetworkInterface> InterfacesIn(const fs::path& folder) {
  std::map<std::string, std::vector<std::string>> addresses = OwnAddresses();
  std::vector<NetworkInterface> interfaces;
  for (const std::string& name : NamesIn(folder)) {
    const fs::path at = folder / name;
    NetworkInterface interface;
    interface.name = name;
    // Loopback and tunnels say "unknown" for as long as they are up.
    const std::string state = LineOf(at / "operstate");
    interface.up = state == "up" || state == "unknown";
    interface.mtu = static_cast<int>(NumberOf(at / "mtu"));
    interface.megabits = std::max<int64_t>(0, NumberOf(at / "speed"));  // -1 of a driver: not known
    constexpr int64_t kLoopbackType = 772;                              // ARPHRD_LOOPBACK
    interface.loopback = NumberOf(at / "type") == kLoopbackType;
    interface.addresses = addresses[name];
    interfaces.push_back(std::move(interface));
  }
  return interfaces;
}

// "0000:0000:0000:0000:0000:ffff:0a00:0001": an IPv4 address in IPv6's form.
bool IsIpv4Gid(const std::string& gid) { return gid.starts_with("0000:0000:0000:0000:0000:ffff:"); }

int RoceV2Gid(const fs::path& port) {
  std::vector<int> found;
  for (const std::string& name : NamesIn(port / "gids")) {
    if (!IsIpv4Gid(LineOf(port / "gids" / name))) continue;
    if (LineOf(port / "gid_attrs" / "types" / name) != "RoCE v2") continue;
    found.push_back(std::atoi(name.c_str()));
  }
  return found.empty() ? -1 : *std::min_element(found.begin(), found.end());
}

// "mlx5_0" of the uverbs nodes that are there.
std::vector<std::string> DevicesWithNode(const fs::path& root) {
  std::vector<std::string> devices;
  const fs::path verbs = root / "sys/class/infiniband_verbs";
  for (const std::string& name : NamesIn(verbs)) {
    std::error_code error;
    if (!fs::exists(root / "dev/infiniband" / name, error)) continue;
    devices.push_back(LineOf(verbs / name / "ibdev"));
  }
  return devices;
}

std::vector<RdmaPort> RdmaPortsIn(const fs::path& root) {
  const fs::path folder = root / "sys/class/infiniband";
  const std::vector<std::string> usable = DevicesWithNode(root);
  std::vector<RdmaPort> ports;
  for (const std::string& device : NamesIn(folder)) {
    for (const std::string& number : NamesIn(folder / device / "ports")) {
      const fs::path at = folder / device / "ports" / number;
      RdmaPort port;
      port.device = device;
      port.port = std::atoi(number.c_str());
      const std::string state = LineOf(at / "state");  // "4: ACTIVE"
      const size_t colon = state.find(": ");
      port.state = colon == std::string::npos ? state : state.substr(colon + 2);
      std::ifstream(at / "rate") >> port.gigabits;  // "100 Gb/sec (4X EDR)"
      port.link_layer = LineOf(at / "link_layer");
      port.usable = std::find(usable.begin(), usable.end(), device) != usable.end();
      if (port.link_layer == "Ethernet") port.roce_v2_gid = RoceV2Gid(at);
      ports.push_back(std::move(port));
    }
  }
  return ports;
}

}  // namespace

NetworkState QueryNetworkState(const fs::path& root) {
  NetworkState state;
  char name[HOST_NAME_MAX + 1] = "";
  if (gethostname(name, sizeof name - 1) == 0) state.host_name = name;
  state.interfaces = InterfacesIn(root / "sys/class/net");
  state.rdma = RdmaPortsIn(root);
  std::ifstream range(root / "proc/sys/net/ipv4/ip_local_port_range");
  if (!(range >> state.first_free_port >> state.last_free_port)) {
    state.first_free_port = state.last_free_port = 0;
  }
  return state;
}

std::string InterfaceOfAddress(const std::string& address) {
  for (const auto& [interface, addresses] : OwnAddresses()) {
    if (std::find(addresses.begin(), addresses.end(), address) != addresses.end()) {
      return interface;
    }
  }
  return "";
}

bool HasVerbsLibrary() {
  // Never closed: verbs' providers keep threads and handlers of their own.
  return dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL) != nullptr ||
         dlopen("libibverbs.so", RTLD_NOW | RTLD_LOCAL) != nullptr;
}

namespace {

struct Destination {
  int family = AF_UNSPEC;
  std::array<uint8_t, 16> bytes{};
  size_t size = 0;
};

std::optional<Destination> DestinationOf(const std::string& address) {
  Destination to;
  const std::string digits = address.substr(0, address.find('%'));
  if (inet_pton(AF_INET, digits.c_str(), to.bytes.data()) == 1) {
    to.family = AF_INET;
    to.size = 4;
    return to;
  }
  if (inet_pton(AF_INET6, digits.c_str(), to.bytes.data()) != 1) return std::nullopt;
  to.family = AF_INET6;
  to.size = 16;
  return to;
}

std::string DigitsOf(int family, const void* bytes) {
  char text[INET6_ADDRSTRLEN] = "";
  return inet_ntop(family, bytes, text, sizeof text) == nullptr ? "" : text;
}

}  // namespace

std::optional<Route> RouteTo(const std::string& address) {
  const std::optional<Destination> to = DestinationOf(address);
  if (!to) return std::nullopt;
  // rtnetlink(7): RTM_GETROUTE with a destination asks for the route that a packet would take.
  struct {
    nlmsghdr header{};
    rtmsg route{};
    char attributes[RTA_SPACE(16)]{};
  } request;
  request.header.nlmsg_type = RTM_GETROUTE;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.route.rtm_family = static_cast<unsigned char>(to->family);
  request.route.rtm_dst_len = static_cast<unsigned char>(to->size * 8);
  rtattr attribute{};
  attribute.rta_type = RTA_DST;
  attribute.rta_len = static_cast<unsigned short>(RTA_LENGTH(to->size));
  std::memcpy(request.attributes, &attribute, sizeof attribute);
  std::memcpy(request.attributes + RTA_LENGTH(0), to->bytes.data(), to->size);
  request.header.nlmsg_len =
      static_cast<uint32_t>(NLMSG_LENGTH(sizeof(rtmsg)) + RTA_SPACE(to->size));
  const UniqueFd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!socket || send(socket.get(), &request, request.header.nlmsg_len, 0) < 0) return std::nullopt;
  alignas(nlmsghdr) char buffer[8192];
  const ssize_t got = recv(socket.get(), buffer, sizeof buffer, 0);
  const auto* answer = reinterpret_cast<const nlmsghdr*>(buffer);
  if (got < 0 || !NLMSG_OK(answer, static_cast<uint32_t>(got)) ||
      answer->nlmsg_type != RTM_NEWROUTE) {
    return std::nullopt;
  }
  Route route;
  auto left = static_cast<int>(answer->nlmsg_len - NLMSG_LENGTH(sizeof(rtmsg)));
  const auto* at = reinterpret_cast<const rtattr*>(
      reinterpret_cast<const char*>(NLMSG_DATA(answer)) + NLMSG_ALIGN(sizeof(rtmsg)));
  for (; RTA_OK(at, left); at = RTA_NEXT(at, left)) {
    if (at->rta_type == RTA_OIF) {
      int index = 0;
      std::memcpy(&index, RTA_DATA(at), sizeof index);
      char name[IF_NAMESIZE] = "";
      if (if_indextoname(static_cast<unsigned>(index), name) != nullptr) route.interface = name;
    } else if (at->rta_type == RTA_PREFSRC) {
      route.source = DigitsOf(to->family, RTA_DATA(at));
    } else if (at->rta_type == RTA_GATEWAY) {
      route.gateway = DigitsOf(to->family, RTA_DATA(at));
    }
  }
  if (route.interface.empty()) return std::nullopt;
  return route;
}

}  // namespace zeroplan
