// Measured runs beside what a hardware profile predicts for them, as a table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/model/model_spec.h"
#include "core/program/program.h"
#include "cost_models/step_time.h"
#include "hwprofiles/profile.h"
#include "planner/estimate/estimate.h"
#include "planner/footprint.h"
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
// The same for people, on a page of so many columns: those of the table that there is no room for
// are left out, and a line says which.
std::string PredictionText(const std::vector<Comparison>& rows, const HardwareProfile& hardware,
                           size_t page_columns);

// The planner's prediction of a run on GPUs, to be compared with measurements.

struct RunPrediction {
  std::string hardware;  // name of the profile
  Footprint footprint;
  // Unset: several hosts, and the profile has no network.
  std::optional<double> step_seconds;
  std::optional<StepTime> step;  // the same by cause
};

// `gpus_per_node`: ranks of one host.
RunPrediction PredictRun(const Program& program, const HardwareProfile& hardware,
                         int gpus_per_node);

// Memory of one GPU, of which `reserve_bytes` stay free.
struct GpuLimit {
  uint64_t bytes = 0, reserve_bytes = 0;
};

// What is short of one GPU's memory.
std::optional<Shortage> GpuShortage(const RunPrediction& prediction, const GpuLimit& limit);

// Throws Error(kNothingFits) if more is predicted than `limit`, which is --gpu-memory's, allows.
void CheckGpuMemory(const RunPrediction& prediction, const GpuLimit& limit);

// FLOP/s of the profile's GPU without sparsity; unset where it does not have that type.
std::optional<double> DensePeak(const HardwareProfile& hardware, Dtype dtype);

}  // namespace zeroplan
