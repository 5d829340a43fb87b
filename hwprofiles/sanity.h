// Figures of a profile that are each possible but contradict each other.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "hwprofiles/profile.h"

namespace zeroplan {

struct Contradiction {
  std::string key;
  std::string message;  // value, reason, and the fix
};

// The architecture of a profile whose "GPUs" are ranks that run on the CPU: `hw measure --backend
// cpu`. They compute in fp32, one instruction after another, and communicate through Gloo.
inline constexpr std::string_view kCpuArchitecture = "cpu";

// Dense matmul FLOP of one SM in one clock, plain for kF32. 0 for an unknown architecture, or one
// that lacks matmuls of that dtype.
double DenseFlopsPerClock(std::string_view architecture, Dtype dtype);
// 90 for 9.0; 0 for an unknown architecture.
int ComputeCapability(std::string_view architecture);

std::optional<Contradiction> FindContradiction(const HardwareProfile& profile);

}  // namespace zeroplan
