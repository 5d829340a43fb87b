// From the options of estimate to the choices whose memory and time are estimated.
#pragma once

#include "cli/common/resolve.h"
#include "cli/runtime_estimate.h"
#include "planner/estimate/estimate.h"

namespace zeroplan {

// All options but those of what is written where. What is given must outlive `command`.
void AddEstimateInputs(Command& command, CommonOptions& common, RuntimeOptions& runtime);

// Everything that an estimate of zeroplan's own runtime needs, with the cost model it points to.
class EstimateRequest {
 public:
  // Throws Error(kUsage) naming the option or the config's line.
  EstimateRequest(const CommonOptions& common, Assumptions& assumptions);
  EstimateRequest(const EstimateRequest&) = delete;
  EstimateRequest& operator=(const EstimateRequest&) = delete;

  const EstimateInputs& inputs() const { return inputs_; }
  const HardwareProfile& hardware() const { return hardware_; }

 private:
  HardwareProfile hardware_;
  EstimateInputs inputs_;
  std::optional<CostModel> costs_;
};

}  // namespace zeroplan
