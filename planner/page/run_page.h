// A training run as a page: its measurements, next to the plan and the prediction.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cost_models/cost_model.h"
#include "planner/page/html.h"
#include "planner/page/plan_page.h"
#include "planner/runs/prediction_table.h"

namespace zeroplan {

// One optimizer step as measured. Absent: the backend cannot measure it, or the loss is not finite.
struct RunStep {
  int64_t step = 0;
  std::optional<double> loss;
  double step_seconds = 0, tokens_per_second = 0;
  std::optional<double> exposed_comm_seconds, exposed_offload_seconds;
  std::optional<uint64_t> device_used_bytes;  // all processes; the highest seen
  std::optional<double> watts;                // power of rank 0's GPU; the driver's means
};

// The end of a run.
struct RunEnd {
  int64_t steps = 0, skipped_steps = 0;           // in all, including steps before a resume
  std::array<uint64_t, kSpaces> touched_bytes{};  // high-water mark by arena
  std::optional<uint64_t> device_used_bytes;      // the highest seen
  double step_seconds_median = 0;
  bool interrupted = false, out_of_patience = false;
};

struct RunRecord {
  const Program& program;
  const MemoryReport& memory;  // WalkMemory's of it
  // Set for a run on GPUs, else null and unset: the prediction, and its cost model.
  const CostModel* costs = nullptr;
  std::optional<RunPrediction> prediction;
  std::string backend;                // "CPU", "CUDA"
  std::optional<double> limit_watts;  // power limit of rank 0's GPU
  int64_t done = 0;                   // steps before a resume
  int64_t planned_steps = 0;
  std::vector<RunStep> steps;
  std::vector<std::pair<int64_t, double>> validations;  // step, loss; finite ones
  std::vector<int64_t> saves;                           // the steps after which it saved
  std::optional<RunEnd> end;                            // unset: the run failed
  std::string failure;                                  // the failure's message
};

Page RunPage(const RunRecord& record, const PageOrigin& origin);

// ---- for tests ----

// Joins the steps to `most` at most, each the mean of equally many consecutive steps (the last of
// fewer), with the number of the last one. A value that some of them lack is absent.
std::vector<RunStep> MeanSteps(const std::vector<RunStep>& steps, size_t most);

// Pictures of a run, from the values that its steps reported.

// Loss of training and validation over steps. Nothing without a finite loss.
std::optional<Picture> LossPicture(const RunRecord& record);
// Tokens a second over steps, next to the prediction. Nothing without steps.
std::optional<Picture> SpeedPicture(const RunRecord& record);
// Median seconds of a step by cause, predicted and measured. Nothing if no cause is measured.
std::optional<Picture> MeasuredTimePicture(const RunRecord& record);
// Bytes of each arena, planned and touched.
Picture ArenaPicture(const RunRecord& record);
// The GPU's memory in use over steps, next to the prediction. Nothing if unknown.
std::optional<Picture> UsedMemoryPicture(const RunRecord& record);
// The GPU's power over steps, below its limit. Nothing if unknown.
std::optional<Picture> PowerPicture(const RunRecord& record);

}  // namespace zeroplan
