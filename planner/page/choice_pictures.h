// Pictures of choices, from the results of an estimate or a search.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/estimate/estimate.h"
#include "planner/page/html.h"

namespace zeroplan {

// One row, or bar, of a picture.
struct ShownChoice {
  std::string label;
  const ChoiceEstimate* estimate = nullptr;
  bool marked = false;  // the answer
};

// The classes of each choice stacked, against the capacity of a GPU.
Picture GpuMemoryPicture(const std::vector<ShownChoice>& choices, const Cluster& cluster);
// The same for hosts; nothing if no choice needs more than a hundredth of a host for its states.
std::optional<Picture> HostMemoryPicture(const std::vector<ShownChoice>& choices,
                                         const Cluster& cluster);
// The memory of a choice's loading, evaluation, saving and resuming, as a table; nothing if
// unknown.
std::optional<Picture> AroundPicture(const ChoiceEstimate& choice, const Cluster& cluster);
// A step's time by cause. `tokens`: for this many tokens instead of each choice's own step, for
// choices with other batches. Nothing if times are unknown.
std::optional<Picture> StepTimePicture(const std::vector<ShownChoice>& choices,
                                       const std::optional<double>& tokens);

// The cost of a run with each choice, as a table; nothing if there is no run, or no time is known.
std::optional<Picture> RunCostPicture(const std::vector<ShownChoice>& choices, const RunGoal& goal);

// Documents of the goal's data by length; and a table of how they become sequences in such batches:
// as configured, and packed the other way, in steps of `step_seconds` (unset: unknown). REQUIRES:
// goal.data.
Picture LengthsPicture(const RunGoal& goal);
Picture SequencesPicture(const RunGoal& goal, const BatchSpec& batch,
                         std::optional<double> step_seconds);
// Adds both, and DataParagraphs to the findings.
void AddData(const RunGoal& goal, const ChoiceEstimate& choice, const ModelSpec& model, Page& page);

// The memory and speed of one choice.
struct JudgedDot {
  std::string label;
  uint64_t gpu_bytes = 0;
  double tokens_per_second = 0;
  bool fits = false, chosen = false;
};
// The Pareto front: for each dot, whether it fits and no other one that fits is at least as good in
// both values and better in one. Among equal dots the first is on it.
std::vector<bool> OnFront(const std::vector<JudgedDot>& dots);
Picture FrontPicture(const std::vector<JudgedDot>& dots, const Cluster& cluster);

// Memory of one GPU over a step of `program`, labelled `label`, and the buffers of each phase's
// peak. `footprint` and `report` are FootprintOf's and WalkMemory's of it.
Picture StepMemoryPicture(const Program& program, const Footprint& footprint,
                          const MemoryReport& report, const std::string& label,
                          const CostModel& costs);

}  // namespace zeroplan
