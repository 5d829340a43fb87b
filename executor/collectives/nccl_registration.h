// Whether NCCL gets to know the device arena, which lets its collectives reach other ranks' arenas
// directly.
#pragma once

#include <cstdint>
#include <string_view>

namespace zeroplan {

enum class NcclRegistration : uint8_t {
  kOff,
  kWindows,  // the arena is a symmetric window of both communicators
  kZeroCta   // and gathers are done by the GPU's copy engines, which leaves all SMs to kernels
};

inline constexpr NcclRegistration kDefaultNcclRegistration = NcclRegistration::kOff;

// The variable that chooses, and its words in the order of the enum.
inline constexpr const char* kNcclRegistrationVariable = "ZEROPLAN_NCCL_REGISTRATION";
inline constexpr std::string_view kNcclRegistrationWords[] = {"off", "window", "zero-cta"};

constexpr std::string_view NcclRegistrationWord(NcclRegistration registration) {
  return kNcclRegistrationWords[static_cast<size_t>(registration)];
}

}  // namespace zeroplan
