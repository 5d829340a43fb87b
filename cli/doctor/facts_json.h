// What processes that doctor starts hand back to it (facts.cc), as JSON.
#pragma once

#include <optional>
#include <string>

#include "cli/doctor/facts.h"
#include "machine/gpu_state.h"

namespace zeroplan {

// All that facts.h has from NVIDIA's driver.
struct DriverFacts {
  GpuStates gpus;
  ProfileFacts profile;
};

// One line each: of the executor's libraries, which it prints itself, and of the driver.
std::string LibrariesAsJson(const LibraryFacts& facts);
std::string DriverAsJson(const DriverFacts& facts);
// Reads `output`'s last line; nothing if that is not one of these.
std::optional<LibraryFacts> LibrariesFromJson(const std::string& output);
std::optional<DriverFacts> DriverFromJson(const std::string& output);

}  // namespace zeroplan
