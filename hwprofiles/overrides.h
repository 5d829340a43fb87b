// What a command line changes of a profile.
#pragma once

#include <string>

#include "hwprofiles/profile.h"

namespace zeroplan {

// --network: a built-in network ("eth-25", "ib-8x400") or what one node sends over all its adapters
// in each direction ("25Gb", "100Gb/s", "8x400Gb", "12.5GB/s"). A rate keeps the latency of the
// profile's network; without one, it takes that of "eth-10" (TCP), the slower assumption. Throws
// Error(kUsage).
void ApplyNetwork(HardwareProfile& profile, const std::string& text);

// --intra-node-bandwidth: what one GPU sends to the others of its node, each direction ("300GB/s",
// "200Gb/s"). Replaces gpu_link and drops the profile's measured collectives: they were measured
// over another link and would hide the new one. What overlap costs stays. Throws Error(kUsage).
void ApplyGpuLink(HardwareProfile& profile, const std::string& text);

}  // namespace zeroplan
