// Figures of a profile that are each possible but not together.
#pragma once

#include <optional>
#include <string>

#include "hwprofiles/profile.h"

namespace zeroplan {

struct Contradiction {
  std::string key;
  std::string message;  // value, why it cannot be, and the fix
};

std::optional<Contradiction> FindContradiction(const HardwareProfile& profile);

}  // namespace zeroplan
