// A table of measured runs and a hardware profile's predictions for them.
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

// Whether a prediction is of the program that ran. Metrics with the program's fingerprint decide
// exactly; older ones by the arenas' sizes.
enum class SameProgram : uint8_t { kYes, kOtherArenas, kOtherFingerprint };

struct Comparison {
  MeasuredRun run;
  ChoiceEstimate predicted;
  SameProgram same = SameProgram::kYes;
  uint64_t fingerprint = 0;  // fingerprint of the predicted program
};

// Lowers the run's program again and predicts it. `model`: the run's model, needed only if the
// run's metrics lack the inputs of lowering. Throws Error(kUsage) if `model` has another number of
// parameters than the run's.
Comparison Compare(const MeasuredRun& run, const std::optional<ModelSpec>& model,
                   const HardwareProfile& hardware);
// The same for a given program.
Comparison CompareProgram(const MeasuredRun& run, const Program& program,
                          const HardwareProfile& hardware);

// The table in Markdown. Errors are predicted / measured - 1.
std::string PredictionTable(const std::vector<Comparison>& rows, const HardwareProfile& hardware);
// The table as text, on a page of `page_columns` columns: columns without room are left out, and a
// line names them.
std::string PredictionText(const std::vector<Comparison>& rows, const HardwareProfile& hardware,
                           size_t page_columns);

// The planner's prediction of a run on GPUs, to be compared with measurements.

struct RunPrediction {
  std::string hardware;  // name of the profile
  Footprint footprint;
  // Unset: several hosts, and the profile lacks a network.
  std::optional<double> step_seconds;
  std::optional<StepTime> step;  // the same by cause
};

// `gpus_per_node`: ranks of one host.
RunPrediction PredictRun(const Program& program, const HardwareProfile& hardware,
                         int gpus_per_node);

// Memory of one GPU, and the bytes of it that stay free.
struct GpuLimit {
  uint64_t bytes = 0, reserve_bytes = 0;
};

// The shortage of one GPU's memory, if any.
std::optional<Shortage> GpuShortage(const RunPrediction& prediction, const GpuLimit& limit);

// Throws Error(kNothingFits) if the prediction exceeds `limit`, the value of --gpu-memory.
void CheckGpuMemory(const RunPrediction& prediction, const GpuLimit& limit);

// FLOP/s of the profile's GPU without sparsity; unset if the profile lacks the dtype.
std::optional<double> DensePeak(const HardwareProfile& hardware, Dtype dtype);

}  // namespace zeroplan
