// What a process that asks NVIDIA's driver hands to the one that started it (facts.cc).
#pragma once

#include <optional>
#include <string>

#include "cli/doctor/facts.h"

namespace zeroplan {

// All that facts.h has from the driver.
struct DriverFacts {
  GpuStates gpus;
  ProfileFacts profile;
};

// One line.
std::string DriverAsJson(const DriverFacts& facts);
// Of `output`'s last line; nothing if that is not one of these.
std::optional<DriverFacts> DriverFromJson(const std::string& output);

}  // namespace zeroplan
