// Interfaces and RDMA devices, from folders that look as the kernel's, and this kernel's routes.
#include "machine/network_state.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "tests/machine/fake_root.h"

namespace zeroplan {
namespace {

struct PlantedPort {
  const char *device, *state, *rate, *layer;
};

void Plant(const FakeRoot& root, const PlantedPort& port) {
  const std::string at = std::string("sys/class/infiniband/") + port.device + "/ports/1/";
  root.Write(at + "state", port.state);
  root.Write(at + "rate", port.rate);
  root.Write(at + "link_layer", port.layer);
}

TEST_CASE("interfaces: what the kernel says of each, and nothing where it says nothing") {
  const FakeRoot root("0::/\n");
  root.Write("sys/class/net/eth7/operstate", "up\n");
  root.Write("sys/class/net/eth7/mtu", "9000\n");
  root.Write("sys/class/net/eth7/speed", "100000\n");
  root.Write("sys/class/net/eth8/operstate", "down\n");
  root.Write("sys/class/net/eth8/speed", "-1\n");
  root.Write("sys/class/net/lo/operstate", "unknown\n");
  root.Write("sys/class/net/lo/type", "772\n");
  root.Write("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
  const NetworkState state = QueryNetworkState(root.path());
  REQUIRE(state.interfaces.size() == 3);
  CHECK(state.interfaces[0].name == "eth7");
  CHECK(state.interfaces[0].up);
  CHECK(state.interfaces[0].mtu == 9000);
  CHECK(state.interfaces[0].megabits == 100'000);
  CHECK_FALSE(state.interfaces[0].loopback);
  CHECK_FALSE(state.interfaces[1].up);
  CHECK(state.interfaces[1].mtu == 0);
  CHECK(state.interfaces[1].megabits == 0);
  CHECK(state.interfaces[2].loopback);
  CHECK(state.interfaces[2].up);
  CHECK(state.first_free_port == 32768);
  CHECK(state.last_free_port == 60999);
  CHECK(state.rdma.empty());
}

TEST_CASE("RDMA devices: state, rate, link layer, a node to use them by, RoCE v2's GID") {
  const FakeRoot root("0::/\n");
  Plant(root, {"mlx5_0", "4: ACTIVE\n", "400 Gb/sec (4X NDR)\n", "InfiniBand\n"});
  Plant(root, {"mlx5_1", "1: DOWN\n", "10 Gb/sec (4X SDR)\n", "InfiniBand\n"});
  Plant(root, {"mlx5_2", "4: ACTIVE\n", "100 Gb/sec (4X EDR)\n", "Ethernet\n"});
  root.Write("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
  root.Write("sys/class/infiniband_verbs/uverbs2/ibdev", "mlx5_2\n");
  root.Write("dev/infiniband/uverbs0", "");
  const std::string roce = "sys/class/infiniband/mlx5_2/ports/1/";
  const auto gid = [&](const std::string& index, const char* value, const char* type) {
    root.Write(roce + "gids/" + index, value);
    root.Write(roce + "gid_attrs/types/" + index, type);
  };
  gid("0", "fe80:0000:0000:0000:0a00:27ff:fe00:0001\n", "IB/RoCE v1\n");
  gid("1", "fe80:0000:0000:0000:0a00:27ff:fe00:0001\n", "RoCE v2\n");
  gid("2", "0000:0000:0000:0000:0000:ffff:0a00:0001\n", "IB/RoCE v1\n");
  gid("3", "0000:0000:0000:0000:0000:ffff:0a00:0001\n", "RoCE v2\n");
  gid("10", "0000:0000:0000:0000:0000:ffff:0a00:0002\n", "RoCE v2\n");
  const std::vector<RdmaPort> ports = QueryNetworkState(root.path()).rdma;
  REQUIRE(ports.size() == 3);
  CHECK(ports[0].device == "mlx5_0");
  CHECK(ports[0].port == 1);
  CHECK(ports[0].state == "ACTIVE");
  CHECK(ports[0].gigabits == 400);
  CHECK(ports[0].link_layer == "InfiniBand");
  CHECK(ports[0].usable);
  CHECK(ports[0].roce_v2_gid == -1);
  CHECK(ports[1].state == "DOWN");
  CHECK_FALSE(ports[1].usable);
  CHECK_FALSE(ports[2].usable);  // its node is not in this container
  CHECK(ports[2].roce_v2_gid == 3);
}

TEST_CASE("the kernel's route to this host is loopback's, and to no address there is none") {
  const auto route = RouteTo("127.0.0.1");
  REQUIRE(route);
  CHECK(route->interface == "lo");
  CHECK(route->source == "127.0.0.1");
  CHECK(route->gateway.empty());
  CHECK(InterfaceOfAddress("127.0.0.1") == "lo");
  CHECK(InterfaceOfAddress("192.0.2.1").empty());  // of documentation (RFC 5737)
  CHECK_FALSE(RouteTo("node1"));
  CHECK_FALSE(RouteTo(""));
}

}  // namespace
}  // namespace zeroplan
