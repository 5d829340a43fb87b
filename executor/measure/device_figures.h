// A GPU that no built-in profile describes, from what the runtime says and what was measured.
#pragma once

#include <string>

#include "executor/measure/measurement.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

// "hopper" of 9.0; "" of one that is not known.
std::string ArchitectureOf(int compute_major, int compute_minor);

// Name, memory, clocks and peaks, all "derived" with a note of how. Throws Error(kUsage) for an
// architecture that profiles do not know.
GpuProfile GpuOfProperties(const DeviceProperties& device, const KernelRates& measured);

// The link between GPUs, guessed from what the largest all-gather reached; without one, PCIe.
void PutDerivedLink(const MachineMeasurement& measurement, NodeProfile& node);

}  // namespace zeroplan
