// What plan is asked, and what is written where.
#pragma once

#include <string>

#include "cli/common/command.h"
#include "planner/request/resolved.h"

namespace zeroplan {

struct PlanOptions : PlanRequest {
  std::string deepspeed_file, plan_file, trace_file, report_file;
  bool explain = false;
  Given<OutputFormat> output_format;

  bool as_json() const { return output_format == OutputFormat::kJson; }
};

}  // namespace zeroplan
