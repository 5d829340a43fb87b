// A training run as a page: what was measured, beside what was planned and predicted.
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

// One optimizer step as measured. Absent: the backend cannot know, or the loss is not finite.
struct RunStep {
  int64_t step = 0;
  std::optional<double> loss;
  double step_seconds = 0, tokens_per_second = 0;
  std::optional<double> exposed_comm_seconds, exposed_offload_seconds;
  std::optional<uint64_t> device_used_bytes;  // by anyone; the highest seen
  std::optional<double> watts;                // drawn by rank 0's GPU; the driver's means
};

// How a run ended.
struct RunEnd {
  int64_t steps = 0, skipped_steps = 0;           // in all, those before a resume included
  std::array<uint64_t, kSpaces> touched_bytes{};  // high water by arena
  std::optional<uint64_t> device_used_bytes;      // the highest seen
  double step_seconds_median = 0;
  bool interrupted = false, out_of_patience = false;
};

struct RunRecord {
  const Program& program;
  const MemoryReport& memory;  // WalkMemory's of it
  // Set for a run on GPUs, else null and unset: the prediction, and the cost model that made it.
  const CostModel* costs = nullptr;
  std::optional<RunPrediction> prediction;
  std::string backend;                // "CPU", "CUDA"
  std::optional<double> limit_watts;  // enforced on rank 0's GPU
  int64_t done = 0;                   // steps before a resume
  int64_t planned_steps = 0;
  std::vector<RunStep> steps;
  std::vector<std::pair<int64_t, double>> validations;  // step, loss; finite ones
  std::vector<int64_t> saves;                           // after which steps
  std::optional<RunEnd> end;                            // unset: the run failed
  std::string failure;                                  // why
};

Page RunPage(const RunRecord& record, const PageOrigin& origin);

// ---- for tests ----

// Joins the steps to `most` at most, each the mean of as many that follow each other (the last of
// fewer); the step of each is its last one's. What some of them lack is absent.
std::vector<RunStep> MeanSteps(const std::vector<RunStep>& steps, size_t most);

// Pictures of a run, of what its steps reported.

// Loss of training and validation over steps. Nothing without a finite loss.
std::optional<Picture> LossPicture(const RunRecord& record);
// Tokens a second over steps, beside the prediction. Nothing without steps.
std::optional<Picture> SpeedPicture(const RunRecord& record);
// Median seconds of a step by cause, predicted and measured. Nothing where no cause is measured.
std::optional<Picture> MeasuredTimePicture(const RunRecord& record);
// Bytes of each arena, planned and touched.
Picture ArenaPicture(const RunRecord& record);
// What the GPU has in use over steps, beside the prediction. Nothing where that is not known.
std::optional<Picture> UsedMemoryPicture(const RunRecord& record);
// What the GPU draws over steps, below its limit. Nothing where that is not known.
std::optional<Picture> PowerPicture(const RunRecord& record);

}  // namespace zeroplan
