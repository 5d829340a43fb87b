// What zeroplan doctor prints.
#pragma once

#include <string>

#include "cli/doctor/checks.h"

namespace zeroplan {

// "Training on GPUs is possible here (2 GPUs)."
std::string ReadinessText(const Readiness& ready);
std::string DoctorText(const MachineFacts& facts);
// Schema zeroplan.doctor/1 (docs/metrics.md).
std::string DoctorJson(const MachineFacts& facts);

}  // namespace zeroplan
