// Measured runs beside what a hardware profile predicts for them, as a Markdown table.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/model/model_spec.h"
#include "core/program/program.h"
#include "hwprofiles/profile.h"
#include "planner/estimate/estimate.h"
#include "planner/runs/metrics_reader.h"

namespace zeroplan {

struct Comparison {
  MeasuredRun run;
  ChoiceEstimate predicted;
  bool same_program = true;  // its arenas are the run's, to the byte
};

// Lowers the run's choice for `model`. Settings that metrics do not hold are zeroplan's own, with
// or without checkpoints, whichever gives the run's arenas. Throws Error(kUsage) if the model has
// another number of parameters than the run's.
Comparison Compare(const MeasuredRun& run, const ModelSpec& model, const HardwareProfile& hardware);
// The same with the program at hand.
Comparison CompareProgram(const MeasuredRun& run, const Program& program,
                          const HardwareProfile& hardware);

// Errors are predicted / measured - 1.
std::string PredictionTable(const std::vector<Comparison>& rows, const HardwareProfile& hardware);

}  // namespace zeroplan
