// How this host is connected: network interfaces, RDMA devices (InfiniBand, RoCE), the kernel's
// route to another host. What 'zeroplan doctor --hosts' looks at.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace zeroplan {

struct NetworkInterface {
  std::string name;  // "eth0"
  bool up = false;
  int mtu = 0;            // bytes; 0: not known
  int64_t megabits = 0;   // per second, as its driver says; 0: not known (virtual ones do not say)
  bool loopback = false;  // reaches this host alone
  std::vector<std::string> addresses;  // of this process's own view, as digits
};

// A port of an RDMA device.
struct RdmaPort {
  std::string device;      // "mlx5_0"
  int port = 0;            // counts from 1
  std::string state;       // "ACTIVE", "DOWN", ...; "": not known
  double gigabits = 0;     // per second; 0: not known
  std::string link_layer;  // "InfiniBand", "Ethernet" (RoCE), or what the driver says
  bool usable = false;     // its node is below /dev/infiniband: containers may lack it
  // Ethernet: index of the GID of RoCE v2 with an IPv4 address; -1: there is none.
  int roce_v2_gid = -1;
};

struct NetworkState {
  std::string host_name;
  std::vector<NetworkInterface> interfaces;  // by name
  std::vector<RdmaPort> rdma;                // by device and port
  // Ports that sockets get that ask for none (net.ipv4.ip_local_port_range), as NCCL's do; 0: not
  // known.
  int first_free_port = 0, last_free_port = 0;
};

// `root`: where proc, sys and dev lie. Addresses and the host's name are those of this process's
// namespaces.
NetworkState QueryNetworkState(const std::filesystem::path& root = "/");

// The interface that has an address, as digits; "": none of this host's.
std::string InterfaceOfAddress(const std::string& address);

// Whether the loader finds libibverbs, without which NCCL uses sockets. Loads it.
bool HasVerbsLibrary();

// How packets to an address leave this host, by the kernel's tables.
struct Route {
  std::string interface;
  std::string source;   // the address that they come from; "": not said
  std::string gateway;  // "": the address is on the interface's own network
};
// nullopt: there is no route, or the kernel does not say. `address`: digits, IPv4 or IPv6.
std::optional<Route> RouteTo(const std::string& address);

}  // namespace zeroplan
