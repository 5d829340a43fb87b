// Figures of a profile that are each possible but not together.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "hwprofiles/profile.h"

namespace zeroplan {

struct Contradiction {
  std::string key;
  std::string message;  // value, why it cannot be, and the fix
};

// The architecture of a profile whose "GPUs" are ranks that run on the CPU: `hw measure --backend
// cpu`. They compute in fp32, one instruction after another, and reach one another through Gloo.
inline constexpr std::string_view kCpuArchitecture = "cpu";

// Dense FLOP of one SM in one clock: of matrix products, plain for kF32. 0 for an architecture that
// is not known, or has no products of that dtype.
double DenseFlopsPerClock(std::string_view architecture, Dtype dtype);
// 90 for 9.0; 0 for an architecture that is not known.
int ComputeCapability(std::string_view architecture);

std::optional<Contradiction> FindContradiction(const HardwareProfile& profile);

}  // namespace zeroplan
