// The typed results from their JSON, which is the command line's (docs/metrics.md): one writer for
// both.
#pragma once

#include <zeroplan/zeroplan.h>

#include <string_view>

namespace zeroplan {

// REQUIRES: text that ReportJson has written. `assumed`, `notes` and `json` are left empty.
v1::Estimate ReadEstimate(std::string_view json);
// REQUIRES: text that WritePlanReport has written. `training`, `largest` and `json` are left empty.
v1::Plan ReadPlanReport(std::string_view json);

}  // namespace zeroplan
