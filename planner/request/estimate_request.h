// From a request to the choices whose memory and time are estimated.
#pragma once

#include <optional>

#include "planner/estimate/estimate.h"
#include "planner/request/resolve.h"

namespace zeroplan {

// Everything that an estimate of zeroplan's own runtime needs, with the cost model it points to.
class ResolvedEstimate {
 public:
  // Throws Error(kUsage) naming the field or the config's line.
  ResolvedEstimate(const Request& request, Assumptions& assumptions);
  ResolvedEstimate(const ResolvedEstimate&) = delete;
  ResolvedEstimate& operator=(const ResolvedEstimate&) = delete;

  const EstimateInputs& inputs() const { return inputs_; }
  const HardwareProfile& hardware() const { return hardware_; }

 private:
  HardwareProfile hardware_;
  EstimateInputs inputs_;
  std::optional<CostModel> costs_;
};

}  // namespace zeroplan
