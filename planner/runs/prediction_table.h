// Measured runs beside what a hardware profile predicts for them, as a table.
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

// How far a prediction is about the program that ran. Metrics that hold the program's fingerprint
// tell; of older ones the arenas' sizes do.
enum class SameProgram : uint8_t { kYes, kOtherArenas, kOtherFingerprint };

struct Comparison {
  MeasuredRun run;
  ChoiceEstimate predicted;
  SameProgram same = SameProgram::kYes;
  uint64_t fingerprint = 0;  // of the program that is predicted
};

// Lowers the run's program again and predicts it. `model`: where the run's metrics do not hold what
// it was lowered from, its model; else it need not be given. Throws Error(kUsage) if `model` has
// another number of parameters than the run's.
Comparison Compare(const MeasuredRun& run, const std::optional<ModelSpec>& model,
                   const HardwareProfile& hardware);
// The same with the program at hand.
Comparison CompareProgram(const MeasuredRun& run, const Program& program,
                          const HardwareProfile& hardware);

// In Markdown. Errors are predicted / measured - 1.
std::string PredictionTable(const std::vector<Comparison>& rows, const HardwareProfile& hardware);
// The same for people, as wide as the page (PageColumns): columns that there is no room for are
// left out, and a line says which.
std::string PredictionText(const std::vector<Comparison>& rows, const HardwareProfile& hardware);

}  // namespace zeroplan
