// The measured matmuls that determine a kernel's time.
#pragma once

#include <optional>

#include "core/program/kernel.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

// Nothing for a kernel that is no matmul.
inline std::optional<GemmKind> ProductKind(CostKind cost) {
  switch (cost) {
    case CostKind::kForwardProduct:
      return GemmKind::kForward;
    case CostKind::kDataProduct:
      return GemmKind::kData;
    case CostKind::kWeightProduct:
      return GemmKind::kWeight;
    default:
      return std::nullopt;
  }
}

}  // namespace zeroplan
