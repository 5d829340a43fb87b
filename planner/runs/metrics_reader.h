// Reads back the output of 'zeroplan train --metrics', as far as predictions are compared with it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/program/program.h"
#include "core/settings/zero_config.h"
#include "planner/plan/plan_file.h"

namespace zeroplan {

struct MeasuredRun {
  std::string source;  // the file's name
  // From the plan.
  std::string model;
  uint64_t params = 0;
  TrainSetup
      // setup of `program`; without it the setup in the event's "plan", the rest at its default
      setup;
  std::array<uint64_t, kSpaces> planned_bytes{};  // one rank's arenas
  // Older files lack both.
  std::optional<ProgramRecord> program;
  std::optional<int> gpus_per_node;

  // Medians over `steps` steps, after `warm_up` steps that are left out.
  int64_t steps = 0, warm_up = 0;
  double step_seconds = 0, tokens_per_second = 0;
  std::optional<double> exposed_comm_seconds, exposed_offload_seconds;
  std::optional<double> device_used_bytes;
};

// The last run in `text` (a resumed file has several). Throws Error(kUsage) "SOURCE:LINE: ..." if
// `text` is no metrics file, for a run without steps, and for one planned for the CPU.
MeasuredRun ReadMetrics(std::string_view text, const std::string& source);

}  // namespace zeroplan
