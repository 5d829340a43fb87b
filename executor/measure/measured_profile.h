// Puts a measurement into a hardware profile.
#pragma once

#include <optional>
#include <string>

#include "executor/measure/measurement.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

// The machine as measured. Figures that were not measured are `base`'s, with base's sources;
// without a base they are derived from the runtime's properties of the GPU, and the reference
// explains how. Numbers have four digits. The loader checks whether the figures agree. REQUIRES: a
// base, or measured device, PCIe and runtime.
HardwareProfile MeasuredProfile(const std::optional<HardwareProfile>& base,
                                const MachineMeasurement& measurement, const std::string& name);

// The network between hosts. `where` is appended to each reference.
NetworkProfile MeasuredNetwork(const NetworkMeasurement& measurement, const std::string& where);

// A GPU that no built-in profile describes, from the runtime's properties and measurements.

// "hopper" for 9.0; "" for an unknown one.
std::string ArchitectureOf(int compute_major, int compute_minor);

// Name, memory, clocks and peaks, all "derived" with an explanation. Throws Error(kUsage) for an
// architecture unknown to profiles.
GpuProfile GpuOfProperties(const DeviceProperties& device, const KernelRates& measured);

// Sets the link between GPUs, guessed from the rate of the largest all-gather; without one, PCIe.
void PutDerivedLink(const MachineMeasurement& measurement, NodeProfile& node);

}  // namespace zeroplan
