// Two GPUs as two hosts, which NCCL joins by sockets.
#include <doctest/doctest.h>

#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "hwprofiles/loader.h"
#include "tests/free_port.h"
#include "tests/multi_gpu/gpu_training.h"

namespace zeroplan {
namespace {

// The devices of this process, as CUDA_VISIBLE_DEVICES has them.
std::vector<std::string> Devices() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::istringstream in(visible == nullptr ? "0,1" : visible);
  std::vector<std::string> devices;
  for (std::string device; std::getline(in, device, ',');) devices.push_back(device);
  return devices;
}

TEST_CASE("hw measure on two hosts: the first one's figures and the network between them") {
  const TrainingFolder folder;
  const std::vector<std::string> devices = Devices();
  REQUIRE(devices.size() >= 2);
  const std::string profile = folder.path("hosts.json"), port = std::to_string(FreePort());
  std::vector<std::unique_ptr<GpuTraining>> ranks;
  for (const int rank : {0, 1}) {
    const std::string own = std::to_string(rank);
    ranks.push_back(std::make_unique<GpuTraining>(
        "hw measure --quick --only runtime,network -o " + profile, folder.path("log" + own),
        "ZEROPLAN_WORLD_SIZE=2 ZEROPLAN_LOCAL_RANK=0 ZEROPLAN_LOCAL_WORLD_SIZE=1 "
        "ZEROPLAN_ADDRESS=127.0.0.1 NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo "
        "ZEROPLAN_PORT=" +
            port + " ZEROPLAN_RANK=" + own + " NCCL_HOSTID=host" + own +
            " CUDA_VISIBLE_DEVICES=" + devices[static_cast<size_t>(rank)]));
  }
  for (const auto& rank : ranks) {
    const int code = rank->Wait();
    CAPTURE(rank->output());
    CHECK(code == 0);
  }
  const HardwareProfile read = LoadProfile(profile);
  CHECK(read.node.gpus.value == 1);
  REQUIRE(read.network);
  CHECK(read.network->name == "between these hosts");
  CHECK(read.network->bandwidth_per_node.source == FigureSource::kMeasured);
  // Sockets of one host: far from what peer access gives, far above a slow network's.
  CHECK(read.network->bandwidth_per_node.value > 0.1e9);
  CHECK(read.network->bandwidth_per_node.value < 60e9);
  CHECK(read.network->latency.value > 1e-6);
  CHECK(read.network->latency.value < 10e-3);
  REQUIRE(read.runtime.size() == 2);  // of one rank and of both hosts' two
  CHECK(read.runtime[1].world_size == 2);
}

}  // namespace
}  // namespace zeroplan
