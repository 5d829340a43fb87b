// The network of this host for 'zeroplan doctor --hosts': network interfaces, RDMA devices
// (InfiniBand, RoCE), the kernel's route to another host.
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
  int mtu = 0;            // bytes; 0: unknown
  int64_t megabits = 0;   // per second, from its driver; 0: unknown (virtual ones do not report it)
  bool loopback = false;  // only reaches this host
  std::vector<std::string> addresses;  // in this process's own view, numeric
};

// A port of an RDMA device.
struct RdmaPort {
  std::string device;      // "mlx5_0"
  int port = 0;            // counts from 1
  std::string state;       // "ACTIVE", "DOWN", ...; "": unknown
  double gigabits = 0;     // per second; 0: unknown
  std::string link_layer;  // "InfiniBand", "Ethernet" (RoCE), or another word of the driver
  bool usable = false;     // its node exists below /dev/infiniband: containers may lack it
  // Ethernet: index of the GID of RoCE v2 with an IPv4 address; -1: there is none.
  int roce_v2_gid = -1;
};

struct NetworkState {
  std::string host_name;
  std::vector<NetworkInterface> interfaces;  // by name
  std::vector<RdmaPort> rdma;                // by device and port
  // Ports of sockets that request none (net.ipv4.ip_local_port_range), as NCCL's do; 0: unknown.
  int first_free_port = 0, last_free_port = 0;
};

// `root`: the folder with proc, sys and dev. Addresses and the host's name are this process's.
NetworkState QueryNetworkState(const std::filesystem::path& root = "/");

// The interface with a numeric address; "": none of this host's.
std::string InterfaceOfAddress(const std::string& address);

// Whether the loader finds libibverbs, without which NCCL uses sockets. Loads it.
bool HasVerbsLibrary();

// The route of packets from this host to an address, from the kernel's tables.
struct Route {
  std::string interface;
  std::string source;   // the packets' source address; "": unknown
  std::string gateway;  // "": the address is on the interface's own network
};
// nullopt: there is no route, or the kernel does not report it. `address`: numeric, IPv4 or IPv6.
std::optional<Route> RouteTo(const std::string& address);

}  // namespace zeroplan
