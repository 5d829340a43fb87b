// What plans of zeroplan's own executor say of how sure their time is.
#include <doctest/doctest.h>

#include "hwprofiles/loader.h"
#include "planner/cluster.h"
#include "planner/estimate/estimate.h"
#include "planner/runtimes/runtimes.h"

namespace zeroplan {
namespace {

std::string MarginOf(const HardwareProfile& hardware, int gpus, double compute, double exposed) {
  ChoiceEstimate choice;
  choice.time.compute_seconds = compute;
  choice.time.exposed_comm_seconds = exposed;
  Cluster cluster;
  cluster.gpus = gpus;
  cluster.gpus_per_node = 8;
  const std::vector<std::string> cautions = OwnExecutor().Cautions(choice, cluster, hardware);
  REQUIRE(cautions.size() == 1);
  return cautions.front();
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("the margin is that of where the profile's figures come from") {
  HardwareProfile h200 = LoadProfile("hgx-h200");
  CHECK(Has(MarginOf(h200, 8, 1, 0.1), "With the built-in profile of an H200, 114 random runs"));
  h200.source = "mine.json";
  CHECK(Has(MarginOf(h200, 8, 1, 0.1), "'zeroplan hw measure' made on the same machine"));
  CHECK(Has(MarginOf(LoadProfile("dgx-h100"), 8, 1, 0.1), "own executor were not"));
  const std::string a100 = MarginOf(LoadProfile("dgx-a100-80gb"), 8, 1, 0.1);
  CHECK(Has(a100, "taken over from an H200"));
  CHECK(!Has(a100, "Across nodes"));
}

TEST_CASE("across nodes it says that nothing was measured, and names first what most rests on") {
  const HardwareProfile hardware = LoadProfile("dgx-a100-80gb");
  const std::string network = MarginOf(hardware, 64, 1, 3);
  CHECK(Has(network, "Across nodes it was not measured at all"));
  CHECK(Has(network, "network.reached in a profile says what yours do"));
  CHECK(Has(network, "The time rests most on what the network reaches, then rates of kernels"));
  CHECK(
      Has(MarginOf(hardware, 64, 3, 1),
          "The time rests most on rates of kernels taken over from an H200, then what the network "
          "reaches, then GPUs that differ by 2.5 % in speed"));
}

}  // namespace
}  // namespace zeroplan
