// The number of a node's NVMe drives.
#include <doctest/doctest.h>

#include "core/base/error.h"
#include "hwprofiles/loader.h"

namespace zeroplan {
namespace {

TEST_CASE("drives are as many times one of the profile's") {
  const NodeProfile two = LoadProfile("2x-rtx6000-ada").node;
  REQUIRE(two.nvme_drives->value == 2);
  HardwareProfile profile = LoadProfile("2x-rtx6000-ada");
  ApplyNvmeDrives(profile, 4);
  CHECK(profile.node.nvme_read->value == 2 * two.nvme_read->value);
  CHECK(profile.node.nvme_read->written == 2 * two.nvme_read->written);
  CHECK(profile.node.nvme_write->value == 2 * two.nvme_write->value);
  CHECK(profile.node.nvme_capacity->value == 2 * two.nvme_capacity->value);
  CHECK(profile.node.nvme_drives->value == 4);
  CHECK(profile.node.nvme_write->source == FigureSource::kDerived);
  CHECK(profile.node.nvme_write->reference.find("of 2 drives") != std::string::npos);
  // As many as the profile has change nothing of its figures.
  profile = LoadProfile("2x-rtx6000-ada");
  ApplyNvmeDrives(profile, 2);
  CHECK(profile.node.nvme_read == two.nvme_read);
  CHECK(profile.node.nvme_capacity == two.nvme_capacity);
  // Without a number it is one, and what is not known of it stays so.
  profile.node.nvme_drives.reset();
  profile.node.nvme_capacity.reset();
  ApplyNvmeDrives(profile, 3);
  CHECK(profile.node.nvme_read->value == 3 * two.nvme_read->value);
  CHECK_FALSE(profile.node.nvme_capacity.has_value());
  CHECK(profile.node.nvme_read->reference.find("does not say of how many") != std::string::npos);
  CHECK_THROWS_WITH_AS(ApplyNvmeDrives(profile, 200), doctest::Contains("use 83 or less"), Error);
  profile.node.nvme_write.reset();
  CHECK_THROWS_WITH_AS(ApplyNvmeDrives(profile, 2), doctest::Contains("no rates of a disk"), Error);
}

TEST_CASE("every built-in machine with a disk says how many drives it has") {
  for (const std::string& name : ProfileNames()) {
    INFO(name);
    const NodeProfile node = LoadProfile(name).node;
    CHECK(node.nvme_drives.has_value() == node.nvme_read.has_value());
  }
}

}  // namespace
}  // namespace zeroplan
