// Puts a measurement into a hardware profile.
#pragma once

#include <optional>
#include <string>

#include "executor/measure/measurement.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

// The machine as measured. What was not measured is `base`'s, with base's sources; without a base
// it is derived from what the runtime says of the GPU, and the reference says how. Numbers have
// four digits. Whether the figures go together is the loader's to check.
// REQUIRES: a base, or measured device, PCIe and runtime.
HardwareProfile MeasuredProfile(const std::optional<HardwareProfile>& base,
                                const MachineMeasurement& measurement, const std::string& name);

}  // namespace zeroplan
