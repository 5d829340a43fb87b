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

// The network between hosts. `where` follows what was run in each reference.
NetworkProfile MeasuredNetwork(const NetworkMeasurement& measurement, const std::string& where);

// A GPU that no built-in profile describes, from what the runtime says and what was measured.

// "hopper" of 9.0; "" of one that is not known.
std::string ArchitectureOf(int compute_major, int compute_minor);

// Name, memory, clocks and peaks, all "derived" with a note of how. Throws Error(kUsage) for an
// architecture that profiles do not know.
GpuProfile GpuOfProperties(const DeviceProperties& device, const KernelRates& measured);

// The link between GPUs, guessed from what the largest all-gather reached; without one, PCIe.
void PutDerivedLink(const MachineMeasurement& measurement, NodeProfile& node);

}  // namespace zeroplan
