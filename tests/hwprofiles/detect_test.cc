// Detection with names fed in: what drivers say, what machines come of it.
#include "hwprofiles/detect.h"

#include <doctest/doctest.h>

#include <cstdlib>

#include "core/base/error.h"
#include "hwprofiles/loader.h"

namespace zeroplan {
namespace {

constexpr double kMib = 1024.0 * 1024;

TEST_CASE("the driver's names find the built-in GPUs") {
  const struct {
    DetectedGpu gpu;
    const char* part;
  } cases[] = {
      {{"Tesla V100-SXM3-32GB", 32510 * kMib}, "v100-32gb-sxm3"},
      {{"NVIDIA A100-SXM4-40GB", 40960 * kMib}, "a100-40gb-sxm"},
      {{"A100-SXM4-40GB", 40537 * kMib}, "a100-40gb-sxm"},
      {{"NVIDIA A100-SXM4-80GB", 81920 * kMib}, "a100-80gb-sxm"},
      {{"NVIDIA H100 80GB HBM3", 81559 * kMib}, "h100-80gb-sxm"},
      {{"NVIDIA H200", 143771 * kMib}, "h200-141gb-sxm"},
      {{"NVIDIA B200", 183359 * kMib}, "b200-180gb-sxm"},
      {{"NVIDIA L40S", 46068 * kMib}, "l40s"},
      {{"NVIDIA GeForce RTX 3090", 24576 * kMib}, "rtx3090"},
      {{"NVIDIA GeForce RTX 4090", 24564 * kMib}, "rtx4090"},
      // Kin that is another card, and a slice of one.
      {{"NVIDIA GeForce RTX 3090 Ti", 24564 * kMib}, ""},
      {{"NVIDIA GeForce RTX 4090 Laptop GPU", 16376 * kMib}, ""},
      {{"NVIDIA H100 PCIe", 81559 * kMib}, ""},
      {{"NVIDIA GeForce RTX 4090", 49140 * kMib}, ""},
      {{"", 0}, ""},
  };
  for (const auto& known : cases) {
    INFO(known.gpu.name);
    CHECK(MatchGpu(known.gpu) == known.part);
  }
}

TEST_CASE("as many as a built-in machine has: that machine, with this host's memory and cores") {
  const std::vector<DetectedGpu> gpus(8, {"NVIDIA H200", 143771 * kMib});
  const DetectedMachine machine = MatchMachine(gpus, {2e12, 96});
  REQUIRE(machine.profile.has_value());
  CHECK(machine.profile->name == "hgx-h200");
  CHECK(machine.found == "8 x NVIDIA H200");
  CHECK(machine.note.empty());
  CHECK(machine.profile->node.host_memory.value == 2e12);
  CHECK(machine.profile->node.cores.value == 96);
  CHECK(machine.profile->node.cores.source == FigureSource::kMeasured);
  CHECK(machine.profile->node.collectives == LoadProfile("hgx-h200").node.collectives);
  // What is not known of the host stays the profile's.
  CHECK(MatchMachine(gpus, {}).profile->node.host_memory ==
        LoadProfile("hgx-h200").node.host_memory);
}

TEST_CASE("another number: the GPU in this host") {
  const DetectedMachine one = MatchMachine({{"NVIDIA GeForce RTX 4090", 24564 * kMib}}, {64e9, 12});
  REQUIRE(one.profile.has_value());
  CHECK(one.profile->name == "rtx4090");
  CHECK(one.profile->node.gpus.value == 1);
  CHECK(one.profile->node.host_memory.value == 64e9);
  const DetectedMachine three =
      MatchMachine(std::vector<DetectedGpu>(3, {"NVIDIA GeForce RTX 4090", 24564 * kMib}), {});
  CHECK(three.profile->name == "3x-rtx4090");
  CHECK(three.profile->node.gpus.value == 3);
  CHECK(three.profile->gpu == LoadProfile("rtx4090").gpu);
}

TEST_CASE("what is not known is said, not guessed") {
  const DetectedMachine unknown = MatchMachine({{"NVIDIA T4000", 20e9}}, {});
  CHECK(!unknown.profile.has_value());
  CHECK(unknown.note.find("NVIDIA T4000") != std::string::npos);
  CHECK(unknown.note.find("20 GB") != std::string::npos);
  const DetectedMachine mixed = MatchMachine(
      {{"NVIDIA GeForce RTX 4090", 24564 * kMib}, {"NVIDIA GeForce RTX 3090", 24576 * kMib}}, {});
  CHECK(!mixed.profile.has_value());
  CHECK(mixed.note.find("4090") != std::string::npos);
  CHECK(mixed.note.find("3090") != std::string::npos);
}

TEST_CASE("the host answers, and the environment switches detection off") {
  const DetectedHost host = QueryHost();
  CHECK(host.memory_bytes > 1e8);
  CHECK(host.cores >= 1);
  setenv("ZEROPLAN_NO_DETECT", "1", 1);
  CHECK(QueryGpus().empty());
  unsetenv("ZEROPLAN_NO_DETECT");
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  CHECK(QueryGpus().empty());
  unsetenv("CUDA_VISIBLE_DEVICES");
}

}  // namespace
}  // namespace zeroplan
